"""The tap every other one needs: where passes begin and results are processed; requests, steps and ends of requests.

Works on what the server keeps on the host: requests, their output, accepted lists. Values of device tensors come with
the cargo, which other taps filled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ddscope_hooks.emit import Later
from ddscope_hooks.taps.core import RESULT, Cargo, Core
from ddscope_hooks.taps.hooks import Hook
from ddscope_hooks.taps.pack import Layout, unpack
from ddscope_hooks.taps.steps import Pass, Row, steps

NAME = "requests"
ALGORITHMS = None

_SCHEDULER = "sglang.srt.managers.scheduler.Scheduler"
_RESULT = "sglang.srt.managers.utils.GenerationBatchResult"
_PROCESSOR = "sglang.srt.managers.scheduler_components.batch_result_processor.SchedulerBatchResultProcessor"
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
    """What is known and was told of a request; rides on the server's own object, so nothing has to be forgotten."""

    __slots__ = ("ended", "prompt", "rid", "sampled", "steps", "told")

    def __init__(self, req: Any) -> None:
        self.rid = str(req.rid)
        self.prompt = len(req.origin_input_ids)
        self.sampled = req.sampling_params.top_k != 1
        self.steps = 0
        self.told = False
        self.ended = False


class Requests:
    """From results to records."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._scheduler: Any = None

    def begin(self, scheduler: Any, batch: Any) -> None:
        """Before a pass."""
        core = self._core
        if self._scheduler is None:
            self._scheduler = scheduler
            core.meet(scheduler)
        core.begin(lambda: [str(req.rid) for req in batch.reqs], batch.forward_mode.is_extend())

    def arrive(self, processor: Any, batch: Any, result: Any) -> None:
        """Before a result is processed: which requests it still counts for, and how long their output was."""
        cargo = getattr(result, RESULT, None)
        if cargo is None or not processor.is_generation:
            return
        cargo.live = [-1 if req.finished() or req.is_retracted else len(req.output_ids) for req in batch.reqs]
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
            self._tell(self._rows(cargo, batch, _lengths(cargo, result), 0), cargo, processor, batch, result)
        self._ends(batch)

    def prefilled(self, _: Any, processor: Any, batch: Any, result: Any) -> None:
        """After a prefill result was processed. The first token of an output belongs to no step; any other does.

        Others come of requests that were retracted and of decode requests that were mixed into a prefill.
        """
        cargo = getattr(result, RESULT, None)
        if cargo is not None and cargo.live is not None:
            cargo.runs = None
            self._tell(self._rows(cargo, batch, None, 1), cargo, processor, batch, result)
        self._ends(batch)

    def _rows(self, cargo: Cargo, batch: Any, lengths: list[int] | None, first: int) -> list[tuple[Any, ...]]:
        """Arguments of `_row` for each request that goes on, and that is recorded. The hot loop: no calls but these.

        lengths: of the paths, where the output alone does not tell them. first: an output that was shorter has no step.
        """
        core, runs, rows, left = self._core, cargo.runs, [], 0
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
            if make and seen.told and (not prefix or seen.rid.startswith(prefix)):
                root = out[before - 1] if before else None
                length = len(run) if lengths is None else lengths[slot]
                cut, sampled = req.finished_len, seen.sampled
                rows.append((slot, seen.rid, seen.steps, seen.prompt, before, total, cut, root, run, length, sampled))
            else:
                left += 1
            seen.steps += 1
        if left:
            core.sampling.leave_out(left)
        return rows

    def _tell(self, rows: list[tuple[Any, ...]], cargo: Cargo, processor: Any, batch: Any, result: Any) -> None:
        later = self._later(rows, cargo, processor, batch, result)
        if later is not None:
            self._core.flush()
            self._core.emitter.emit_later(later)

    def _later(
        self, rows: list[tuple[Any, ...]], cargo: Cargo, processor: Any, batch: Any, result: Any
    ) -> Later | None:
        core, packed = self._core, cargo.packed
        count = len(rows) + (packed is not None and cargo.layers > 0)
        if not count or not core.emitter.watched:
            return None
        cargo.rid = rows[0][1] if rows else str(batch.reqs[0].rid)
        layout: Sequence[Layout] = ()
        data = b""
        if packed is not None and packed.shipped:
            if core.emitter.waiting * packed.size > MAX_WAITING_BYTES:
                core.sampling.leave_out(count)
                return None
            layout, data = packed.layout, packed.take()
        making = _Making(core, cargo, rows, len(batch.reqs), layout, data)
        making.graph, making.overlap = result.can_run_cuda_graph, processor.enable_overlap
        return Later(count, making.records, core.sampling.wrote, making.ids, making.plain)

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
            "prompt_len": seen.prompt,
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
            if req.finished() and getattr(req, RESULT, None) is not None:
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


class _Making:
    """One pass on its way to records; everything but `__init__` runs on the writer thread."""

    __slots__ = ("cargo", "core", "data", "found", "graph", "layout", "overlap", "size", "told")

    def __init__(
        self,
        core: Core,
        cargo: Cargo,
        found: Sequence[tuple[Any, ...]],
        size: int,
        layout: Sequence[Layout],
        data: bytes,
    ) -> None:
        self.core, self.cargo, self.found, self.size = core, cargo, found, size
        self.layout, self.data = layout, data
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
            host = {name: list(_plain_list(values)) for name, values in cargo.host.items()}
            self.told = Told(run, self.found, self.layout, self.data, host, cargo.layers, cargo.rid)
        return self.told

    def ids(self) -> set[int]:
        """Token ids that the steps use."""
        return self.plain().ids()

    def records(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """The steps of the pass, and what else its cargo tells."""
        return self.plain().records()


class Told:
    """One pass as plain tuples and lists, which another process can make the records of."""

    __slots__ = ("_parts", "data", "found", "host", "layers", "layout", "rid", "run")

    def __init__(
        self,
        run: tuple[Any, ...],
        found: Sequence[tuple[Any, ...]],
        layout: Sequence[Layout],
        data: bytes,
        host: Mapping[str, list[Any]],
        layers: int,
        rid: str,
    ) -> None:
        """run: arguments of `Pass`. found: of `_row`, for each request. layers: captured ones that were compared, with
        the request `rid` first in the batch."""
        self.run, self.found, self.layout, self.data = run, found, layout, data
        self.host, self.layers, self.rid = host, layers, rid
        self._parts: dict[str, list[Any]] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Told, (self.run, self.found, self.layout, self.data, self.host, self.layers, self.rid)

    def _unpacked(self) -> dict[str, list[Any]]:
        """Parts by name, as flat lists."""
        if self._parts is None:
            self._parts = {**unpack(self.layout, self.data), **self.host}
        return self._parts

    def ids(self) -> set[int]:
        """Token ids that the steps use."""
        parts = self._unpacked()
        found: set[int] = set()
        for name in ("draft", "target", "topk_ids"):
            found.update(parts.get(name, ()))
        for *_, root, run, _length, _sampled in self.found:
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


def _plain_list(values: Any) -> Any:
    return values.tolist() if hasattr(values, "tolist") else values


def _row(
    slot: int,
    rid: str,
    step: int,
    prompt: int,
    before: int,
    total: int,
    cut: int | None,
    root: int | None,
    run: Sequence[int],
    length: int,
    sampled: bool,
) -> Row:
    """before, total: length of the output before and after; cut: what the client gets of it, None for all."""
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
