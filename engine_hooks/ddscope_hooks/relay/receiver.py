"""The process that does an emitter's work: takes entries off a pipe and puts them into the ring of an `Emitter`.

Ends when the pipe does. Token texts are asked of the server, each id once and all of a message together, as each
question interrupts it; viewers' commands are handed to it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
from collections.abc import Iterable, Sequence
from typing import Any

from ddscope_hooks.emit import EmitError, Emitter, Later
from ddscope_hooks.relay.frames import Reader, Writer

LOOK_S = 0.005
"""How often to look whether somebody watches; the server is told of a change."""
WROTE_LOOKS = 20
"""After so many looks the server is told what its steps made as lines. Each message wakes one of its threads."""
TEXT_S = 5.0


def main() -> None:
    """Serve until the pipe at stdin ends. What anything prints goes to stderr: stdout is the pipe back."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # one to all of the server's processes: what comes last is told
    back = os.dup(1)
    os.dup2(2, 1)
    Receiver(Reader(0), Writer(back)).run()


class Receiver:
    """One emitter behind a pipe."""

    def __init__(self, reader: Reader, writer: Writer) -> None:
        self._reader = reader
        self._writer = writer
        self._texts: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._asking = threading.Lock()
        self._known: dict[int, str | bytes] = {}  # until the emitter has told it
        self._learned: set[int] = set()
        self._waiting: queue.Queue[list[tuple[Any, ...]]] = queue.Queue()
        self._wrote = 0
        self._told_wrote = 0
        self._ended = threading.Event()

    def run(self) -> None:
        """Until the pipe ends or the server says so."""
        first = self._reader.receive()
        if first is None:
            return
        _, src, header, ring, text, control = first
        emitter = Emitter(
            src,
            header,
            ring=ring,
            token_text=self._ask if text else None,
            on_control=lambda message: self._say("control", message),
            control=control,
        )
        threading.Thread(target=self._look, args=(emitter,), name="ddscope-relay-look", daemon=True).start()
        threading.Thread(target=self._feed, args=(emitter, text), name="ddscope-relay-feed", daemon=True).start()
        timeout = 2.0
        while (message := self._reader.receive()) is not None:
            kind = message[0]
            if kind == "entries":
                self._waiting.put(message[1])
            elif kind == "texts":
                self._texts.put(message[1:])
            elif kind == "call":
                # Not here: a call may wait for the writer thread, and that for texts, which come through here.
                threading.Thread(target=self._call, args=(emitter, *message[1:]), daemon=True).start()
            elif kind == "close":
                timeout = message[1]
                break
        else:
            self._texts.put(None)  # nobody is there to answer
        threading.Thread(target=self._last_texts, daemon=True).start()
        self._waiting.join()
        emitter.close(timeout)
        self._ended.set()

    def _last_texts(self) -> None:
        """While the emitter ends: what it still asks for."""
        while (message := self._reader.receive()) is not None:
            if message[0] == "texts":
                self._texts.put(message[1:])
        self._texts.put(None)

    def _feed(self, emitter: Emitter, text: bool) -> None:
        """Put entries into the ring once the texts of all of their ids are here. A thread: those come through `run`."""
        while True:
            entries = self._waiting.get()
            if text and emitter.watched:
                try:
                    self._learn(set[int]().union(*map(_ids, entries)))
                except Exception as error:
                    text = False  # the emitter asks, and knows what to do when it gets no answer
                    emitter.fault("relay texts", error)
            for entry in entries:
                self._put(emitter, entry)
            self._waiting.task_done()

    def _put(self, emitter: Emitter, entry: tuple[Any, ...]) -> None:
        kind, told, *_, last = entry
        if kind == "lost":
            emitter.put("gap", {"of": emitter.src, "count": told, "reason": last}, entry[2])
        elif kind == "later":
            emitter.put("later", Later(told, entry[2].records, self._count, entry[2].ids), last)
        else:
            emitter.put(kind, told, last)

    def _count(self, size: int) -> None:
        self._wrote += size

    def _call(self, emitter: Emitter, number: int, name: str, args: tuple[Any, ...]) -> None:
        """Answer with (True, what it gave) or (False, the sentence of an EmitError)."""
        self._waiting.join()  # what was emitted before counts
        try:
            told = emitter.counters if name == "counters" else getattr(emitter, name)(*args)
            self._say("answer", number, True, told)
        except EmitError as error:
            self._say("answer", number, False, str(error))

    def _ask(self, ids: Sequence[int]) -> Sequence[str | bytes]:
        """On the writer thread: the server's texts of ids, which it wants once."""
        self._learn(ids)
        return [self._known.pop(number, "") for number in ids]

    def _learn(self, ids: Iterable[int]) -> None:
        """Ask the server for those that it was not asked for yet. One question at a time."""
        with self._asking:
            new = [number for number in ids if number >= 0 and number not in self._learned]
            if not new:
                return
            self._say("untold", new)
            while not self._learned.issuperset(new):
                answer = self._texts.get(timeout=TEXT_S)
                if answer is None:
                    self._texts.put(None)
                    return  # the server has ended
                self._known.update(zip(*answer, strict=True))
                self._learned.update(answer[0])

    def _look(self, emitter: Emitter) -> None:
        watched, looks = False, 0
        while not self._ended.wait(LOOK_S):
            looks += 1
            if emitter.watched != watched:
                watched = not watched
                self._say("watched", watched)
            wrote = self._wrote
            if wrote != self._told_wrote and looks % WROTE_LOOKS == 0:
                self._say("wrote", wrote - self._told_wrote)
                self._told_wrote = wrote

    def _say(self, *message: Any) -> None:
        with contextlib.suppress(OSError):  # the server is gone; its pipe ends next
            self._writer.send(message)


def _ids(entry: tuple[Any, ...]) -> Iterable[int]:
    """Token ids that an entry uses."""
    if entry[0] == "later":
        ids: Iterable[int] = entry[2].ids()
        return ids
    return (entry[1].get("prompt_ids") or ()) if entry[0] == "request" else ()
