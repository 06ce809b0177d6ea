"""What the commands with a screen check before they take the terminal."""

from __future__ import annotations

import sys

from ddscope.cli.errors import CommandError


def need_terminal() -> None:
    """Raises CommandError where there is no terminal to draw on."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise CommandError(
            "The workbench needs a terminal, and this is none; use `ddscope run --headless`, `ddscope findings` or "
            "`ddscope trace stats`."
        )
