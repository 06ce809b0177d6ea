"""Hosts that run a server: reaching them, finding the server, asking whether it lives. Records come out; no screen."""

from ddscope.remote.host import Done, Host, HostError

__all__ = ["Done", "Host", "HostError"]
