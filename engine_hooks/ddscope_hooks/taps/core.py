"""What all taps share: the cargo of a forward pass, its transport to the host, and how a tap adds to it.

A forward pass goes through these stations; everything up to `arrive` runs on the scheduler's thread:

    begin    before `run_batch`: is this pass recorded? then `core.capture` is True and `core.cargo` is a new `Cargo`
    put …    taps add references to device tensors, host facts (`about`) and marks (`mark`); nothing is copied yet
    attach   after the worker made its `GenerationBatchResult`: all parts become one tensor, on the forward stream,
             before any buffer is used again; it rides on the result
    ship     before the result's own `copy_to_cpu`: the copy to the host is started, so the server's event covers it
    arrive   after the result was processed: `requests.Requests` makes rows; the writer thread unpacks and writes

How to write a tap for another algorithm: a module in this folder with

    NAME = "dflash"                                  # as in the fact `hooks.taps`
    ALGORITHMS = frozenset({"DFLASH"})               # names of --speculative-algorithm; None: always
    def hooks(core: Core) -> list[list[Hook]]: ...   # alternatives; the first that can be set as a whole is used

listed in `registry.MODULES`. A hook's function begins with `if not core.capture: return` and then calls `put`,
`about`, `mark`, `shape` or `layers`. It must not read a value of a device tensor (`.item()`, `.cpu()`, `.tolist()`,
`if tensor`): that would make the server wait. Exceptions are caught by the breaker of its tap; a tap that is off adds
nothing, the steps are still written with what the others know. The universal tap adds `draft`, `positions`, `next`,
`sibling` and `mask` where the verify input has them, and the target's choice from the logits, so most families need
very little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from ddscope_hooks.config import Config
from ddscope_hooks.relay import AnyEmitter
from ddscope_hooks.taps.clock import Clock
from ddscope_hooks.taps.hooks import Breaker, Gate
from ddscope_hooks.taps.pack import HOST_CODES, Packed, Piece
from ddscope_hooks.taps.place import Place
from ddscope_hooks.taps.sampling import Sampling

RESULT = "_ddscope"
"""Name of the attribute of a result that holds its cargo."""

LAYERS_EVERY = 64


class Cargo:
    """What is known of one forward pass. Lives on `Core.cargo` while the pass runs, then on its result.

    n: nodes a request has in the verify, root included; 0 while unknown, 1 for plain decoding. size: requests.
    chain: node i hangs at node i - 1. padded: a node that repeats the token of a sibling before it only fills the tree
    up. layers: captured ones, when `layers` compared them; rid: the first request then.
    """

    # Defaults of the class: a new one a pass must cost little.
    logits: Any = None
    algorithm: str | None = None
    n = 0
    size = 0
    chain = False
    padded = False
    layers = 0
    rid = ""
    packed: Packed | None = None
    live: Sequence[int] | None = None
    runs: Sequence[Sequence[int]] | None = None
    host: Sequence[Piece] = ()

    def __init__(self, clock: Clock | None, skip: bool) -> None:
        self.skip = skip
        self.clock = clock
        self.parts: dict[str, Any] = {}


class Core:
    """One a scheduler process. Not thread-safe but for what says so: all hooks run on the scheduler's thread."""

    def __init__(self, config: Config, emitter: AnyEmitter, place: Place, algorithm: str) -> None:
        self.config = config
        self.emitter = emitter
        self.place = place
        self.algorithm = algorithm
        self.sampling = Sampling(config.sample)
        self.gate = Gate()
        self.timing = Gate()
        self.capture = False
        self.cargo: Cargo | None = None
        self.passes = 0
        self._breakers: dict[str, Breaker] = {}
        self._next_layers = 0
        self._next_times = 0
        self.hidden_size = 0
        self._meeters: list[Callable[[Any], None]] = []
        self._shapes: dict[str, tuple[object, ...]] = {}

    def breaker(self, tap: str) -> Breaker:
        """The switch of a tap, the same one for every hook of it."""
        return self._breakers.setdefault(tap, Breaker(tap, self.emitter.fault))

    # -- stations ----------------------------------------------------------------------------------------------------

    def begin(self, reqs: Sequence[Any], prefill: bool) -> None:
        """A forward pass is about to start. Of a prefill no tensor is taken, and sampling does not count it.

        `gate` is closed while nothing is recorded at all, `timing` in passes whose stages are not timed.
        """
        sampling = self.sampling
        if sampling.every == 0:
            self.cargo, self.capture, self.gate.closed, self.timing.closed = None, False, True, True
            return
        self.gate.closed = False
        self.passes += 1
        admitted = prefill or sampling.whole or sampling.admit()
        capture = admitted and not prefill and self.place.lead and self.emitter.watched
        if capture and sampling.rid:
            capture = any(sampling.match(str(req.rid)) for req in reqs)
        clock = None
        if capture:
            now = time.monotonic_ns()
            if now >= self._next_times:
                clock = Clock(now)
        self.timing.closed = clock is None
        self.capture = capture
        self.cargo = Cargo(clock, not admitted)

    def end(self, result: Any) -> None:
        """The pass was launched: its cargo goes with the result."""
        cargo, self.cargo, self.capture = self.cargo, None, False
        if cargo is not None and result is not None and getattr(result, RESULT, None) is None:
            setattr(result, RESULT, cargo)

    def put(self, name: str, tensor: Any) -> None:
        """Add a device tensor; None is ignored, a name that is there already is replaced.

        Names, with B requests, n nodes each: draft [B, n] tokens, root first; positions [B, n]; parents [B, n] (-1 for
        the root), or next, sibling [B, n] (first child and next sibling, -1 for none); mask [B, n, n]; accept_index
        [B, any] node numbers over the whole batch, -1 padded; target [B, n] choice at every node; best [B, n] its
        logit.
        A tensor that is overwritten before the worker makes its result has to be cloned by the tap.
        """
        if self.cargo is not None and tensor is not None:
            self.cargo.parts[name] = tensor

    def put_host(self, name: str, values: Any) -> None:
        """Add a numpy array that is on the host already, under the names of `put`. It is copied here.

        Where there is any, all of the tree has to be there: no tokens, links or masks are taken from the device.
        """
        cargo = self.cargo
        if cargo is not None:
            data = values.tobytes()
            cargo.host = [*cargo.host, (((name, HOST_CODES[values.dtype.char], len(data)),), data)]

    def about(
        self,
        *,
        n: int | None = None,
        size: int | None = None,
        chain: bool | None = None,
        padded: bool | None = None,
        algorithm: str | None = None,
    ) -> None:
        """Say what is known of the pass without looking at a tensor's values; see `Cargo`."""
        cargo = self.cargo
        if cargo is not None:
            cargo.n = cargo.n if n is None else n
            cargo.size = cargo.size if size is None else size
            cargo.chain = cargo.chain if chain is None else chain
            cargo.padded = cargo.padded if padded is None else padded
            cargo.algorithm = cargo.algorithm or algorithm

    def logits(self, logits: Any) -> None:
        """The target's logits [B * n, vocabulary]. Read when the pass is packed, after penalties and grammars."""
        if self.cargo is not None:
            self.cargo.logits = logits

    def mark(self, name: str, tensor: Any = None) -> None:
        """A moment of the pass: draft (begins), verify (begins), verified, committed. tensor: tells the device."""
        if self.cargo is not None and self.cargo.clock is not None:
            self.cargo.clock.mark(name, tensor)

    def attach(self, result: Any) -> None:
        """Pack what was put, on the current stream, and let it ride on the result."""
        cargo = self.cargo
        if cargo is None or not self.capture or cargo.packed is not None:
            return
        parts, logits = cargo.parts, cargo.logits
        if logits is not None:
            rows, vocabulary = logits.shape
            if cargo.n * cargo.size != rows:
                logits = None
            elif self.config.topk:
                self._likeliest(logits, min(self.config.topk, vocabulary))
                logits = None
        if parts or logits is not None:
            cargo.packed = Packed(parts, logits)
            if cargo.clock is not None:
                cargo.clock.mark("committed", next(iter(parts.values())) if logits is None else logits)
                self._next_times = cargo.clock.next
        cargo.parts, cargo.logits = {}, None
        setattr(result, RESULT, cargo)

    def ship(self, result: Any) -> None:
        """Start the copy of what rides on the result, once."""
        cargo = getattr(result, RESULT, None)
        if cargo is not None and cargo.packed is not None and not cargo.packed.shipped:
            cargo.packed.ship()

    # -- what else a tap may tell ------------------------------------------------------------------------------------

    def shape(self, name: str, tensor: Any, expect: Sequence[int | None] | None, owner: str) -> None:
        """Tell the shape of what enters a module, against what its weights take: once a name, and again on change.

        expect: sizes, None where any fits; None when it is not known. Does not need `capture`; looks at no value.
        """
        given = tuple(tensor.shape)
        fixed = given if expect is None or len(expect) != len(given) else tuple(
            size for size, want in zip(given, expect, strict=True) if want is not None
        )  # fmt: skip
        key = (fixed, tensor.dtype, None if expect is None else tuple(expect))
        if self._shapes.get(name) == key:
            return
        self._shapes[name] = key
        fields: dict[str, Any] = {
            "name": name,
            "shape": list(given),
            "dtype": str(tensor.dtype).removeprefix("torch."),
            "device": str(tensor.device),
            "owner": owner,
        }
        if expect is not None:
            fields["expect"] = list(expect)
            fields["ok"] = len(expect) == len(given) and all(
                want is None or want == size for size, want in zip(given, expect, strict=True)
            )
        self.emitter.emit("tensor", fields)

    def layers(self, features: Any, count: int) -> None:
        """Compare the captured layers in the last row of features [rows, count * width] with one another.

        Becomes the fact `draft.features`; done in one verify of 64, as it costs some kernels.
        """
        cargo = self.cargo
        if self.passes < self._next_layers or not self.capture or cargo is None:
            return
        if cargo.n < 2 or count < 2 or not features.shape[0]:
            return
        self._next_layers = self.passes + LAYERS_EVERY
        rows = features[-1].reshape(count, -1)
        cargo.layers = count
        self.put("layers_same", (rows[:, None, :] == rows[None, :, :]).all(-1))

    def meet(self, scheduler: Any) -> None:
        """The scheduler of this process, as its first pass begins: everything is loaded now."""
        breaker = self.breaker("facts")
        try:
            self.hidden_size = int(getattr(getattr(scheduler, "model_config", None), "hidden_size", 0) or 0)
            for told in self._meeters:
                told(scheduler)
        except Exception as error:
            breaker.trip(error)

    def on_meet(self, told: Callable[[Any], None]) -> None:
        """Call `told` with the scheduler when its first pass begins."""
        self._meeters.append(told)

    def flush(self) -> None:
        """Tell how many records were left out so far, in their place."""
        count = self.sampling.take_left_out()
        if count:
            self.emitter.emit("gap", {"of": self.emitter.src, "count": count, "reason": "rate_limited"})

    def fact(self, name: str, value: Any) -> None:
        """Something known about the server."""
        self.emitter.emit("fact", {"name": name, "value": value})

    def _likeliest(self, logits: Any, k: int) -> None:
        """The target's k likeliest tokens at every node, and what makes probabilities of their logits."""
        import torch

        if self.cargo is not None and "target" not in self.cargo.parts:
            # As the server takes it: of tokens that tie, as they do in bfloat16, top-k puts any first.
            self.put("target", torch.argmax(logits, dim=-1))
        values, ids = torch.topk(logits.float(), k, dim=-1)
        self.put("topk_values", values)
        self.put("topk_ids", ids)
        self.put("lse", torch.logsumexp(logits.float(), dim=-1))
