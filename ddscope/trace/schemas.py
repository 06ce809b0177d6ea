"""The JSON Schema of every record, generated from `ddscope.model`, so that it cannot say something else than the code.
Writing it to its file is `python -m ddscope.trace.schema`.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ddscope.model import RECORD_TYPES, VERSION
from ddscope.trace.codec import INT_LIMIT

_TITLE = f"A line of a ddscope trace, format {VERSION[0]}.{VERSION[1]}"
_ABOUT = (
    "One JSON object a line. Readers keep types and fields that are not listed here: minor versions add some. "
    "What holds between records is in trace-format.md."
)


def json_schema() -> dict[str, Any]:
    """The schema (draft 2020-12) of one line: one of the record types. Fields that are not listed are allowed."""
    references, components = msgspec.json.schema_components(RECORD_TYPES.values(), ref_template="#/$defs/{name}")
    _bound_integers(components)
    for cls in RECORD_TYPES.values():
        components[cls.__name__]["properties"]["seq"]["minimum"] = 0
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": _TITLE,
        "description": _ABOUT,
        "oneOf": list(references),
        "$defs": components,
    }


def render() -> str:
    """The schema as the text of its file."""
    return msgspec.json.format(msgspec.json.encode(json_schema()), indent=2).decode() + "\n"


def _bound_integers(node: Any) -> None:
    """Every integer of the format stays below 2^53."""
    if isinstance(node, dict):
        if node.get("type") == "integer":
            node["maximum"], node["minimum"] = INT_LIMIT - 1, 1 - INT_LIMIT
        for value in node.values():
            _bound_integers(value)
    elif isinstance(node, list):
        for value in node:
            _bound_integers(value)
