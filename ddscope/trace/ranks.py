"""Which source speaks for a request: of the ranks that run one model together, one tells the tree, the others counts.

Sources are named `engine/<rank>`, with `#2` behind it for the second server of that name. Pure; no file.
"""

from __future__ import annotations

import re
from typing import Any, TypeGuard

from ddscope.model import Header

_NAME = re.compile(r"engine/(\d{1,6})(?:#\d+)?")


def rank_of(src: str) -> int | None:
    """Global rank in a source's name; None where it has none."""
    found = _NAME.fullmatch(src)
    return int(found[1]) if found is not None else None


def _is_count(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class Ranks:
    """What the headers say of the ranks behind sources. `tp` in `engine.config` is the tensor-parallel rank; with
    data-parallel attention (`enable_dp_attention`) each `tp_size` / `dp_size` of them run the same requests. Without
    `tp` the number in the name decides.
    """

    def __init__(self) -> None:
        self._told: dict[str, int] = {}

    def header(self, header: Header) -> None:
        """Take in a header."""
        config = header.engine.config if header.engine is not None else {}
        rank, size, replicas = (config.get(name) for name in ("tp", "tp_size", "dp_size"))
        if not _is_count(rank):
            return
        if config.get("enable_dp_attention") is True and _is_count(size) and _is_count(replicas):
            rank %= max(1, size // max(1, replicas))
        self._told[header.src] = rank

    def follower(self, src: str) -> bool:
        """Whether another rank tells the trees of the requests of this source."""
        rank = self._told.get(src)
        return bool(rank if rank is not None else rank_of(src))

    def repeats(self, src: str, has_tree: bool) -> bool:
        """Whether a step of this source only repeats what another rank tells in full. A tree is never a repetition."""
        return not has_tree and self.follower(src)
