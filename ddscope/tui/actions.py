"""Every action of the screen, once: bindings, palette, help, key hints, the keymap and docs/keys.md come from here.

An action named `go_live` is the method `action_go_live` of the workbench, or of the pane named in `scope`. Nothing is
done here; an action that the session cannot do (engine keys on a replay) is neither bound, listed nor hinted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from textual.binding import Binding


class Need(Enum):
    """What a session must offer for an action to make sense."""

    NOTHING = "nothing"
    CONTROL = "an engine that takes commands"
    SERVER = "a running server that is not ours"
    HOST = "a host that is watched"
    LIVE = "a live source"
    REPLAY = "a finished trace"
    FILE = "a trace that can be written"


@dataclass(frozen=True)
class Action:
    """One thing a person can do. `title` reads on its own in the palette; `keys` are Textual's key names."""

    id: str
    keys: tuple[str, ...]
    group: str
    title: str
    needs: Need = Need.NOTHING
    scope: str = ""


TIME, FIND, PANES, MARKS, ENGINE, APP = "Time", "Find", "Panes", "Marks and copies", "Engine", "Program"
SERVER = "Server"
LISTS, TREE = "In a list", "In the tree"
GROUPS: Final = (TIME, FIND, PANES, LISTS, TREE, MARKS, ENGINE, SERVER, APP)

TABS: Final = ("journal", "findings", "tensors", "timing", "stacks", "curve")
"""Bottom tabs in their order; 1 to 6 show them."""

