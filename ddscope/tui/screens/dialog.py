"""What dialogs share: a box over the workbench, fields with labels on one line each, one line for what is wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, TypeVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Input, Static

T = TypeVar("T")


class Dialog(ModalScreen[T | None]):
    """A modal box. Subclasses give `fields` and finish with `dismiss`; Escape closes with None."""

    DEFAULT_CSS = """
    Dialog { align: center middle; background: $background 60%; }
    Dialog #box {
        width: 76; max-width: 96%; height: auto; max-height: 94%;
        border: round $border; border-title-style: bold; border-title-color: $text;
        background: $surface; padding: 1 2;
    }
    Dialog .field { height: 1; margin-bottom: 1; }
    Dialog .label { width: 16; color: $text-muted; }
    Dialog .said { height: auto; color: $text-muted; }
    Dialog .wrong { height: auto; color: $error; text-style: bold; }
    Dialog Input { width: 1fr; background: $background; }
    Dialog Input:focus { background: $background; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "Close", show=False)]
    TITLE_TEXT: ClassVar[str] = ""
    FOOT: ClassVar[str] = "Enter takes it · Tab next field · Esc closes"

    def compose(self) -> ComposeResult:
        """The box around what a subclass yields."""
        with Vertical(id="box") as box:
            box.border_title = Text(self.heading())
            yield from self.fields()
            yield Static("", classes="wrong", id="wrong", markup=False)
            yield Static(self.FOOT, classes="said", id="foot", markup=False)

    def heading(self) -> str:
        """The title of the box."""
        return self.TITLE_TEXT

    def fields(self) -> Iterable[Widget]:
        """What the dialog asks."""
        return ()

    def wrong(self, sentence: str) -> None:
        """Say what is wrong with the input, in place."""
        self.query_one("#wrong", Static).update(Text(sentence))

    def action_close(self) -> None:
        """Leave without an answer."""
        self.dismiss(None)


def field(label: str, widget: Widget) -> Horizontal:
    """A label and a widget on one line."""
    return Horizontal(Static(label, classes="label", markup=False), widget, classes="field")


def entry(value: str, *, id: str, placeholder: str = "") -> Input:
    """A one-line input of one row."""
    return Input(value=value, id=id, placeholder=placeholder, compact=True, select_on_focus=True)


def whole_number(text: str, name: str, low: int, high: int) -> int:
    """A number a person typed. Raises ValueError with a sentence."""
    try:
        value = int(text.strip().replace(",", ""))
    except ValueError:
        raise ValueError(f"{name} takes a whole number, not {text.strip()!r}.") from None
    if not low <= value <= high:
        raise ValueError(f"{name} takes {low} to {high:,}, not {value:,}.")
    return value


def budget(text: str, high: int) -> int | str:
    """A tree's budget that a person typed, or auto. Raises ValueError with a sentence."""
    word = text.strip().lower()
    if word == "auto":
        return word
    try:
        return whole_number(text, "budget", 0, high)
    except ValueError:
        raise ValueError(f"budget takes 0 to {high:,} or auto, not {text.strip()}.") from None


def decimal(text: str, name: str, low: float, high: float) -> float:
    """A number with a fraction that a person typed. Raises ValueError with a sentence."""
    try:
        value = float(text.strip())
    except ValueError:
        raise ValueError(f"{name} takes a number, not {text.strip()!r}.") from None
    if not low <= value <= high:
        raise ValueError(f"{name} takes {low:g} to {high:g}, not {value:g}.")
    return value
