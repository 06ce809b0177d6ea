"""What runs inside a server or engine: the emitter (`emit`) and, later, the taps that feed it.

Standard library only. Nothing here imports ddscope, torch or the server it stands in.
"""

__version__ = "0.1.0"
