"""What every part of the workbench stands on: the session, the time cursor, the keys, and how things are said."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal

from rich.text import Text
from textual.binding import BindingsMap
from textual.dom import DOMNode
from textual.screen import Screen

from ddscope.model import Record
from ddscope.session import Cursor, Session, SessionError, Store
from ddscope.sources import SourceError
from ddscope.trace import Unknown
from ddscope.tui.actions import Keys, Need, available

Severity = Literal["information", "warning", "error"]


class Bench(Screen[None]):
    """Base of the workbench and of the groups of its actions. Panes are known to the workbench alone."""

    def __init__(self, session: Session, keys: Keys, clock: Callable[[], float]) -> None:
        super().__init__()
        self.session = session
        self.keys = keys
        self.clock = clock
        """Seconds of a clock that only playback reads; tests give their own."""
        self.cursor = Cursor(session.store)
        self.offers: frozenset[Need] = offers_of(session)

    @property
    def store(self) -> Store:
        """What is known."""
        return self.session.store

    def say(self, text: str, severity: Severity = "information") -> None:
        """Tell the person something for a moment. Never markup: foreign text may be in it."""
        self.app.notify(text, severity=severity, markup=False)

    def moved(self) -> None:
        """The time cursor was moved by a person: draw everything anew."""
        raise NotImplementedError

    def show_pane(self, name: str, *, focus: bool = True) -> None:
        """Make a pane visible and give it the keys."""
        raise NotImplementedError

    def command(self, command: str, **args: Any) -> None:
        """Give the engine a command; it answers with records, so nothing is assumed to have happened."""
        try:
            self.session.control(command, **args)
        except (SessionError, SourceError) as problem:
            self.say(str(problem), "error")

    def record_here(self) -> Record | Unknown | None:
        """The record the time cursor stands at."""
        number = self.cursor.record
        return self.store.record(number) if number is not None and number < self.store.n else None


def offers_of(session: Session) -> frozenset[Need]:
    """What the session can do."""
    offers = {Need.FILE, Need.LIVE if session.is_live else Need.REPLAY}
    if session.can_control:
        offers.add(Need.CONTROL)
    if session.attached:
        offers.add(Need.SERVER)
    if session.hosts:
        offers.add(Need.HOST)
    return frozenset(offers)


def plain(text: str) -> Text:
    """Text for a title or subtitle, never markup."""
    return Text(text)


def rebind(node: DOMNode, keys: Keys, scope: str, offers: Iterable[Need] = frozenset(Need)) -> None:
    """Give a screen or pane the keys of its scope, the user's where there are some, without what cannot be done."""
    can = {action.id for action in available(offers) if hasattr(node, f"action_{action.id}")}
    node._bindings = BindingsMap([binding for binding in keys.bindings(scope) if binding.action in can])
