"""Tensors: name, shape, the shape that was expected, type and device; a mismatch in words."""

from __future__ import annotations

from collections.abc import Sequence

from ddscope.session.views import TensorRow
from ddscope.tui.clock import clock
from ddscope.tui.foreign import cells, cut, pad, safe, wrap
from ddscope.tui.widgets.lines import Line, LineView
from ddscope.tui.widgets.pane import Piece


def shape_text(shape: Sequence[int | None]) -> str:
    """[60, 576]; a size that may be anything is *."""
    return "[" + ", ".join("*" if size is None else f"{size:,}" for size in shape) + "]"


class Tensors(LineView):
    """Tensors as last told, mismatches first."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.rows: tuple[TensorRow, ...] = ()

    def show(self, rows: Sequence[TensorRow]) -> None:
        """Rows in any order."""
        new = tuple(sorted(rows, key=lambda row: (row.ok is not False, row.name)))
        if new != self.rows:
            held = {self.rows[entry].name for entry in self.opened}
            self.rows = new
            self.content_changed([entry for entry, row in enumerate(new) if row.name in held])

    @property
    def mismatches(self) -> int:
        """How many have a shape that does not fit."""
        return sum(row.ok is False for row in self.rows)

    def entry_count(self) -> int:
        """One entry a tensor."""
        return len(self.rows)

    def entry_line(self, entry: int, width: int) -> Line:
        """One tensor; what does not fit is said in words at once, not only when opened."""
        row = self.rows[entry]
        palette = self.palette
        bad = row.ok is False
        sign, ink = ("✗ ", palette.bad) if bad else ("✓ ", palette.good) if row.ok else ("· ", palette.muted)
        names = min(max((cells(safe(r.name)) for r in self.rows), default=0), max(width // 3, 12))
        shapes = min(max((cells(shape_text(r.shape)) for r in self.rows), default=0), 28)
        expect = shape_text(row.expect) if row.expect is not None else "no expectation"
        spans: list[Piece] = [
            (sign, ink),
            (pad(cut(safe(row.name), names), names) + "  ", palette.strong),
            (pad(cut(shape_text(row.shape), shapes), shapes) + "  ", palette.bad if bad else palette.text),
        ]
        if bad:
            spans.append((f"expected {expect}  ", palette.good))
            spans.append((safe(row.words), palette.warn))
        else:
            fits = f"as expected {expect}" if row.expect is not None else expect
            spans.append((f"{fits}  ", palette.muted))
            spans.append((safe(f"{row.dtype} {row.device or ''}"), palette.muted))
        return Line(tuple(spans), target=row.record, copy=f"{row.name} {shape_text(row.shape)}")

    def entry_detail(self, entry: int, width: int) -> list[Line]:
        """Everything the record says, wrapped."""
        row = self.rows[entry]
        facts = [row.words] if row.words else []
        facts.append(f"{row.dtype} on {row.device or 'a device that was not told'}")
        if row.owner:
            facts.append(f"owner {row.owner}")
        times = "once" if row.changes == 1 else f"{row.changes:,} times, this is the last"
        facts.append(f"told {times}, at {clock(row.t)}; Enter goes there")
        return [
            Line((("    " + piece, self.palette.muted),), target=row.record, copy=fact)
            for fact in facts
            for piece in wrap(safe(fact), max(width - 5, 20))
        ]
