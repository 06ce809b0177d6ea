"""What the ranks of a server say of themselves: taps, sampling, versions. Values in, values out.

Facts are foreign: a field of another type than agreed counts as not said, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ddscope.model import Engine
from ddscope.session.views import Counters

RANK_FACTS = ("hooks.taps", "hooks.sampling", "versions", "hook.fault")
"""Facts that a rank tells of itself."""

OTHERS = "not for "
"""How the hooks begin to say that a tap is for other algorithms than the one that runs."""


@dataclass(frozen=True, slots=True)
class TapRow:
    """One tap: whether it is live, why not, and the function of the server it stands at."""

    tap: str
    live: bool
    why: str
    target: str

    @property
    def needed(self) -> bool:
        """Not one that the hooks leave out because it is for other algorithms."""
        return self.live or not self.why.startswith(OTHERS)


@dataclass(frozen=True, slots=True)
class Sampling:
    """What a server records. every: each N-th forward pass, 0 none; rid: only requests that begin with it.

    control: whether viewers may change it.
    """

    every: int | None = None
    rid: str = ""
    max_bytes_per_s: int | None = None
    control: bool = False

    @property
    def words(self) -> str:
        """What is left out; empty when nothing is."""
        parts = []
        if self.every is not None and self.every != 1:
            parts.append(f"every {self.every:,}" if self.every else "off")
        if self.rid:
            parts.append(f"rid {self.rid}…")
        if self.max_bytes_per_s:
            parts.append(f"≤ {size(self.max_bytes_per_s)}/s")
        return " ".join(parts)


@dataclass(frozen=True, slots=True)
class RankView:
    """One source of a server. taps None: it has not said which it has. follower: another rank tells the trees."""

    src: str
    engine: Engine | None
    follower: bool
    taps: tuple[TapRow, ...] | None
    sampling: Sampling | None
    versions: tuple[tuple[str, str], ...]
    faults: tuple[str, ...]
    counters: Counters | None

    @property
    def missing(self) -> tuple[TapRow, ...]:
        """Taps that should be live and are not."""
        return tuple(tap for tap in self.taps or () if tap.needed and not tap.live)


def size(count: int) -> str:
    """Bytes in a form for people: 512 B, 64 KiB, 1.5 MiB."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.3g} {unit}"
        amount /= 1024
    return f"{amount:.3g} GiB"


def rank_view(
    src: str, engine: Engine | None, follower: bool, facts: Mapping[str, Any], counters: Counters | None
) -> RankView:
    """The view of one source."""
    versions = facts.get("versions")
    told = versions if isinstance(versions, dict) else {}
    fault = facts.get("hook.fault")
    return RankView(
        src=src,
        engine=engine,
        follower=follower,
        taps=taps(facts.get("hooks.taps")),
        sampling=sampling(facts.get("hooks.sampling")),
        versions=tuple((str(name), str(value)) for name, value in told.items()),
        faults=(f"{fault.get('tap')}: {fault.get('error')}",) if isinstance(fault, dict) else (),
        counters=counters,
    )


def taps(value: Any) -> tuple[TapRow, ...] | None:
    """The fact `hooks.taps`."""
    if not isinstance(value, list):
        return None
    rows = []
    for item in value:
        if isinstance(item, dict) and isinstance(item.get("tap"), str):
            why, target = item.get("why"), item.get("target")
            rows.append(
                TapRow(
                    tap=item["tap"],
                    live=item.get("live") is True,
                    why=why if isinstance(why, str) else "",
                    target=target if isinstance(target, str) else "",
                )
            )
    return tuple(rows)


def sampling(value: Any) -> Sampling | None:
    """The fact `hooks.sampling`."""
    if not isinstance(value, dict):
        return None
    rid = value.get("rid")
    return Sampling(
        every=_count(value.get("every")),
        rid=rid if isinstance(rid, str) else "",
        max_bytes_per_s=_count(value.get("max_bytes_per_s")),
        control=value.get("control") is True,
    )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
