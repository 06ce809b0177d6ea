"""Foreign text on the screen (tokens, prompts, log lines, host names): how it looks, how wide it is, how it is cut.

Nothing here parses markup: text goes from `str` to `Content` or `Segment` as it is. What a character looks like is
`ddscope.session.tokens.visible`; this module adds cell widths, cutting and wrapping for panes that draw lines.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from rich.cells import cell_len
from textual.content import Content

from ddscope.session.tokens import NEWLINE, SPACE, visible

ELLIPSIS = "…"
MARKS_SHOWN = 3  # combining marks kept on one character; more would only pile up in one cell
_SELECTORS = re.compile("[\ufe00-\ufe0f]")
_NOT_ASCII = re.compile(r"[^ -~\n]")


def safe(text: str) -> str:
    """Text as it may be drawn: every control visible, no character that attaches to a neighbour. Idempotent.

    Spaces and newlines stay. Variation selectors behind a character are left out: they pick a glyph, and terminals
    disagree about its width.
    """
    if not _NOT_ASCII.search(text):
        return text
    return _tame_marks(visible(text))


def token(text: str) -> str:
    """`safe` on one line, with spaces as ␣ and newlines as ⏎: a token in a cell."""
    return safe(text).replace(" ", SPACE).replace("\n", NEWLINE)


def line(text: str) -> str:
    """`safe` on one line: newlines as ⏎, spaces as they are."""
    return safe(text).replace("\n", NEWLINE)


def _tame_marks(text: str) -> str:
    """Give a leading combining mark a base, drop selectors, count marks beyond MARKS_SHOWN instead of stacking them."""
    if text.isascii():
        return text
    out: list[str] = []
    marks = 0
    attached = False
    for char in text:
        if not unicodedata.category(char).startswith("M"):
            if marks > MARKS_SHOWN:
                out.append(f"⟨+{marks - MARKS_SHOWN} marks⟩")
            marks, attached = 0, char not in "\n "
            out.append(char)
        elif _SELECTORS.match(char):
            if not attached:
                out.append(f"⟨U+{ord(char):04X}⟩")
        else:
            if not attached:
                out.append("◌")
                attached = True
            marks += 1
            if marks <= MARKS_SHOWN:
                out.append(char)
    if marks > MARKS_SHOWN:
        out.append(f"⟨+{marks - MARKS_SHOWN} marks⟩")
    return "".join(out)


def cells(text: str) -> int:
    """Width in terminal cells."""
    return len(text) if text.isascii() else cell_len(text)


def head(text: str, width: int) -> str:
    """The longest beginning of `safe` text that fits into `width` cells."""
    if width <= 0:
        return ""
    text = text[: width * (MARKS_SHOWN + 1) + MARKS_SHOWN]
    if text.isascii():
        return text[:width]
    low, high = 0, len(text)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if cells(text[:middle]) <= width else (low, middle - 1)
    return text[:low]


def tail(text: str, width: int) -> str:
    """The longest end of `safe` text that fits into `width` cells and does not begin with a combining mark."""
    if width <= 0:
        return ""
    text = text[-(width * (MARKS_SHOWN + 1) + MARKS_SHOWN) :]
    if text.isascii():
        return text[-width:]
    low, high = 0, len(text)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if cells(text[middle:]) <= width else (middle + 1, high)
    while low < len(text) and unicodedata.category(text[low]).startswith("M"):
        low += 1
    return text[low:]


def elide(text: str, width: int) -> str:
    """`safe` text in at most `width` cells: the middle becomes … when it is too long. Both ends stay readable."""
    if cells(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    return head(text, width - 1 - (width - 1) // 2) + ELLIPSIS + tail(text, (width - 1) // 2)


def cut(text: str, width: int) -> str:
    """`safe` text in at most `width` cells, its end replaced by … when it is too long."""
    if cells(text) <= width:
        return text
    return head(text, width - 1) + ELLIPSIS if width > 0 else ""


def pad(text: str, width: int) -> str:
    """Text followed by spaces up to `width` cells; longer text stays as it is."""
    return text + " " * (width - cells(text))


def content(text: str, style: str = "") -> Content:
    """Foreign text as Content: shown as it is, never as markup."""
    return Content.styled(safe(text), style) if style else Content(safe(text))


def split(text: str, first: int, width: int) -> Iterator[str]:
    """`safe` text in parts: the first of at most `first` cells (perhaps empty), the others of at most `width`.

    A character that is wider than `width` is a part of its own.
    """
    at, room = 0, first
    while at < len(text):
        part = head(text[at : at + (room + 1) * (MARKS_SHOWN + 1)], room)
        if not part and room >= width:
            part = text[at]
        yield part
        at += len(part)
        room = width


_WORD = re.compile(r"\n|[^\S\n]+|[^\s]+")
_COLUMNS = re.compile(r"\S(?:\S| (?! ))*  +(?=\S)")


def hang(text: str, width: int) -> list[str]:
    """`wrap`, but of lines in columns (`✓ health    /health answers 200`) the last column goes on below itself."""
    lines: list[str] = []
    for line in text.split("\n"):
        columns = _COLUMNS.match(line)
        indent = cells(columns[0]) if columns is not None else 0
        if columns is None or indent > width // 2:
            lines += wrap(line, width)
        else:
            first, *rest = wrap(line[len(columns[0]) :], width - indent)
            lines += [columns[0] + first, *(" " * indent + more for more in rest)]
    return lines


def wrap(text: str, width: int) -> list[str]:
    """`safe` text in lines of at most `width` cells, broken at spaces, inside words only where a word is too long."""
    width = max(width, 1)
    lines: list[str] = []
    line, used = "", 0
    for match in _WORD.finditer(text):
        for word in split(match.group(), width, width):
            size = cells(word)
            if word == "\n" or used + size > width:
                lines.append(line.rstrip(" "))
                line, used = "", 0
                if word == "\n" or word.isspace():
                    continue
            line += word
            used += size
    lines.append(line.rstrip(" "))
    return lines
