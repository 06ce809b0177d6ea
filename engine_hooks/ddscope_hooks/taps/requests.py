"""The tap every other one needs: where passes begin and results are processed; requests, steps and ends of requests.

Works on what the server keeps on the host: requests, their output, accepted lists. Values of device tensors come with
the cargo, which other taps filled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ddscope_hooks.emit import Later
from ddscope_hooks.taps.core import RESULT, Cargo, Core
from ddscope_hooks.taps.hooks import Hook
from ddscope_hooks.taps.pack import Piece, unpack
from ddscope_hooks.taps.steps import Pass, Row, steps

NAME = "requests"
ALGORITHMS = None

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_RESULT = "sglang.srt.managers.utils.GenerationBatchResult"
_PROCESSOR = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
Fixed = tuple[str, int, bool]
Found = tuple[int, Fixed, int, int, int, "int | None", "int | None", Sequence[int], int]
"""A request of a pass as the hot thread finds it: arguments of `_row`."""
MAX_WAITING_BYTES = 64 << 20
"""Host copies that may wait in the ring; beyond it steps are left out, and counted."""


def hooks(core: Core) -> list[list[Hook]]:
    """One place in 0.5.17 and 0.5.23."""
    book = Requests(core)
    process = (f"{_PROCESSOR}.process_batch_result_decode", f"{_PROCESSOR}.process_batch_result_prefill")
    needs = ("self", "batch", "result")
    return [
        [
            Hook(f"{_SCHEDULER}.run_batch", "before", ("self", "batch"), book.begin, always=True),
            Hook(f"{_SCHEDULER}.run_batch", "after", (), core.end),
            Hook(f"{_RESULT}.copy_to_cpu", "before", ("self",), core.ship),
            Hook(process[0], "before", needs, book.arrive),
            Hook(f"{_PROCESSOR}._resolve_spec_v2_tokens", "after", ("result",), book.accepted),
            Hook(process[0], "after", needs, book.decoded, always=True),
            Hook(process[1], "before", needs, book.arrive),
            Hook(process[1], "after", needs, book.prefilled, always=True),
        ]
    ]


class _Seen:
    """What is known and was told of a request; rides on the server's own object, so nothing has to be forgotten.

    fixed: what all of its rows have in common: its id, the length of its prompt, whether it is sampled.
    """

    __slots__ = ("ended", "fixed", "rid", "steps", "told")

    def __init__(self, req: Any) -> None:
        self.rid = str(req.rid)
        self.fixed: Fixed = (self.rid, len(req.origin_input_ids), req.sampling_params.top_k != 1)
        self.steps = 0
        self.told = False
        self.ended = False


class Requests:
    """From results to records."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._wrote = core.sampling.wrote
        self._scheduler: Any = None

    def begin(self, scheduler: Any, batch: Any) -> None:
        """Before a pass."""
        core = self._core
        if self._scheduler is None:
            self._scheduler = scheduler
            core.meet(scheduler)
        core.begin(batch.reqs, batch.forward_mode.is_extend())

    def arrive(self, processor: Any, batch: Any, result: Any) -> None:
        """Before a result is processed: which requests it still counts for, and how long their output was."""
        cargo = getattr(result, RESULT, None)
        if cargo is None or not processor.is_generation:
            return
        cargo.live = [
            -1 if req.finished_reason is not None or req.is_retracted else len(req.output_ids) for req in batch.reqs
        ]
        if getattr(result, "copy_done", None) is None:
            self._core.ship(result)  # nothing was copied early: the processor itself waits for this stream

    def accepted(self, runs: Sequence[Sequence[int]], result: Any) -> None:
        """After the server has cut the accepted tokens of each request out of the result."""
        cargo = getattr(result, RESULT, None)
        if cargo is not None:
            cargo.runs = runs

    def decoded(self, _: Any, processor: Any, batch: Any, result: Any) -> None:
        """After a decode result was processed: a step for each request that it counted for."""
        cargo = getattr(result, RESULT, None)
        if cargo is not None and cargo.live is not None:
            rows = self._rows(cargo, batch, _lengths(cargo, result), 0)
            if rows or cargo.layers:
                self._tell(rows, cargo, processor, batch, result)
        self._ends(batch)

    def prefilled(self, _: Any, processor: Any, batch: Any, result: Any) -> None:
        """After a prefill result was processed. The first token of an output belongs to no step; any other does.

        Others come of requests that were retracted and of decode requests that were mixed into a prefill.
        """
        cargo = getattr(result, RESULT, None)
        if cargo is not None and cargo.live is not None:
            cargo.runs = None
            rows = self._rows(cargo, batch, None, 1)
            if rows:
                self._tell(rows, cargo, processor, batch, result)
        self._ends(batch)

    def _rows(self, cargo: Cargo, batch: Any, lengths: list[int] | None, first: int) -> list[Found]:
        """Each request that goes on, and that is recorded. The hot loop: no calls but these.

        lengths: of the paths, where the output alone does not tell them. first: an output that was shorter has no step.
        """
        core, runs, rows, left = self._core, cargo.runs, list[Found](), 0
        make = not cargo.skip and core.emitter.watched  # what nobody takes is counted, not made
        prefix = core.sampling.rid
        for slot, (req, before) in enumerate(zip(batch.reqs, cargo.live or (), strict=False)):
            if before < 0:
                continue
            seen = getattr(req, RESULT, None)
            if seen is None or not seen.told:
                seen = self._request(req)
            out = req.output_ids
            total = len(out)
            run = out[before:total] if runs is None else runs[slot]
            if before < first or not len(run):  # a beam's tokens lie elsewhere until it is done
                continue
            steps = seen.steps
            seen.steps = steps + 1
            if make and seen.told and (not prefix or seen.rid.startswith(prefix)):
                root = out[before - 1] if before else None
                length = len(run) if lengths is None else lengths[slot]
                rows.append((slot, seen.fixed, steps, before, total, req.finished_len, root, run, length))
            else:
                left += 1
        if left:
            core.sampling.leave_out(left)
        return rows

    def _tell(self, rows: list[Found], cargo: Cargo, processor: Any, batch: Any, result: Any) -> None:
        core, packed = self._core, cargo.packed
        emitter, sampling = core.emitter, core.sampling
        count = len(rows) + (packed is not None and cargo.layers > 0)
        if not count or not emitter.watched:
            return
        pieces = cargo.host
        if packed is not None and packed.shipped:
            if emitter.waiting * packed.size > MAX_WAITING_BYTES:
                sampling.leave_out(count)
                return
            pieces = [(packed.layout, packed.take()), *pieces]
        if sampling.left_out:
            core.flush()
        rid = rows[0][1][0] if rows else str(batch.reqs[0].rid)
        making = _Making(count, self._wrote, core, cargo, rows, len(batch.reqs), rid, pieces)
        making.graph, making.overlap = result.can_run_cuda_graph, processor.enable_overlap
        emitter.emit_later(making)

    def _request(self, req: Any) -> _Seen:
        """Tell of a request once, unless it is not to be recorded."""
        seen: _Seen | None = getattr(req, RESULT, None)
        if seen is None:
            seen = _Seen(req)
            setattr(req, RESULT, seen)
        if seen.told or seen.ended or not self._core.sampling.match(seen.rid):
            return seen
        seen.told = True
        self._core.flush()
        fields: dict[str, Any] = {
            "rid": seen.rid,
            "prompt_len": seen.fixed[1],
            "sampling": _sampling(req.sampling_params),
            "cached_tokens": int(req.cached_tokens),
        }
        if self._core.config.redact != "ids":
            fields["prompt_ids"] = getattr(req, "origin_input_ids_unpadded", None) or req.origin_input_ids
        self._core.emitter.emit("request", fields)
        return seen

    def _ends(self, batch: Any) -> None:
        """Of requests that were told of; also of a pass that was not recorded."""
        for req in batch.reqs:
            if req.finished_reason is not None and getattr(req, RESULT, None) is not None:
                self._end(req)

    def _end(self, req: Any) -> None:
        """Tell, once, that a request has ended."""
        seen: _Seen | None = getattr(req, RESULT, None)
        if seen is None or seen.ended:
            return
        seen.ended = True
        if seen.told:
            self._core.flush()
            fields = {"rid": seen.rid, "reason": _reason(req), "emitted": _visible(req), "steps": seen.steps}
            self._core.emitter.emit("finish", fields)


