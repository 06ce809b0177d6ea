"""Lines that viewers send: cutting them out of the stream, parsing them, handing commands on.

What a command does is the engine's business.
"""

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
        message = parse_control(line)
        if message is None or self._handler is None:
            self.refused += 1
            return
        self.taken += 1
        try:
            self._handler(message)
        except Exception as error:
            self._fault("control", error)


def parse_control(line: bytes) -> dict[str, Any] | None:
    """{type, command, args, by} of a control line, None for anything else."""
    message = _object(line, "control")
    if message is None or not isinstance(message.get("command"), str) or not isinstance(message.get("args", {}), dict):
        return None
    by = message.get("by")
    return {
        "type": "control",
        "command": message["command"],
        "args": message.get("args", {}),
        "by": by if isinstance(by, str) else None,
    }


def parse_hello(line: bytes) -> dict[str, Any] | None:
    """{header, seq} of a viewer's first line, by which it says what it has; None for anything else.

    header: SHA-256 (hex) of the header line without its newline. seq: the last that it covered.
    """
    message = _object(line, "hello")
    if message is None or not isinstance(message.get("seq"), int):
        return None
    return {"header": message.get("header"), "seq": message["seq"]}


def _object(line: bytes, type: str) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and message.get("type") == type else None


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
