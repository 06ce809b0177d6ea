"""Taps on a running server: `core` carries what they take, one module a family of algorithms takes it.

Imported in scheduler processes only. torch and the server are imported inside functions, never at import.
"""
