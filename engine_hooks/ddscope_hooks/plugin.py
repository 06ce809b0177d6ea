"""Entry point of SGLang's plug-ins: does nothing unless DDSCOPE is set, and nothing outside of scheduler processes.

Importing this imports the standard library only. The taps are imported where they are set.
"""

from __future__ import annotations

import logging
import os

from ddscope_hooks import config

NAME = "ddscope"
GROUP = "sglang.srt.plugins"


def register() -> None:
    """Called by `load_plugins` in every process of a server. Never raises: without hooks a server runs as ever."""
    if not config.wanted(os.environ):
        return
    try:
        from ddscope_hooks.taps.place import scheduler_call

        call = scheduler_call()
        if call is None:
            return
        asked = config.read(os.environ)
        if not asked.targets:
            _say(" ".join(asked.problems) or "DDSCOPE names no target: the hooks stay off.")
            return
        from ddscope_hooks.taps.setup import start

        start(asked, call, os.environ)
    except Exception as error:
        _say(f"The hooks could not be set: {type(error).__name__}: {error}.")


def _say(text: str) -> None:
    logging.getLogger("ddscope_hooks").warning("ddscope [pid %d]: %s", os.getpid(), text)
