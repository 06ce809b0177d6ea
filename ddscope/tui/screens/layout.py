"""Where the panes stand: columns over tabs on a large screen, one pane at a time under a row of tabs on a small one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

NARROW_BELOW = 100  # columns
LOW_BELOW = 30  # rows

DECK: Final = ("journal", "findings", "tensors", "timing", "stacks", "curve")
"""Panes that share the tabs at the bottom."""

UPPER: Final = ("tree", "steps", "text", "node", "requests")
"""Panes above them."""


@dataclass(frozen=True)
class PaneName:
    """What a pane is called on tabs."""

    name: str
    short: str


NAMES: Final = {
    "tree": PaneName("Tree", "Tree"),
    "steps": PaneName("Steps", "Steps"),
    "text": PaneName("Text", "Text"),
    "node": PaneName("Node", "Node"),
    "requests": PaneName("Requests", "Req"),
    "journal": PaneName("Journal", "Journal"),
    "findings": PaneName("Findings", "Find"),
    "tensors": PaneName("Tensors", "Tens"),
    "timing": PaneName("Timing", "Time"),
    "stacks": PaneName("Stacks", "Stack"),
    "curve": PaneName("Depth curve", "Curve"),
}

CSS: Final = """
Workbench { layout: vertical; background: $background; color: $text; }
#panes { display: none; background: $panel; }
#body { height: 1fr; layout: horizontal; }
#left { width: 30; }
#right { width: 30; }
Workbench.-tight #left { width: 26; }
Workbench.-tight #right { width: 26; }
#centre { width: 1fr; }
Workbench.-roomy #left { width: 33; }
Workbench.-roomy #right { width: 35; }
Workbench.-wide #left { width: 40; }
Workbench.-wide #right { width: 46; }

#body LinePane { border: round $border-blurred; border-title-color: $text-muted; border-subtitle-color: $text-disabled;
    background: $background; }
#body LinePane:focus { border: round $border; border-title-color: $text; border-title-style: bold; }
#body LinePane:focus:nocolor { border: heavy $border; border-title-style: bold reverse; }
.-theme-ddscope-contrast #body LinePane:focus { border: heavy $border; }
#requests { height: 4; }
#steps, #tree, #node { height: 1fr; }
#text { height: 6; }
Workbench.-low #text { height: 5; }
Workbench.-tall #text { height: 9; }

#bottom { height: 11; }
Workbench.-low #bottom { height: 8; }
Workbench.-tall #bottom { height: 17; }
#deck { height: 1fr; border: round $border-blurred; border-top: none; border-subtitle-color: $text-disabled; }
#deck:focus-within { border: round $border; border-top: none; }
#deck LinePane { height: 1fr; border: none; background: $background; }

Workbench.-single #panes { display: block; }
Workbench.-single #strip { display: none; }
Workbench.-single #left, Workbench.-single #centre, Workbench.-single #right, Workbench.-single #body,
Workbench.-single #bottom, Workbench.-single LinePane { display: none; }
Workbench.-single #left.-shown, Workbench.-single #centre.-shown, Workbench.-single #right.-shown {
    display: block; width: 1fr; }
Workbench.-single #body.-shown, Workbench.-single #bottom.-shown { display: block; height: 1fr; }
Workbench.-single LinePane.-shown { display: block; height: 1fr; width: 1fr; }
Workbench.-single #deck { border: round $border-blurred; }
Workbench.-single #deck:focus-within { border: round $border; }
"""


def is_single(width: int, height: int, zoomed: bool) -> bool:
    """Whether one pane is shown at a time."""
    return zoomed or width < NARROW_BELOW or height < LOW_BELOW


def size_classes(width: int, height: int) -> dict[str, bool]:
    """CSS classes of the workbench for a size: how wide the outer columns and how high the lower panes are."""
    return {
        "-tight": width < 112,
        "-roomy": width >= 132,
        "-wide": width >= 160,
        "-low": height < 36,
        "-tall": height >= 50,
    }