REGISTRY: Final[tuple[Action, ...]] = (
    Action("step_back", ("left", "h", "comma"), TIME, "Step back"),
    Action("step_forward", ("right", "l", "full_stop"), TIME, "Step forward"),
    Action("first_step", ("home",), TIME, "First step of the request"),
    Action("go_live", ("end", "f"), TIME, "Newest step, and follow it"),
    Action("hold", ("space",), TIME, "Hold the view, or let it run"),
    Action("slower", ("less_than_sign",), TIME, "Play slower", Need.REPLAY),
    Action("faster", ("greater_than_sign",), TIME, "Play faster", Need.REPLAY),
    Action("previous_anomaly", ("left_square_bracket",), TIME, "Previous anomaly"),
    Action("next_anomaly", ("right_square_bracket",), TIME, "Next anomaly"),
    Action("previous_request", ("left_curly_bracket",), TIME, "Previous request"),
    Action("next_request", ("right_curly_bracket",), TIME, "Next request"),
    Action("goto", ("g", "colon"), TIME, "Go to a step by its number"),
    Action("search", ("slash",), FIND, "Search text, tokens, journal"),
    Action("next_match", ("n",), FIND, "Next match"),
    Action("previous_match", ("N",), FIND, "Previous match"),
    Action("filter_journal", ("ampersand",), FIND, "Filter the journal by text"),
    Action("filter_priority", ("P",), FIND, "Filter the journal by priority"),
    Action("filter_unit", ("U",), FIND, "Filter the journal by source"),
    Action("next_pane", ("tab",), PANES, "Next pane"),
    Action("previous_pane", ("shift+tab",), PANES, "Previous pane"),
    Action("zoom", ("z",), PANES, "Maximise the pane, or back"),
    Action("outline", ("t",), PANES, "Tree as sentence or outline"),
    Action("probabilities", ("p",), PANES, "Probabilities beside the nodes"),
    Action("show_journal", ("1",), PANES, "Show the journal"),
    Action("show_findings", ("2",), PANES, "Show the findings"),
    Action("show_tensors", ("3",), PANES, "Show the tensors"),
    Action("show_timing", ("4",), PANES, "Show the stage times"),
    Action("show_stacks", ("5",), PANES, "Show the stacks"),
    Action("show_curve", ("6",), PANES, "Show the depth curve"),
    Action("line_up", ("up", "k"), LISTS, "Line up", scope="list"),
    Action("line_down", ("down", "j"), LISTS, "Line down", scope="list"),
    Action("page_up", ("pageup",), LISTS, "Page up", scope="list"),
    Action("page_down", ("pagedown",), LISTS, "Page down", scope="list"),
    Action("open", ("enter",), LISTS, "Open, close, or jump there", scope="list"),
    Action("to_parent", ("left", "h"), TREE, "To the parent", scope="tree"),
    Action("to_child", ("right", "l"), TREE, "To the first child", scope="tree"),
    Action("to_above", ("up", "k"), TREE, "To the node above", scope="tree"),
    Action("to_below", ("down", "j"), TREE, "To the node below", scope="tree"),
    Action("to_root", ("circumflex_accent",), TREE, "To the root", scope="tree"),
    Action("to_path_end", ("dollar_sign",), TREE, "To the end of the path", scope="tree"),
    Action("screen_up", ("pageup",), TREE, "A screenful up", scope="tree"),
    Action("screen_down", ("pagedown",), TREE, "A screenful down", scope="tree"),
    Action("toggle_fold", ("enter",), TREE, "Open or close the fold", scope="tree"),
    Action("toggle_all", ("asterisk",), TREE, "Open all folds, or fold again", scope="tree"),
    Action("bookmark", ("m",), MARKS, "Bookmark this moment", Need.FILE),
    Action("note", ("M",), MARKS, "Write a note at this moment", Need.FILE),
    Action("marks", ("apostrophe",), MARKS, "Bookmarks and notes: list, jump"),
    Action("copy", ("y",), MARKS, "Copy what is under the cursor"),
    Action("prompt", ("i",), ENGINE, "New prompt", Need.CONTROL),
    Action("engine_pause", ("e",), ENGINE, "Pause or resume the engine", Need.CONTROL),
    Action("engine_step", ("s",), ENGINE, "Run the engine one step", Need.CONTROL),
    Action("continue", ("c",), ENGINE, "Continue after a break", Need.CONTROL),
    Action("breakpoints", ("b",), ENGINE, "Breakpoints", Need.CONTROL),
    Action("budget_up", ("plus",), ENGINE, "Next larger tree budget", Need.CONTROL),
    Action("budget_down", ("minus",), ENGINE, "Next smaller tree budget", Need.CONTROL),
    Action("temperature", ("T",), ENGINE, "Next temperature: 0, 0.7, 1", Need.CONTROL),
    Action("algorithm", ("a",), ENGINE, "Next algorithm", Need.CONTROL),
    Action("settings", ("o",), ENGINE, "All settings, self-check", Need.CONTROL),
    Action("check_now", ("v",), ENGINE, "Self-check the next step", Need.CONTROL),
    Action("abort", ("X",), ENGINE, "Abort the request", Need.CONTROL),
    Action("hooks", ("H",), SERVER, "Taps, ranks, versions of the server"),
    Action("sampling", ("S",), SERVER, "What the server records", Need.SERVER),
    Action("flush", ("F",), SERVER, "Flush what the server holds back", Need.SERVER),
    Action("dump_stacks", ("D",), SERVER, "Take stacks of the server now", Need.HOST),
    Action("record_on_host", ("R",), SERVER, "Record on the server's host, or stop", Need.SERVER),
    Action("help", ("question_mark", "f1"), APP, "Keys"),
    Action("command_palette", ("ctrl+p",), APP, "Palette of all actions", scope="app"),
    Action("theme", ("ctrl+t",), APP, "Next theme"),
    Action("back", ("escape",), APP, "Undo: maximised pane, filter"),
    Action("quit", ("q", "ctrl+q", "ctrl+c"), APP, "Quit", scope="app"),
)

BY_ID: Final[Mapping[str, Action]] = {action.id: action for action in REGISTRY}

