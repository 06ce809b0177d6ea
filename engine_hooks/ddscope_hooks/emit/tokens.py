"""Which token ids a record uses, and which were never told: the text of each goes out once, before its first use.

Runs on the writer thread. Where the text comes from is the caller's `token_text`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
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
            self._told.update(_row(fields.get("ids")))  # somebody tells by himself
            return None
        if self._text is None or type not in USES:
            return None
        try:
            ids = sorted(used(type, fields) - self._told)
            return self._tell(ids, self._text) if ids else None
        except Exception as error:
            self._text = None
            self._fault("token_text", error)
            return None

    def missing(self, ids: Callable[[], Iterable[int]]) -> dict[str, Any] | None:
        """As `untold`, for ids that are known to be used."""
        if self._text is None:
            return None
        try:
            new = {number for number in set(ids()).difference(self._told) if number >= 0}
            return self._tell(sorted(new), self._text) if new else None
        except Exception as error:
            self._text = None
            self._fault("token_text", error)
            return None

    def _tell(
        self, ids: list[int], token_text: Callable[[Sequence[int]], Sequence[str | bytes]]
    ) -> dict[str, Any] | None:
        text = list(token_text(ids))
        if len(text) != len(ids) or not all(isinstance(each, (str, bytes)) for each in text):
            raise ValueError(f"token_text must give a str or bytes for each of {len(ids)} ids")
        self._told.update(ids)
        return {"ids": ids, "text": text}


def used(type: str, fields: dict[str, Any]) -> set[int]:
    """Token ids that a `step` or `request` refers to. What is no token id (such as padding below 0) is left out."""
    if type == "request":
        return _ids([fields.get("prompt_ids")])
    draft, tree, target = (_part(fields, name) for name in ("draft", "tree", "target"))
    rows = [[fields.get("root"), fields.get("bonus")], fields.get("emitted"), tree.get("tokens"), target.get("ids")]
    rows += _row(draft.get("ids"))
    rows += _row(_part(target, "topk").get("ids"))
    return _ids(rows)


def _part(fields: dict[str, Any], name: str) -> dict[str, Any]:
    part = fields.get(name)
    return part if isinstance(part, dict) else {}


def _row(value: Any) -> list[Any]:
    """A list, tuple or array as a list; anything else as an empty one."""
    if type(value) is list:  # the usual case; nobody changes what is returned
        return value
    tolist = getattr(value, "tolist", None)
    if callable(tolist):
        value = tolist()
    return list(value) if isinstance(value, (list, tuple)) else []


def _ids(rows: Iterable[Any]) -> set[int]:
    values: list[Any] = []
    for row in rows:
        values += _row(row)
    try:
        ids = set(values)
        if {*map(type, ids)} <= {int} and min(ids, default=0) >= 0:  # the usual case, without a loop in Python
            return ids
    except TypeError:
        pass
    return {i for v in values if isinstance(i := _scalar(v), int) and i >= 0}


def _scalar(value: Any) -> Any:
    tolist = getattr(value, "tolist", None)
    return tolist() if callable(tolist) else value
