"""Real and made-up steps for the tests of the tree's panes, and an app that holds one pane."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import cache
from itertools import zip_longest
from pathlib import Path
from typing import Any

from textual.app import App, ComposeResult
from textual.filter import Monochrome
from textual.message import Message
from textual.pilot import Pilot
from textual.widget import Widget

from ddscope.model import Flags, Raw64, Step, Target, Tokens, Tree
from ddscope.session.tokens import TokenTable
from ddscope.session.tree import tree_view
from ddscope.session.views import TreeView
from ddscope.trace import decode
from ddscope.tui.theme import themes

REAL = Path(__file__).parent / "data" / "hash_table.jsonl"
"""Eight steps of SmolLM2-135M-Instruct with its drafter: budget 31, greedy, asked what a hash table is."""


@cache
def real_trees() -> dict[int, TreeView]:
    """The real steps by their number."""
    table = TokenTable()
    trees: dict[int, TreeView] = {}
    for number, line in enumerate(REAL.read_bytes().splitlines()):
        record = decode(line)
        if isinstance(record, Tokens):
            table.add(record.ids, record.text)
        elif isinstance(record, Step):
            trees[record.step] = tree_view(record, table, number)
    return trees


def make_tree(
    parents: Sequence[int],
    *,
    texts: Mapping[int, str | bytes] | None = None,
    logprobs: Sequence[float | None] | None = None,
    path: Sequence[int] | None = (0,),
    bonus: int | None = 0,
    step: int = 0,
    record: int = 1,
    truncated: bool = False,
    **fields: Any,
) -> TreeView:
    """A tree of len(parents) nodes. Token of node i is i, texts[i] or "t<i>"; the target chose along `path`."""
    n = len(parents)
    table = TokenTable()
    shown = {i: f" t{i}" for i in range(n + 1)} | dict(texts or {})
    for token, text in shown.items():
        table.add([token], [text if isinstance(text, str) else Raw64(base64.b64encode(text).decode())])
    target = None
    if path is not None:
        ids = [n + 1] * (n + 1)
        for here, after in zip_longest(path, path[1:]):
            if 0 <= here <= n:
                ids[here] = after if after is not None else (bonus if bonus is not None else n + 1)
        target = Target(ids=ids, logprobs=[math.log(0.5)] * (n + 1))
    record_of = Step(
        src="engine/0", seq=record, t=0, mono=0, rid="r1", step=step, algorithm="ddtree", base=10, root=0,
        tree=Tree(budget=max(n, 1), tokens=list(range(1, n + 1)), parents=list(parents),
                  logprobs=list(logprobs) if logprobs is not None else [math.log(0.5)] * n, **fields),
        target=target, path=list(path) if path is not None else None, bonus=bonus,
        flags=Flags(truncated=truncated or None),
    )  # fmt: skip
    return tree_view(record_of, table, record)


class Host(App[None]):
    """One pane and nothing else, focused, with `state` set on it. Messages of ddscope's panes are kept in `told`."""

    CSS = "Screen { layout: vertical; } .pane { border: round $border-blurred; height: 1fr; width: 1fr; }"

    def __init__(self, pane: Widget, theme: str = "ddscope-dark", *, no_color: bool = False, **state: Any) -> None:
        super().__init__()
        for each in themes():
            self.register_theme(each)
        self.theme = theme
        self.pane = pane
        self.state = state
        pane.add_class("pane")
        self.told: list[Message] = []
        if no_color:
            self.no_color = True
            self._filters.append(Monochrome())

    def compose(self) -> ComposeResult:
        yield self.pane

    def on_mount(self) -> None:
        for name, value in self.state.items():
            setattr(self.pane, name, value)
        self.pane.focus()

    def run_test(self, **kwargs: Any) -> AbstractAsyncContextManager[Pilot[None]]:
        return super().run_test(message_hook=self._keep, **kwargs)

    def _keep(self, message: Message) -> None:
        if type(message).__module__.startswith("ddscope.") and not any(message is kept for kept in self.told):
            self.told.append(message)


def lines_of(pane: Widget) -> list[str]:
    """What stands on the lines of a pane."""
    return [pane.render_line(y).text.rstrip() for y in range(pane.scrollable_size.height)]
