"""Pictures of the panes beside the tree, with colour and without.

`pytest tests/tui/test_step_panes_snapshots.py --snapshot-update` makes new ones; look at them before committing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from ddscope.session.views import Curve
from ddscope.tui.widgets.curve import DepthCurve
from ddscope.tui.widgets.node import NodeInspector
from ddscope.tui.widgets.requests import RequestList
from ddscope.tui.widgets.steps import StepList
from ddscope.tui.widgets.text import GeneratedText
from tests.tui.test_node_pane import REAL as CURVE
from tests.tui.test_steps_pane import REQUESTS, real_rows, row
from tests.tui.test_text_pane import real_runs
from tests.tui.trees import Host, make_tree, real_trees

Compare = Callable[..., bool]
THEMES = [("ddscope-dark", False), ("ddscope-light", False), ("ddscope-dark", True)]
NAMES = ["dark", "light", "no-colour"]


@pytest.fixture(params=THEMES, ids=NAMES)
def look(request: pytest.FixtureRequest) -> dict[str, Any]:
    theme, no_color = request.param
    return {"theme": theme, "no_color": no_color}


def test_steps(snap_compare: Compare, look: dict[str, Any]) -> None:
    rows = real_rows()[:16]
    rows[12] = replace(rows[12], anomalies=("nonfinite",))
    rows += [row(16, None, emitted=None), row(17, 3, emitted=3, anomalies=("truncated",), total_us=9_400)]
    app = Host(StepList(), **look, rows=rows, cursor=rows[9].record, marked=frozenset({rows[4].record}))
    assert snap_compare(app, terminal_size=(32, 22))


def test_requests(snap_compare: Compare, look: dict[str, Any]) -> None:
    app = Host(RequestList(), **look, rows=REQUESTS, cursor="r1", severities={"r2": "warning", "r1": "critical"})
    assert snap_compare(app, terminal_size=(44, 8))


def test_text(snap_compare: Compare, look: dict[str, Any]) -> None:
    app = Host(GeneratedText(), **look, runs=real_runs(), cursor=124)
    assert snap_compare(app, terminal_size=(60, 10))


def test_node(snap_compare: Compare, look: dict[str, Any]) -> None:
    view = real_trees()[24]
    app = Host(NodeInspector(), **look, view=view, node=view.nodes[8], entropy=1.23, curve=CURVE)
    assert snap_compare(app, terminal_size=(42, 30))


def test_a_node_that_was_given_a_wrong_mask(snap_compare: Compare) -> None:
    view = make_tree([0, 1], texts={2: "[/INST]\x1b"}, path=(0, 1), positions=[10, 11, 99], mask=["1", "3", "5"])
    assert snap_compare(Host(NodeInspector(), view=view, node=view.nodes[2]), terminal_size=(36, 22))


def test_curve(snap_compare: Compare, look: dict[str, Any]) -> None:
    app = Host(DepthCurve(), **look, curve=CURVE, run=Curve(120, (100, 70, 30, 10, 4, 2, 1)))
    assert snap_compare(app, terminal_size=(90, 20))