class _Making(Later):
    """One pass on its way to records; everything but `__init__` runs on the writer thread."""

    __slots__ = ("cargo", "core", "found", "graph", "overlap", "pieces", "rid", "size", "told")

    def __init__(
        self,
        count: int,
        wrote: Callable[[int], object],
        core: Core,
        cargo: Cargo,
        found: Sequence[Found],
        size: int,
        rid: str,
        pieces: Sequence[Piece],
    ) -> None:
        self.count, self.wrote = count, wrote
        self.core, self.cargo, self.found, self.size, self.rid, self.pieces = core, cargo, found, size, rid, pieces
        self.graph: Any = None
        self.overlap: Any = None
        self.told: Told | None = None

    def plain(self) -> Told:
        """Everything that the records are made of, once."""
        if self.told is None:
            core, cargo, plain = self.core, self.cargo, self.cargo.runs is None
            times, domain = ({}, "host") if cargo.clock is None else cargo.clock.read()
            run = (
                (cargo.algorithm or core.algorithm).lower(),
                self.size,
                core.place.rank,
                1 if plain else cargo.n,
                cargo.chain,
                cargo.padded,
                core.config.topk,
                bool(self.graph),
                bool(self.overlap),
                core.config.redact,
                core.place.lead and (cargo.n > 0 or plain),
                times,
                domain,
            )
            self.told = Told(run, self.found, self.pieces, cargo.layers, self.rid)
        return self.told

    def ids(self) -> set[int]:
        """Token ids that the steps use."""
        return self.plain().ids()

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The steps of the pass, and what else its cargo tells."""
        return self.plain().records()


class Told:
    """One pass as plain tuples and lists, which another process can make the records of."""

    __slots__ = ("_parts", "found", "layers", "pieces", "rid", "run")

    def __init__(
        self, run: tuple[Any, ...], found: Sequence[Found], pieces: Sequence[Piece], layers: int, rid: str
    ) -> None:
        """run: arguments of `Pass`. found: of `_row`, for each request. pieces: what was put, a later one before an
        earlier. layers: captured ones that were compared, with the request `rid` first in the batch."""
        self.run, self.found, self.pieces, self.layers, self.rid = run, found, pieces, layers, rid
        self._parts: dict[str, list[Any]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Told, (self.run, self.found, self.pieces, self.layers, self.rid)

    def _unpacked(self) -> dict[str, list[Any]]:
        """Parts by name, as flat lists."""
        if self._parts is None:
            self._parts = {}
            for layout, data in self.pieces:
                self._parts.update(unpack(layout, data))
        return self._parts

    def ids(self) -> set[int]:
        """Token ids that the steps use."""
        parts = self._unpacked()
        found: set[int] = set()
        for name in ("draft", "target", "topk_ids"):
            found.update(parts.get(name, ()))
        for *_, root, run, _length in self.found:
            found.update(run)
            if root is not None:
                found.add(root)
        return found

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The steps of the pass, and what else its cargo tells."""
        parts = self._unpacked()
        yield from steps(Pass(*self.run), [_row(*found) for found in self.found], parts)
        if self.layers:
            same, n = parts.get("layers_same", []), self.layers
            distinct = sum(not any(same[i * n : i * n + i]) for i in range(n)) if len(same) == n * n else n
            yield "fact", {"name": "draft.features", "value": {"rid": self.rid, "layers": n, "distinct": distinct}}


