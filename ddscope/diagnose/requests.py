"""What detectors need to know about requests and steps: greedy, cached, where the output starts, what was emitted."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ddscope.model import Control, Finish, Record, Request, Step

MAX_OPEN = 4096
"""Open requests remembered; a stream that loses its `finish` records must not grow for ever."""


@dataclass(frozen=True, slots=True)
class RequestInfo:
    """From the `request` record. greedy: temperature 0; None when the record does not say."""

    prompt_len: int
    greedy: bool | None
    cached: int | None
    prompt_ids: list[int] | None


class Requests:
    """The open requests by (source, rid)."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str], RequestInfo] = {}

    def observe(self, record: Record) -> None:
        """Takes in `request`, `finish`, and the `control` that changes the temperature; anything else is ignored."""
        if isinstance(record, Request):
            temperature = record.sampling.get("temperature")
            known = isinstance(temperature, int | float) and not isinstance(temperature, bool)
            while len(self._open) >= MAX_OPEN:
                del self._open[next(iter(self._open))]
            self._open[record.src, record.rid] = RequestInfo(
                record.prompt_len, temperature == 0 if known else None, record.cached_tokens, record.prompt_ids
            )
        elif isinstance(record, Control):
            if record.command == "set" and "temperature" in record.args:
                self._open = {key: replace(info, greedy=None) for key, info in self._open.items()}
        elif isinstance(record, Finish):
            self._open.pop((record.src, record.rid), None)

    def get(self, record: Step) -> RequestInfo | None:
        """The request of a step, when its `request` record was seen."""
        return self._open.get((record.src, record.rid))

    def greedy(self, step: Step) -> bool | None:
        """Whether the step chose by argmax: by its own flag, else by the request's temperature, else unknown."""
        flags = step.flags
        if flags is not None and flags.sampled is not None:
            return not flags.sampled
        info = self._open.get((step.src, step.rid))
        return None if info is None else info.greedy


def emitted_by(step: Step) -> int:
    """Tokens of a step's output, as τ counts them everywhere: what was emitted, else what the path would emit."""
    return len(step.emitted) if step.emitted is not None else len(step.path or ())
