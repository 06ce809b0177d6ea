"""What tabs and key hints say: pure functions of what the panes hold and what the session can do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ddscope.diagnose import SEVERITIES, Finding
from ddscope.tui.actions import HINTS, PANE_HINTS, REGISTRY, STEP, Hint, Keys, Need, available, key_text
from ddscope.tui.screens import layout
from ddscope.tui.widgets.keys import KeyHint
from ddscope.tui.widgets.tabs import Tab

TREE_KEYS = {key for action in REGISTRY if action.scope == "tree" for key in action.keys}
"""Keys that mean something else while the tree has them."""


def severities(findings: Iterable[Finding]) -> dict[str, str]:
    """The worst severity by request."""
    worst: dict[str, str] = {}
    for finding in findings:
        if finding.rid is not None:
            held = worst.get(finding.rid, "info")
            worst[finding.rid] = max(held, finding.severity, key=_rank)
    return worst


def _rank(severity: str) -> int:
    return list(SEVERITIES).index(severity) if severity in SEVERITIES else -1


def tabs(names: Sequence[str], *, log_lines: int, findings: Sequence[Finding], mismatches: int) -> tuple[Tab, ...]:
    """Tabs with what waits behind them."""
    worst = findings[0].severity if findings else ""
    signs = {"critical": " ✗", "high": " ✗", "warning": " !"}
    badges = {
        "journal": (f"{log_lines:,}" if log_lines else "", ""),
        "findings": (f"{len(findings)}{signs.get(worst, '')}" if findings else "", worst),
        "tensors": (f"{mismatches} ✗" if mismatches else "", "high" if mismatches else ""),
    }
    made = []
    for name in names:
        badge, severity = badges.get(name, ("", ""))
        made.append(
            Tab(name, layout.NAMES[name].name, layout.NAMES[name].short, badge, severity, name == layout.DECK[0])
        )
    return tuple(made)


def hints(
    keys: Keys, offers: Iterable[Need], *, focus: str, engine: str, live: bool, playing: bool
) -> tuple[KeyHint, ...]:
    """Key hints for the pane that has the keys and for what the engine does."""
    can = {action.id for action in available(offers)}
    first = PANE_HINTS.get(focus, ())
    order = [*first, *(hint for hint in HINTS if hint not in first)]
    if engine in ("paused", "break"):
        rest = [hint for hint in order if not hint.actions[0].startswith("engine_")]
        order = [Hint(("continue",), "continue"), Hint(("engine_step",), "one step"), *rest]
    words = {"hold": ("hold" if live else "stop" if playing else "play")}
    made = []
    for hint in order:
        if not all(action in can for action in hint.actions):
            continue
        text = _keys_of(hint, keys, in_tree=focus == "tree")
        if text:
            made.append(KeyHint(text, words.get(hint.actions[0], hint.word), hint.actions[0]))
    return tuple(made)


def _keys_of(hint: Hint, keys: Keys, *, in_tree: bool) -> str:
    """First keys of the actions: "←→", or ", ." while the arrows belong to the tree."""
    if hint is STEP and in_tree:
        free = [[key for key in keys.of(action) if key not in TREE_KEYS] for action in hint.actions]
        return " ".join(key_text(some[0]) for some in free if some)
    texts = [keys.short(action) for action in hint.actions]
    if not all(texts):
        return ""
    return "".join(texts) if all(text in "←→↑↓" for text in texts) else " ".join(texts)