def _row(
    slot: int,
    fixed: Fixed,
    step: int,
    before: int,
    total: int,
    cut: int | None,
    root: int | None,
    run: Sequence[int],
    length: int,
) -> Row:
    """before, total: length of the output before and after; cut: what the client gets of it, None for all."""
    rid, prompt, sampled = fixed
    kept = (total if cut is None else min(total, cut)) - before
    emitted = list(run[: max(0, kept)])
    return Row(slot, rid, step, prompt + before - 1, root, list(run), emitted, length, sampled)


def _lengths(cargo: Cargo, result: Any) -> list[int] | None:
    """Of each path by the server's own count, which a grammar does not cut; None for plain decoding."""
    if cargo.runs is None:
        return None
    extra = getattr(result, "num_non_draft_tokens_per_req", 1)
    return [count + extra for count in result.num_correct_drafts_per_req_cpu]


def _visible(req: Any) -> int:
    """Output tokens that the client gets; those behind a stop or the limit are cut."""
    cut = req.finished_len
    return len(req.output_ids) if cut is None else int(cut)


def _sampling(params: Any) -> dict[str, Any]:
    """The server writes temperature 0 as top_k 1; so it is turned back."""
    found: dict[str, Any] = {}
    for name in ("temperature", "top_p", "top_k", "min_p", "max_new_tokens", "sampling_seed"):
        value = getattr(params, name, None)
        if isinstance(value, (int, float)):
            found["seed" if name == "sampling_seed" else name] = value
    if found.get("top_k") == 1:
        found["temperature"] = 0
    return found


def _reason(req: Any) -> str:
    """stop, length, abort or error, from the server's reason."""
    try:
        told = req.finished_reason.to_json()
    except Exception:  # a reason of a fork that cannot be written
        return "stop"
    kind = str(told.get("type", "stop"))
    status = told.get("status_code")
    return "error" if kind == "abort" and isinstance(status, int) and int(status) >= 500 else kind
