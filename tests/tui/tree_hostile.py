"""Hypothesis strategies: texts and trees that a real trace could hold and that a drawing could stumble over."""

from __future__ import annotations

from hypothesis import strategies as st

from ddscope.session.views import TreeView
from tests.tui.trees import make_tree

MARKUP = ("[/INST]", "[bold]x[/bold]", "[/", "\\[", "$primary", "@click=app.quit", "━", "│", "a b", " ", "   ", "")
CONTROL = ("\x1b[31mred", "\x1b]0;title\x07", "\t", "\n", "\r\n", "\x00", "\x7f", "\x9b31m", "\ud800")
UNSEEN = ("\u202eabc", "\u2066x\u2069", "\u200d", "\u2028", "\u00ad", "\ufe0f", "\u0301")
WIDE = ("漢字", "한국어", "👩\u200d👩\u200d👧", "❤\ufe0f", "🇩🇪", "กำ", "e\u0301\u0302\u0303\u0304\u0305")
LONG = ("x" * 10_000, "漢" * 3_000, "\u0301" * 500)
HOSTILE = (*MARKUP, *CONTROL, *UNSEEN, *WIDE, *LONG)

texts = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=12), st.text(st.characters(), max_size=6))
logprobs = st.one_of(
    st.floats(min_value=-12, max_value=0),
    st.sampled_from([None, float("nan"), float("-inf"), float("inf"), 0.0, 3.0]),
)


@st.composite
def trees(draw: st.DrawFn, *, valid: bool = False, most: int = 40) -> TreeView:
    """Any tree; with `valid`, one whose parents and path make sense. Shapes from chains to brooms."""
    n = draw(st.integers(0, most))
    reach = draw(st.sampled_from([1, 3, 1000]))  # how far back a parent may lie: chains, thin trees, bushes
    any_parent = st.integers(-2, n + 3)
    parents = [
        draw(st.integers(max(0, i - reach), i)) if valid or draw(st.booleans()) else draw(any_parent) for i in range(n)
    ]
    named = draw(st.dictionaries(st.integers(0, n), texts, max_size=8))
    told = draw(st.one_of(st.none(), st.lists(logprobs, min_size=n, max_size=n)))
    path: list[int] | None = [0]
    if not valid and draw(st.booleans()):
        path = draw(st.one_of(st.none(), st.lists(st.integers(-1, n + 1), max_size=6)))
    else:
        below: dict[int, list[int]] = {}
        for node, parent in enumerate(parents, 1):
            below.setdefault(parent, []).append(node)
        for _ in range(draw(st.integers(0, 8))):
            after = [node for node in below.get(path[-1], ()) if node not in path]
            if not after:
                break
            path.append(draw(st.sampled_from(after)))
    return make_tree(
        parents,
        texts=named,
        logprobs=told,
        path=path,
        bonus=n + 1 if n % 7 else None,
        truncated=draw(st.booleans()),
    )
