"""Hooks on a host: a slim wheel into a server's environment, a drop-in for its unit, and every change undone again."""
