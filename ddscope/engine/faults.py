"""Deliberate faults, one at a time, each at the place where the real bug would sit.

They show what a failure looks like, live. The engine asks for a fault where it would be sound otherwise; nothing else
changes.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddscope.engine.errors import EngineError

WHAT = {
    "nan-norm": "one weight of the target's final norm is NaN, as after a broken conversion",
    "final-layer-only": "the drafter gets the last captured layer alone, which does not fit its fc",
    "tiled-layer": "the last captured layer is repeated in place of the others",
    "reversed-layers": "the captured layers are concatenated in reverse order",
    "mask-token": "the block is filled with token 2 in place of the mask token",
    "verify-position": "the target verifies every node one position too late",
    "sibling-leak": "nodes see their siblings in the tree mask",
    "causal-mask": "the tree is verified under a plain lower-triangular mask",
    "flat-positions": "nodes get consecutive positions in place of base + depth",
    "no-compaction": "the KV rows of the accepted path are not moved to the front",
}
"""Name → what is broken, as on the command line."""

MASK_TOKEN = 2
"""What `mask-token` puts into the block."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The fault in force; `name` None is a sound engine."""

    name: str | None = None

    def __post_init__(self) -> None:
        """Raises EngineError for a name that is none."""
        if self.name is not None and self.name not in WHAT:
            raise EngineError(f"No fault {self.name!r}; there are {', '.join(WHAT)}.")

    @property
    def what(self) -> str:
        """What is broken, in words."""
        return WHAT[self.name] if self.name is not None else "nothing"

    def __contains__(self, name: str) -> bool:
        """`"nan-norm" in faults`. The name must be a known one."""
        assert name in WHAT, name
        return name == self.name


SOUND = Faults()
"""No fault."""
