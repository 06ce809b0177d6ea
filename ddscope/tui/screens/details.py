"""What is known of servers: each rank with its connection, taps (missing ones first), sampling, versions, losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.style import Style

from ddscope.session import HostView, RankView, Session, TapRow
from ddscope.tui.clock import clock
from ddscope.tui.foreign import pad, safe, wrap
from ddscope.tui.screens.pick import Pick, PickLines
from ddscope.tui.theme import Palette
from ddscope.tui.widgets.lines import Line

LABEL = 15  # cells
FRESH_S = 0.5


class DetailLines(PickLines):
    """Lines that are only read."""

    SELECTS = False


class ServerDetails(Pick):
    """Stays current while it is open. Nothing is picked here: Enter and Escape close."""

    LINES = DetailLines

    def __init__(self, ranks: Callable[[], Sequence[RankView]], session: Session) -> None:
        self._ranks = ranks
        self._session = session
        self._version = -1
        super().__init__(
            "Server: health, taps, sampling, versions",
            lambda palette, width: detail_lines(ranks(), session, palette, width),
            reason="No engine has said anything of itself yet.",
            foot="↑↓ scroll · Esc closes",
        )

    def on_mount(self) -> None:
        """The list has the keys, and follows what comes."""
        super().on_mount()
        self.set_interval(FRESH_S, self._freshen)

    def _freshen(self) -> None:
        if self._session.version != self._version:
            self._version = self._session.version
            self._list.redraw()


def detail_lines(ranks: Sequence[RankView], session: Session, palette: Palette, width: int) -> list[Line]:
    """The connections, then a block a rank."""
    lines: list[Line] = []
    for host in session.store.hosts():
        lines += _host(host, palette, width)
    for status in session.engines:
        ink = palette.good if status.state == "connected" else palette.bad
        said = f"{status.state}. {status.reason}" if status.reason else status.state
        lines += _said(status.name, said, ink, palette, width)
    for rank in ranks:
        if lines:
            lines.append(Line())
        lines += _rank(rank, palette, width)
    return lines


def _host(host: HostView, palette: Palette, width: int) -> list[Line]:
    """A host: what runs there, its rungs from the ground up, its clock."""
    head: list[tuple[str, Style]] = [
        (safe(host.name or host.src), palette.strong),
        (safe(f"  {host.words}"), palette.text),
    ]
    lines = [Line(tuple(head))]
    for row in host.rungs:
        ink = palette.muted if row.ok else palette.bad
        ms = f" ({row.ms:.0f} ms)" if row.ms is not None and row.rung in ("port", "health") else ""
        lines += _said(
            f"{'✓' if row.ok else '✗'} {row.rung}", f"{row.detail}{ms}, seen {clock(row.t)}", ink, palette, width
        )
    packages = host.server.get("packages")
    if isinstance(packages, dict) and packages:
        said = ", ".join(f"{name} {version}" for name, version in packages.items())
        lines += _said("packages", said, palette.text, palette, width)
    if host.offset_us is not None:
        off = f"{abs(host.offset_us) / 1000:,.1f} ms {'ahead of' if host.offset_us > 0 else 'behind'} this one"
        rtt = f", measured over {host.rtt_us / 1000:.1f} ms" if host.rtt_us is not None else ""
        ink = palette.bad if host.clock_words else palette.text
        lines += _said("clock", f"{off}{rtt}", ink, palette, width)
    return lines


def _rank(rank: RankView, palette: Palette, width: int) -> list[Line]:
    engine = rank.engine
    name = f"{engine.name} {engine.version}  {engine.algorithm}" if engine is not None else ""
    told = "  tells counts only: the trees come from the first rank" if rank.follower else ""
    lines = [Line(((safe(rank.src), palette.strong), (safe(f"  {name}"), palette.text), (told, palette.muted)))]
    for tap in sorted(rank.taps or (), key=lambda tap: (not tap.needed, tap.live)):
        lines += _tap(tap, palette, width)
    if rank.taps is None:
        why = "not told: these records do not come from hooks in a server"
        lines += _said("taps", why, palette.muted, palette, width)
    elif not rank.taps:
        lines += _said("taps", "none: the hooks found nothing to stand at", palette.bad, palette, width)
    for fault in rank.faults:
        lines += _said("switched off", fault, palette.bad, palette, width)
    if rank.sampling is not None:
        may = rank.sampling.control
        control = "viewers may change it" if may else "viewers may not change it (DDSCOPE_CONTROL=1 lets them)"
        words = rank.sampling.words or "every step is recorded"
        lines += _said("sampling", f"{words}; {control}", palette.text, palette, width)
    if rank.versions:
        lines += _said("versions", ", ".join(f"{n} {v}" for n, v in rank.versions), palette.text, palette, width)
    if rank.counters is not None:
        c = rank.counters
        unknown = f", and {c.unknown:,} gaps of unknown size" if c.unknown else ""
        ink = palette.bad if c.lost or c.unknown else palette.text
        parts = [f"{c.late:,} before you came" if c.late else "", f"{c.asked - c.late:,} by sampling"]
        said = ", ".join(part for part in parts if part and not part.startswith("0 "))
        late = f" ({said})" if said else ""
        words = f"{c.emitted:,} emitted = {c.received:,} received + {c.dropped:,} dropped{late}{unknown}"
        lines += _said("records", words, ink, palette, width)
    return lines


def _tap(tap: TapRow, palette: Palette, width: int) -> list[Line]:
    if tap.live:
        return _said(f"✓ {tap.tap}", _short(tap.target) or "live", palette.muted, palette, width)
    if not tap.needed:
        return _said(f"· {tap.tap}", tap.why, palette.muted, palette, width)
    where = f" ({tap.target})" if tap.target else ""
    why = tap.why or "the server did not say why"
    return _said(f"✗ {tap.tap}", f"missing: {why}{where}", palette.bad, palette, width)


def _short(targets: str) -> str:
    """Functions by their last two names; where exactly they are is asked only when one is missing."""
    return ", ".join(".".join(target.rsplit(".", 2)[-2:]) for target in targets.split(", ") if target)


def _said(label: str, text: str, ink: Style, palette: Palette, width: int) -> list[Line]:
    """A label and a text, wrapped beside it."""
    rows = wrap(safe(text), max(width - LABEL - 4, 16)) or [""]
    head = pad(safe(label), LABEL)
    lines = []
    for number, row in enumerate(rows):
        left = head if not number else " " * len(head)
        lines.append(Line((("  " + left + "  ", palette.muted), (row, ink)), copy=f"{label}: {text}"))
    return lines