GLYPHS: Final[Mapping[str, str]] = {
    "left": "←", "right": "→", "up": "↑", "down": "↓", "comma": ",", "full_stop": ".", "slash": "/", "colon": ":",
    "question_mark": "?", "ampersand": "&", "apostrophe": "'", "plus": "+", "minus": "-", "less_than_sign": "<",
    "greater_than_sign": ">", "left_square_bracket": "[", "right_square_bracket": "]", "left_curly_bracket": "{",
    "right_curly_bracket": "}", "escape": "Esc", "enter": "Enter", "home": "Home", "end": "End", "pageup": "PgUp",
    "pagedown": "PgDn", "tab": "Tab", "shift+tab": "Shift+Tab", "f1": "F1", "backspace": "Backspace",
    "delete": "Del", "space": "Space", "circumflex_accent": "^", "dollar_sign": "$", "asterisk": "*",
    "equals_sign": "=", "semicolon": ";", "quotation_mark": '"',
}  # fmt: skip


def key_text(key: str) -> str:
    """A key as it is printed on the screen: `ctrl+p` as ^p, `left_square_bracket` as [."""
    if key in GLYPHS:
        return GLYPHS[key]
    return f"^{key[5:]}" if key.startswith("ctrl+") and len(key) == 6 else key


@dataclass(frozen=True)
class Keys:
    """The registry with a user's keymap laid over it."""

    overrides: Mapping[str, tuple[str, ...]]

    def of(self, action: Action | str) -> tuple[str, ...]:
        """Textual key names of an action, the user's where there are some."""
        action = BY_ID[action] if isinstance(action, str) else action
        return self.overrides.get(action.id, action.keys)

    def text(self, action: Action | str) -> str:
        """All keys of an action as printed, e.g. "← h ,"."""
        return " ".join(key_text(key) for key in self.of(action))

    def short(self, action: Action | str) -> str:
        """The first key as printed, empty when the user took all keys away."""
        keys = self.of(action)
        return key_text(keys[0]) if keys else ""

    def bindings(self, scope: str = "") -> list[Binding]:
        """Textual bindings of one scope. Nothing is shown by Textual's own footer, so show is off."""
        return [
            Binding(key, action.id, action.title, show=False, id=action.id)
            for action in REGISTRY
            if action.scope == scope
            for key in self.of(action)
        ]


DEFAULT_KEYS: Final = Keys({})


def available(offers: Iterable[Need]) -> list[Action]:
    """Actions that a session can do, in the order of the registry."""
    can = {Need.NOTHING, *offers}
    return [action for action in REGISTRY if action.needs in can]


@dataclass(frozen=True)
class Hint:
    """A word of the footer: the first keys of some actions, then what they do."""

    actions: tuple[str, ...]
    word: str


STEP = Hint(("step_back", "step_forward"), "step")
HOLD = Hint(("hold",), "hold")
LINE = Hint(("line_up", "line_down"), "line")
OPEN = Hint(("open",), "open")

HINTS: Final[tuple[Hint, ...]] = (
    STEP,
    HOLD,
    Hint(("engine_pause",), "pause engine"),
    Hint(("engine_step",), "one step"),
    Hint(("prompt",), "prompt"),
    Hint(("breakpoints",), "break"),
    Hint(("hooks", "sampling"), "server, sampling"),
    Hint(("previous_anomaly", "next_anomaly"), "anomaly"),
    Hint(("search",), "search"),
    Hint(("settings",), "settings"),
    Hint(("next_pane",), "pane"),
    Hint(("outline",), "outline"),
    Hint(("copy",), "copy"),
    Hint(("bookmark",), "mark"),
    Hint(("zoom",), "maximise"),
    Hint(("help",), "keys"),
    Hint(("command_palette",), "palette"),
)
"""What the footer may say, most useful first; the last two always stay."""

PANE_HINTS: Final[Mapping[str, tuple[Hint, ...]]] = {
    "tree": (
        Hint(("to_parent", "to_above", "to_below", "to_child"), "node"),
        STEP,
        HOLD,
        Hint(("outline",), "outline"),
        Hint(("probabilities",), "probabilities"),
    ),
    "journal": (LINE, OPEN, Hint(("filter_journal",), "filter"), Hint(("filter_priority",), "priority")),
    "findings": (LINE, OPEN),
    "tensors": (LINE, OPEN),
    "stacks": (LINE, OPEN, Hint(("dump_stacks",), "take stacks")),
}
"""What comes first while a pane has the keys, by the pane's name."""
