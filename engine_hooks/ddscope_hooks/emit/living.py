"""Emitters that are at work in this process: let go in a forked child, closed when the process ends by itself."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol


class Living(Protocol):
    """Something with threads and sockets of its own."""

    def after_fork(self) -> None:
        """In a child: become inert, let go, unlink nothing."""

    def close(self) -> None:
        """Send what waits, then end."""


_living: weakref.WeakSet[Living] = weakref.WeakSet()


def add(emitter: Living) -> None:
    """It has begun."""
    _living.add(emitter)


def discard(emitter: Living) -> None:
    """It has ended."""
    _living.discard(emitter)


def _in_child() -> None:
    for emitter in list(_living):
        emitter.after_fork()
    _living.clear()


def _at_exit() -> None:
    for emitter in list(_living):
        emitter.close()


os.register_at_fork(after_in_child=_in_child)
atexit.register(_at_exit)
