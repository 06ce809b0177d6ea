"""Control lines from viewers: parsing them and handing them on. What a command does is the engine's business."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

MAX_LINE = 4 << 20


class Inbox:
    """Commands of all viewers, in order of arrival. With no handler they are refused and counted."""

    def __init__(
        self, handler: Callable[[dict[str, Any]], None] | None, fault: Callable[[str, BaseException], bool]
    ) -> None:
        self._handler = handler
        self._fault = fault
        self.taken = 0
        self.refused = 0

    def line(self, line: bytes) -> None:
        """One line from a viewer. A handler that raises is reported and stays in use."""
        message = parse(line)
        if message is None or self._handler is None:
            self.refused += 1
            return
        self.taken += 1
        try:
            self._handler(message)
        except Exception as e:
            self._fault("control", e)


def parse(line: bytes) -> dict[str, Any] | None:
    """{type, command, args, by} of a control line, None for anything else."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(message, dict) or message.get("type") != "control" or not isinstance(message.get("command"), str):
        return None
    args = message.get("args", {})
    if not isinstance(args, dict):
        return None
    by = message.get("by")
    return {"type": "control", "command": message["command"], "args": args, "by": by if isinstance(by, str) else None}


class Lines:
    """Bytes of a stream to whole lines, with a bound."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that are complete now. Raises ValueError when one grows beyond the bound."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > self._limit:
            raise ValueError(f"a line longer than {self._limit} bytes")
        return [line for line in lines if line.strip()]
