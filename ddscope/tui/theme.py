"""The three themes and what each colour means: one Palette of Rich styles for panes that draw lines themselves.

Colour is never the only carrier of meaning, so every style that matters also differs in weight, dimness or underline;
with NO_COLOR only these remain. Layout (borders, paddings) is CSS in the screens, not here.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from typing import TYPE_CHECKING

from rich.color import Color
from rich.style import Style
from textual.theme import Theme

if TYPE_CHECKING:
    from textual.app import App


@dataclass(frozen=True)
class Inks:
    """The colours of one theme, as hex."""

    background: str
    surface: str
    panel: str
    border: str
    text: str
    muted: str
    faint: str
    green: str
    blue: str
    amber: str
    red: str
    violet: str
    selection: str
    dark: bool


DARK = Inks(
    background="#0d1117", surface="#161b22", panel="#161b22", border="#3d444d", text="#e6edf3", muted="#9198a1",
    faint="#767e88", green="#7ee787", blue="#79c0ff", amber="#e3b341", red="#ff7b72", violet="#d2a8ff",
    selection="#1f3a5f", dark=True,
)  # fmt: skip
LIGHT = Inks(
    background="#ffffff", surface="#f6f8fa", panel="#eef1f4", border="#b7bfc8", text="#1f2328", muted="#59636e",
    faint="#6e7781", green="#116329", blue="#0550ae", amber="#7d4e00", red="#b3151f", violet="#6639ba",
    selection="#cfe4ff", dark=False,
)  # fmt: skip
CONTRAST = Inks(
    background="#000000", surface="#000000", panel="#000000", border="#ffffff", text="#ffffff", muted="#e4e4e4",
    faint="#c6c6c6", green="#5fff87", blue="#87d7ff", amber="#ffff00", red="#ff8787", violet="#ffafff",
    selection="#00005f", dark=True,
)  # fmt: skip

INKS: dict[str, Inks] = {"ddscope-dark": DARK, "ddscope-light": LIGHT, "ddscope-contrast": CONTRAST}
THEME_NAMES: dict[str, str] = {"dark": "ddscope-dark", "light": "ddscope-light", "high-contrast": "ddscope-contrast"}
"""What a person types after --theme, and the name Textual knows."""


@dataclass(frozen=True)
class Palette:
    """Rich styles by meaning. Foregrounds only, except `cursor`, `selected`, `match` and the three badges."""

    text: Style
    muted: Style
    faint: Style
    strong: Style
    accepted: Style
    root: Style
    bonus: Style
    rejected: Style
    good: Style
    warn: Style
    bad: Style
    info: Style
    high: Style
    border: Style
    cursor: Style
    selected: Style
    match: Style
    badge: Style
    badge_warn: Style
    badge_bad: Style

    @classmethod
    def of(cls, app: App[object]) -> Palette:
        """The palette of the app's theme; one without colours when NO_COLOR is set."""
        return palette(app.theme, bool(getattr(app, "no_color", False)))


@cache
def palette(theme: str, no_color: bool = False) -> Palette:
    """Palette of a theme by Textual's name; an unknown theme (a user's own) gets the dark one."""
    inks = INKS.get(theme, DARK)
    coloured = _coloured(inks)
    return _attributes_only(coloured) if no_color else coloured


def _coloured(inks: Inks) -> Palette:
    def fg(color: str, bold: bool | None = None, dim: bool | None = None, underline: bool | None = None) -> Style:
        return Style(color=color, bold=bold, dim=dim, underline=underline)

    def badge(color: str) -> Style:
        return Style(color=inks.background, bgcolor=color, bold=True)

    return Palette(
        text=fg(inks.text),
        muted=fg(inks.muted),
        faint=fg(inks.faint),
        strong=fg(inks.text, bold=True),
        accepted=fg(inks.green, bold=True),
        root=fg(inks.blue, bold=True),
        bonus=fg(inks.amber, bold=True),
        rejected=fg(inks.faint),
        good=fg(inks.green),
        warn=fg(inks.amber),
        bad=fg(inks.red, bold=True),
        info=fg(inks.blue),
        high=fg(inks.violet, bold=True),
        border=fg(inks.border),
        cursor=Style(bgcolor=inks.selection, bold=True),
        selected=Style(bgcolor=inks.selection),
        match=Style(color=inks.background, bgcolor=inks.amber),
        badge=badge(inks.green),
        badge_warn=badge(inks.amber),
        badge_bad=badge(inks.red),
    )


REVERSED = frozenset({"cursor", "selected", "match", "badge", "badge_warn", "badge_bad"})
DIMMED = frozenset({"muted", "faint", "rejected", "border"})
UNDERLINED = frozenset({"root", "bad"})


def _attributes_only(source: Palette) -> Palette:
    """The same palette with weight, dimness, underline and reverse doing the work of colour."""
    styles: dict[str, Style] = {}
    for field in fields(source):
        style: Style = getattr(source, field.name)
        name = field.name
        styles[name] = Style(
            bold=style.bold or name in ("bonus", "warn") or None,
            dim=name in DIMMED or None,
            underline=name in UNDERLINED or None,
            reverse=name in REVERSED or None,
        )
    return Palette(**styles)


def _theme(name: str, inks: Inks) -> Theme:
    """The Textual theme, so that built-in widgets (inputs, palette, scrollbars) wear the same colours."""
    return Theme(
        name=name,
        primary=inks.blue,
        secondary=inks.violet,
        warning=inks.amber,
        error=inks.red,
        success=inks.green,
        accent=inks.amber,
        foreground=inks.text,
        background=inks.background,
        surface=inks.surface,
        panel=inks.panel,
        dark=inks.dark,
        variables={
            "text": inks.text,
            "text-muted": inks.muted,
            "text-disabled": inks.faint,
            "border": inks.blue,
            "border-blurred": inks.border,
            "block-cursor-background": inks.selection,
            "block-cursor-foreground": inks.text,
            "block-cursor-blurred-background": inks.selection,
            "scrollbar": inks.border,
            "scrollbar-hover": inks.muted,
            "scrollbar-active": inks.blue,
            "scrollbar-background": inks.background,
            "scrollbar-background-hover": inks.background,
            "scrollbar-background-active": inks.background,
            "scrollbar-corner-color": inks.background,
            "input-selection-background": f"{inks.blue} 35%",
            "footer-key-foreground": inks.text,
        },
    )


def themes() -> list[Theme]:
    """The three themes, to register with an App."""
    return [_theme(name, inks) for name, inks in INKS.items()]


def contrast_ratio(a: str, b: str) -> float:
    """WCAG 2.1 contrast of two hex colours, 1 to 21; the tests hold every ink to a floor."""

    def luminance(hex_color: str) -> float:
        triplet = Color.parse(hex_color).get_truecolor()
        parts = [c / 255 for c in (triplet.red, triplet.green, triplet.blue)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(a), luminance(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)
