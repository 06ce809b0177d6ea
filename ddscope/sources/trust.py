"""Whose sockets are followed: those of this user and root, and so the processes that listen on them."""

from __future__ import annotations

import os
import socket
import stat
import struct
from pathlib import Path

from ddscope.sources.errors import SourceError


def trusted(uid: int | None = None) -> frozenset[int]:
    """User ids whose servers are followed: root's and `uid`'s, by default this user's."""
    return frozenset((0, os.geteuid() if uid is None else uid))


def check_socket(path: Path, uids: frozenset[int]) -> None:
    """Raises SourceError when the path is no socket or a stranger's, OSError when there is nothing to look at."""
    info = os.lstat(path)
    if not stat.S_ISSOCK(info.st_mode):
        raise SourceError(f"{path} is not a socket.")
    if info.st_uid not in uids:
        raise SourceError(f"{path} belongs to user id {info.st_uid}: not followed.")


def check_peer(sock: socket.socket, path: Path, uids: frozenset[int]) -> None:
    """Raises SourceError when the process at the other end is a stranger's, as the kernel saw it on connecting."""
    uid = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))[1]
    if uid not in uids:
        raise SourceError(f"The process that listens on {path} belongs to user id {uid}: not followed.")
