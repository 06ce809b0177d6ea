"""Commands of viewers: sampling, flush, record, record_stop. Nothing here can pause a server.

Runs on the emitter's reader thread, and only when the server was started with DDSCOPE_CONTROL=1.
"""

from __future__ import annotations

import os
from typing import Any

from ddscope_hooks.config import sample
from ddscope_hooks.emit import EmitError
from ddscope_hooks.taps.core import Core

COMMANDS = ("sampling", "flush", "record", "record_stop")


class Control:
    """Carries commands out, and says what came of each: a `control` record, or the fact `control.refused`."""

    def __init__(self) -> None:
        self._core: Core | None = None
        self._file: str | None = None

    def serve(self, core: Core) -> None:
        """Commands are for this core."""
        self._core = core

    def __call__(self, message: dict[str, Any]) -> None:
        """One command."""
        core = self._core
        if core is None:
            return
        command, args = message["command"], message.get("args") or {}
        try:
            told = self._do(core, command, args)
        except (ValueError, EmitError) as error:
            core.fact("control.refused", {"command": command, "why": str(error)})
            return
        core.emitter.emit("control", {"command": command, "args": told, "by": message.get("by")})
        if command == "sampling":
            core.fact("hooks.sampling", sampling(core))

    def _do(self, core: Core, command: str, args: dict[str, Any]) -> dict[str, Any]:
        if command == "sampling":
            core.sampling.set(sample(args, core.sampling.sample))
            return args
        if command == "flush":
            core.flush()
            return {}
        if command == "record":
            return {"file": self._record(core, args)}
        if command == "record_stop":
            if self._file is None or not core.emitter.unlisten(self._file):
                raise ValueError("Nothing is being recorded by a command.")
            stopped, self._file = self._file, None
            return {"file": os.path.basename(stopped)}
        raise ValueError(f"There is no command {command!r} for a server; there are {', '.join(COMMANDS)}.")

    def _record(self, core: Core, args: dict[str, Any]) -> str:
        path = args.get("path")
        if not isinstance(path, str) or not os.path.isabs(path) or not path.endswith(".jsonl"):
            raise ValueError("record takes the path of a file on the server's host: absolute, ending in .jsonl.")
        if self._file is not None:
            raise ValueError("A file is being recorded already; stop it first.")
        path = path.replace("%r", str(core.place.rank))
        self._file = core.emitter.listen(f"file:{path}")
        return os.path.basename(self._file)


def sampling(core: Core) -> dict[str, Any]:
    """Value of the fact `hooks.sampling`."""
    now = core.sampling.sample
    return {
        "every": now.every,
        "rid": now.rid,
        "max_bytes_per_s": now.max_bytes_per_s,
        "control": core.config.control,
    }
