"""What the scheduler logs when an exception ends it, as the fact `engine.error`: the process is about to end."""

from __future__ import annotations

import logging

from ddscope_hooks.relay import AnyEmitter

LOGGER = "sglang.srt.managers.scheduler"
SIGN = "Scheduler hit an exception"
LAST_WORDS_S = 0.25


class ErrorFacts(logging.Handler):
    """Sits beside the server's own handlers; sees errors only."""

    def __init__(self, emitter: AnyEmitter) -> None:
        super().__init__(logging.ERROR)
        self._emitter = emitter

    def emit(self, record: logging.LogRecord) -> None:
        """Tell the last line of the traceback, and wait a moment so that it gets out before the process is killed."""
        try:
            text = record.getMessage()
            if SIGN not in text:
                return
            lines = [line.strip() for line in text.splitlines() if line.strip()]
            places = [line for line in lines if line.startswith("File ")]
            value = {"message": lines[-1][:2000], "where": places[-1][:500] if places else SIGN}
            self._emitter.emit("fact", {"name": "engine.error", "value": value})
            self._emitter.drain(LAST_WORDS_S)
        except Exception:
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Stay silent: the server's own words about its end matter more."""


def listen(emitter: AnyEmitter) -> None:
    """Begin to look at the scheduler's log."""
    logging.getLogger(LOGGER).addHandler(ErrorFacts(emitter))
