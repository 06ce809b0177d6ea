"""Which token ids a record uses and which of them were never told: the text of each goes out once, before its first use.

Runs on the writer thread. Where the text comes from is the caller's `token_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

USES = frozenset(("step", "request"))


class TokenText:
    """Remembers the ids that were told. A `token_text` that fails is reported once and left alone from then on."""

    def __init__(
        self,
        token_text: Callable[[Sequence[int]], Sequence[str | bytes]] | None,
        fault: Callable[[str, BaseException], bool],
    ) -> None:
        self._text = token_text
        self._fault = fault
        self._told: set[int] = set()

    def untold(self, type: str, fields: dict[str, Any]) -> dict[str, Any] | None:
        """Fields of the `tokens` record that must come before this record; None when there is nothing to tell."""
        if type == "tokens":
            self._told.update(_ints(fields.get("ids")))  # the caller tells by itself
            return None
        if self._text is None or type not in USES:
            return None
        ids = sorted(used(type, fields) - self._told)
        if not ids:
            return None
        try:
            text = list(self._text(ids))
            if len(text) != len(ids):
                raise ValueError(f"token_text gave {len(text)} texts for {len(ids)} ids")
        except Exception as e:
            self._text = None
            self._fault("token_text", e)
            return None
        self._told.update(ids)
        return {"ids": ids, "text": text}


def used(type: str, fields: dict[str, Any]) -> set[int]:
    """Token ids that a `step` or `request` refers to."""
    ids: set[int] = set()
    if type == "request":
        ids.update(_ints(fields.get("prompt_ids")))
        return ids
    for key in ("root", "bonus"):
        if isinstance(fields.get(key), int):
            ids.add(fields[key])
    draft, tree, target = (_part(fields, key) for key in ("draft", "tree", "target"))
    rows = [fields.get("emitted"), tree.get("tokens"), target.get("ids")]
    rows += _rows(draft.get("ids")) + _rows(_part(target, "topk").get("ids"))
    for row in rows:
        ids.update(_ints(row))
    return ids


def _part(fields: dict[str, Any], key: str) -> dict[str, Any]:
    part = fields.get(key)
    return part if isinstance(part, dict) else {}


def _plain(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else value


def _rows(value: Any) -> list[Any]:
    rows = _plain(value)
    return list(rows) if isinstance(rows, (list, tuple)) else []


def _ints(value: Any) -> list[int]:
    row = _plain(value)
    return list(row) if isinstance(row, (list, tuple, set)) else []
