"""ddscope: a debugger for tree speculative decoding. This package holds the viewer and the embedded engine."""

__version__ = "0.1.0"
