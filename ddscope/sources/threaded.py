"""What every live source is: a thread with a state, begun by `start` and ended by `stop`, that waits between tries."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from typing import Literal

State = Literal["connecting", "connected", "lost"]


class Backoff:
    """Seconds to wait before the next try: `low` after something came, twice as long after every try in vain."""

    def __init__(self, low: float, high: float) -> None:
        self._low, self._high = low, high
        self._wait = low / 2

    def after(self, good: bool) -> float:
        """good: whether the last try was of use."""
        self._wait = self._low if good else min(self._wait * 2, self._high)
        return self._wait


class Threaded:
    """`state`: connecting (not there yet), connected or lost; `reason`: why, in a sentence, empty when all is well.

    name: of the thread. kept: what the sink is given, as the subject of a sentence. A subclass does its work in
    `_work` until `_stopped` is set.
    """

    def __init__(self, name: str, kept: str, reason: str) -> None:
        self.state: State = "connecting"
        self.reason = reason
        self._kept = kept
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(self._work,), name=f"source {name}", daemon=True)

    def start(self) -> None:
        """Begin in the background."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for it: nothing reaches the sink afterwards."""
        self._stopped.set()
        self._wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _wake(self) -> None:
        """Let the thread see that it is to stop, where it waits for something else."""

    def _work(self) -> None:
        raise NotImplementedError

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # the sink could not take it: nothing can be done here but say so and stop reading
            self._lose(f"{self._kept} cannot be kept: {error}")

    def _lose(self, reason: str) -> None:
        self.state, self.reason = "lost", reason


class Woken(Threaded):
    """One whose thread waits for file descriptors: `_woken` is one of them, readable when it is to stop."""

    def __init__(self, name: str, kept: str, reason: str) -> None:
        super().__init__(name, kept, reason)
        self._woken, self._waker = os.pipe()  # no program inherits them
        os.set_blocking(self._waker, False)

    def stop(self) -> None:
        """As `Threaded.stop`; may be called twice."""
        super().stop()
        for fd in (self._woken, self._waker):
            with contextlib.suppress(OSError):
                os.close(fd)
        self._woken = self._waker = -1

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._waker, b"s")
