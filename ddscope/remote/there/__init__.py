"""What runs on a host, sent there over standard input: the standard library of Python 3.8 or newer, nothing installed.

Modules here import each other and nothing else of ddscope; `ddscope.remote.agent` sends them.
"""
