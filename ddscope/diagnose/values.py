"""Reading the values of facts, which are any JSON: what is not as described is left out, nothing raises. Pure."""

from __future__ import annotations

from typing import Any

from ddscope.diagnose.words import excerpt

MAX_ITEMS = 1000
MAX_TEXT = 300


def mapping(value: Any) -> dict[str, Any]:
    """The value where it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}


def items(value: Any) -> list[dict[str, Any]]:
    """The objects of a list."""
    return [item for item in value[:MAX_ITEMS] if isinstance(item, dict)] if isinstance(value, list) else []


def text(value: Any, otherwise: str = "") -> str:
    """A string or a number as text on one line, cut; anything else is `otherwise`."""
    if isinstance(value, str):
        return excerpt(value, MAX_TEXT) or otherwise
    if isinstance(value, bool) or not isinstance(value, int | float):
        return otherwise
    return str(value)[:MAX_TEXT]


def shown(value: Any) -> str:
    """Any value as text, for a sentence; None is `nothing`."""
    return "nothing" if value is None else excerpt(value if isinstance(value, str) else str(value), MAX_TEXT)


def texts(value: Any) -> list[str]:
    """The strings of a list."""
    return (
        [excerpt(item, MAX_TEXT) for item in value[:MAX_ITEMS] if isinstance(item, str)]
        if isinstance(value, list)
        else []
    )


def host_of(src: str, value: dict[str, Any]) -> str:
    """The host of a fact: as it says, else as its source is named."""
    return text(value.get("host")) or src.partition("/")[2]


def on(host: str) -> str:
    """` on ct129`, or nothing."""
    return f" on {host}" if host else ""
