"""`python -m ddscope.engine`: the engine process. Loads the pair, listens on a socket, runs until its parent ends.

`ddscope run` starts it. Its standard output is for the parent (`ddscope.sources.engine_process`), its log is standard
error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ddscope.engine.control import ALGORITHMS, AUTO

if TYPE_CHECKING:
    from ddscope.engine.server import EngineServer

_running: dict[str, EngineServer] = {}


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ddscope.engine", description=__doc__)
    parser.add_argument("--socket", required=True)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--draft", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--algorithm", choices=ALGORITHMS, default="ddtree")
    parser.add_argument("--budget", type=lambda text: text if text == AUTO else int(text))
    parser.add_argument("--topk", type=int)
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-new-tokens", type=int, default=128)
    parser.add_argument("--draft-rows", type=int)
    parser.add_argument("--draft-vocab", type=int)
    parser.add_argument("--cut", type=float)
    parser.add_argument("--self-check", type=int, default=0, metavar="N")
    parser.add_argument("--fault")
    parser.add_argument("--paused", action="store_true", help="wait for `resume` or `step` before the first step")
    return parser


def say(status: str, **fields: object) -> None:
    """One status line to the parent."""
    sys.stdout.write(json.dumps({"status": status, **fields}) + "\n")
    sys.stdout.flush()


LEAVE_AFTER = 4.0
"""Seconds the running step may take once the parent is gone."""


def _leave_with_parent() -> None:
    """Blocks until standard input closes, which is when the parent ends, however it ends."""
    with contextlib.suppress(OSError):
        while os.read(0, 4096):
            pass
    server = _running.get("server")
    if server is not None:
        server.control_message({"command": "shutdown", "by": "parent"})
        time.sleep(LEAVE_AFTER)
    os._exit(0)


def main() -> int:
    """Run the engine. Exit status 2, after one sentence to the parent, when it cannot."""
    args = _options().parse_args()
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.INFO,
        format="[%(asctime)s] %(levelname)s %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
    )
    threading.Thread(target=_leave_with_parent, name="parent-watch", daemon=True).start()
    try:
        import torch  # noqa: F401
    except ImportError as problem:
        say(
            "error",
            message=f"The embedded engine needs torch and its friends ({problem}): pip install 'ddscope[engine]'.",
        )
        return 2
    from ddscope.engine.errors import EngineError
    from ddscope.engine.server import EngineServer

    try:
        server = EngineServer.from_options(
            args, progress=lambda what, done, total: say("progress", what=what, done=done, total=total)
        )
    except EngineError as problem:
        say("error", message=str(problem))
        return 2
    _running["server"] = server
    say("ready")
    server.run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
