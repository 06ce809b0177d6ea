"""The first paint of a replay: the last step, or the one asked for, before any index exists.

Cost does not depend on the file's size: the end of the file, and its beginning for the texts of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from ddscope.model import Header, Step, Tokens
from ddscope.session.tokens import TokenTable
from ddscope.session.tree import tree_view
from ddscope.session.views import TreeView
from ddscope.trace import TraceFile, decode
from ddscope.trace.ranks import rank_of

HEAD_BYTES = 1 << 19
TAILS = (64, 1024, 8192)  # records; a journal may have talked since the last step
UNNUMBERED = -1


@dataclass(frozen=True)
class FirstPaint:
    """A step shown before its record number is known (`tree.record` is -1); tokens told elsewhere show as ⟨#id⟩."""

    header: Header
    offset: int  # of the step's line; `Store.record_at` turns it into a record number once the index reaches it
    step: Step
    tree: TreeView


def first_paint(trace: TraceFile, at: int | None) -> FirstPaint | None:
    """The newest step of the file, or the newest one with step number `at`; None when there is none."""
    tokens = TokenTable()
    _tell(tokens, _head_lines(trace))
    found = _last_step(trace, tokens) if at is None else _asked_step(trace, at)
    if found is None:
        return None
    offset, step = found
    return FirstPaint(trace.header(), offset, step, tree_view(step, tokens, UNNUMBERED))


def _head_lines(trace: TraceFile) -> list[bytes]:
    with trace.path.open("rb") as file:
        return file.read(HEAD_BYTES).split(b"\n")[:-1]


def _tell(tokens: TokenTable, lines: list[bytes]) -> None:
    for line in lines:
        if b'"tokens"' in line[:200]:
            record = decode(line)
            if isinstance(record, Tokens):
                tokens.add(record.ids, record.text)


def _last_step(trace: TraceFile, tokens: TokenTable) -> tuple[int, Step] | None:
    for count in TAILS:
        tail = trace.tail(count)
        for _, record in tail:
            if isinstance(record, Tokens):
                tokens.add(record.ids, record.text)
        steps = [(offset, record) for offset, record in reversed(tail) if isinstance(record, Step)]
        if steps:
            return next((pair for pair in steps if _whole(pair[1])), steps[0])
        if len(tail) < count:
            return None
    return None


def _asked_step(trace: TraceFile, at: int) -> tuple[int, Step] | None:
    steps = [(offset, record) for offset, record in reversed(trace.find_step(at)) if isinstance(record, Step)]
    return next((pair for pair in steps if _whole(pair[1])), steps[0] if steps else None)


def _whole(step: Step) -> bool:
    """Not what another rank repeats of the same step."""
    return step.tree is not None or not rank_of(step.src)
