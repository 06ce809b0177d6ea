"""The workbench on the screen: panes draw values of `ddscope.session`, and one time cursor moves them all.

Textual is imported when `run` is called, so that commands without a screen do not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ddscope.diagnose import Diagnosis
    from ddscope.session import Session

__all__ = ["run"]


def run(
    session: Session,
    *,
    theme: str | None = None,
    speed: float | None = None,
    diagnosis: Diagnosis | None = None,
) -> None:
    """Show a started session until the person leaves.

    theme: dark, light or high-contrast. speed: play at once, at this many times the recorded speed.
    diagnosis: one that the session feeds (`session.observe`); without it the workbench feeds its own.
    A keymap that cannot be used is said on the screen in one sentence, and the keys are the usual ones.
    """
    from ddscope.tui.actions import DEFAULT_KEYS
    from ddscope.tui.app import DdscopeApp
    from ddscope.tui.keymap import KeymapError, load_keymap, settle

    notices: tuple[str, ...] = ()
    try:
        keys = settle(load_keymap())
    except KeymapError as problem:
        keys, notices = DEFAULT_KEYS, (str(problem),)
    DdscopeApp(session, keys=keys, theme=theme, speed=speed, diagnosis=diagnosis, notices=notices).run()
