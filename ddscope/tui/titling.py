"""What the title says, gathered from header, state, totals and counters: store in, TitleView out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ddscope.model import Header
from ddscope.session import EngineState, HostView, RankView, Store
from ddscope.trace import TraceError
from ddscope.tui import laddering
from ddscope.tui.clock import clock
from ddscope.tui.widgets.title import Motion, TitleView

_BRACKETS = re.compile(r"\s*\([^()]*\)\s*$")


def header_of(store: Store) -> Header | None:
    """The header, None while a growing file has none."""
    try:
        return store.header
    except TraceError:
        return None


def model_words(header: Header | None) -> str:
    """Target and drafter without what stands in brackets behind them: "SmolLM2-135M-Instruct + smollm2-dflash"."""
    model = header.model if header is not None else None
    if model is None:
        return ""
    return " + ".join(_BRACKETS.sub("", name) or name for name in (model.target, model.draft) if name)


def source_words(header: Header | None, live: bool, name: str) -> str:
    """Where the records come from: the engine, and the file when it is a replay."""
    engine = header.engine if header is not None else None
    if not live:
        return name
    return f"{engine.name} {engine.version}".strip() if engine is not None else "no engine yet"


def _source(header: Header | None, live: bool, name: str, hosts: Sequence[HostView], host_names: Sequence[str]) -> str:
    if live and host_names:
        return laddering.source_words(hosts, host_names)
    return source_words(header, live, name)


def hardware_words(header: Header | None) -> str:
    """Number type and device: "float32 cpu"."""
    engine = header.engine if header is not None else None
    said = engine.config if engine is not None else {}
    return " ".join(str(said[name]) for name in ("dtype", "device") if said.get(name))


def taps_words(ranks: Sequence[RankView]) -> str:
    """What is wrong with the taps of a server; empty when nothing is."""
    if any(rank.faults for rank in ranks):
        return "a tap is off"
    blind = any(rank.taps is not None and not any(tap.live for tap in rank.taps) for rank in ranks)
    missing = {tap.tap for rank in ranks for tap in rank.missing}
    return (
        "no live tap" if blind else f"{len(missing)} tap{'s' if len(missing) != 1 else ''} missing" if missing else ""
    )


def dropped(store: Store) -> tuple[int | None, bool]:
    """Records lost of all sources, and whether some loss has no number. None while there is no source."""
    counters = store.counters.values()
    if not counters:
        return None, False
    return sum(c.lost for c in counters), any(c.unknown for c in counters)


def last_step(store: Store, rid: str | None) -> int | None:
    """Number of the newest step of a request."""
    rows = store.steps(rid) if rid is not None else ()
    return rows[len(rows) - 1].step if len(rows) else None


def title_view(
    store: Store,
    *,
    live: bool,
    motion: Motion,
    pending: int,
    speed: float | None,
    state: EngineState,
    rid: str | None,
    step_record: int | None,
    at: int | None,
    budget: int | None,
    auto: bool,
    algorithm: str,
    connection: str,
    attached: bool = False,
    hosts: Sequence[HostView] = (),
    host_names: Sequence[str] = (),
) -> TitleView:
    """The title for a moment. `at` None is now; `step_record` is the step the cursor shows; attached: to servers.

    hosts: as they stand at the moment; host_names: those this session watches.
    """
    header = header_of(store)
    lost, unknown = dropped(store)
    totals = store.totals(at)
    row = store.step_row(step_record) if step_record is not None else None
    indexed, size = store.progress
    ranks = store.ranks() if attached else []
    return TitleView(
        source=_source(header, live, store.path.name, hosts, host_names),
        model=model_words(header),
        algorithm=algorithm,
        budget=budget,
        auto=auto,
        hardware=hardware_words(header),
        motion=motion if totals.steps or pending or not live or hosts else "waiting",
        pending=pending,
        speed=speed,
        engine=state.state,
        reason=state.reason or "",
        fault=state.fault or "",
        tau=totals.tau,
        rate=totals.rate,
        dropped=lost,
        lost=unknown,
        step=row.step if row is not None else None,
        last_step=last_step(store, rid) if row is not None else None,
        clock=clock(row.t) if row is not None else "",
        indexed=indexed / size if not live and size and indexed < size else None,
        connection=connection or laddering.clocks(hosts),
        ladder=laddering.headline(hosts),
        attached=attached,
        ranks=f"{len(ranks)} ranks" if len(ranks) > 1 else "",
        sampling=next((r.sampling.words for r in ranks if r.sampling is not None and r.sampling.words), ""),
        taps=taps_words(ranks),
    )
