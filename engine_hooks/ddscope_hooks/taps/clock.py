"""Moments of a forward pass: on a CUDA device events of its stream, elsewhere the host's clock.

On a GPU the host only launches work, so its clock says nothing about stages. Events are read on the writer thread,
after the server itself has waited for the stream. They cost the host more than a clock, so not every pass has them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

STAGES = (("draft", "draft", "verify"), ("verify", "verify", "verified"), ("commit", "verified", "committed"),
          ("total", "draft", "committed"))  # fmt: skip
EVENTS_EVERY_NS = 10_000_000
"""A pass that begins sooner after one that was timed by events is not timed: of a fast target's passes, one of some."""
_spare: deque[Any] = deque(maxlen=256)


class Clock:
    """Marks of one pass. Domain "host" or "cuda_event"; a pass that has marks of both keeps those of the device."""

    __slots__ = ("_device", "_host", "began")

    def __init__(self, began: int) -> None:
        """began: monotonic ns."""
        self.began = began
        self._host: dict[str, int] = {"draft": began}
        self._device: dict[str, Any] = {}

    def mark(self, name: str, tensor: Any = None) -> None:
        """Now. tensor: any of the pass; None is the host."""
        if tensor is None or not tensor.is_cuda:
            self._host[name] = time.monotonic_ns()
            return
        try:
            event = _spare.pop()
        except IndexError:
            import torch

            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        self._device[name] = event

    @property
    def next(self) -> int:
        """When (monotonic ns) the next pass may be timed."""
        return self.began + EVENTS_EVERY_NS if self._device else 0

    def read(self) -> tuple[dict[str, int], str]:
        """(µs by stage, domain). For the writer thread, after the stream was waited for."""
        if not self._device:
            host = self._host
            return {stage: (host[b] - host[a]) // 1000 for stage, a, b in STAGES if a in host and b in host}, "host"
        events, self._device = self._device, {}
        times = {
            stage: round(events[a].elapsed_time(events[b]) * 1000)
            for stage, a, b in STAGES
            if a in events and b in events
        }
        _spare.extend(events.values())
        return times, "cuda_event"
