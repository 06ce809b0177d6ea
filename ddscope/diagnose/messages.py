"""The text of records that carry a framework's own message: log lines and `engine.error` facts."""

from __future__ import annotations

from ddscope.model import Fact, Log, Record, text_bytes

MAX_MESSAGE = 20_000
"""Characters looked at: a config dump of megabytes on one line is not searched to its end."""

READY = ("fired up and ready", "Starting vLLM API server")
"""In the line that SGLang, or vLLM, prints when it has started; warm-up is over then."""


_REQUESTS = (
    "Receive: obj=",
    "Finish: obj=",
    '"event": "request.',
    "Received request ",
    "details: prompt: ",
)
"""In the head of lines in which SGLang (--log-requests) and vLLM log a request: what follows is a user's own text."""


def is_request(message: str) -> bool:
    """Whether a line quotes a request, whose text says nothing of the server."""
    head = message[:200]
    return any(mark in head for mark in _REQUESTS)


def message_of(record: Record) -> str | None:
    """The message, undecodable bytes replaced; None for any other record, a line without one, a quoted request."""
    if isinstance(record, Log):
        message = record.message
        if message is None:
            return None
        if not isinstance(message, str):
            message = text_bytes(message)[:MAX_MESSAGE].decode("utf-8", "replace")
        return message[:MAX_MESSAGE] if message and not is_request(message) else None
    if isinstance(record, Fact) and record.name == "engine.error" and isinstance(record.value, dict):
        text = record.value.get("message")
        return text[:MAX_MESSAGE] if isinstance(text, str) else None
    return None


def error_rid(record: Record) -> str | None:
    """The request that an `engine.error` fact ended."""
    if isinstance(record, Fact) and isinstance(record.value, dict):
        rid = record.value.get("rid")
        return rid if isinstance(rid, str) else None
    return None
