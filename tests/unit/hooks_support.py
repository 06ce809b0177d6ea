"""Test support: a server with SGLang's names and flow, small enough to see through, on tensors that refuse host syncs.

It stands in for the real package where a test must know every number. The taps against the real one: tests/integration.
"""

from __future__ import annotations

import sys
import types
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ddscope_hooks.config import Config
from ddscope_hooks.emit import Emitter
from ddscope_hooks.taps import registry
from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook
from ddscope_hooks.taps.place import Place
from tests.unit.emit_support import Pumped, RawViewer

VOCAB = 97
SYNCS = {"item", "cpu", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "nonzero"}


class HostSync(AssertionError):
    """A hook read a value of a device tensor."""


class Device(torch.Tensor):
    """A tensor as if it were on a device: whatever would make the host wait raises, and so does what comes of it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in SYNCS:
            raise HostSync(func.__name__)
        if func is torch.Tensor.to and "cpu" in map(str, args[1:]):
            raise HostSync("to cpu")
        return super().__torch_function__(func, types, args, kwargs or {})


CUDA: list[bool] = []
"""Not empty: tensors are on a real GPU instead."""


def on_device(tensor: torch.Tensor) -> Any:
    return tensor.cuda() if CUDA else tensor.as_subclass(Device)


def device(values: Any, dtype: Any = torch.int64) -> Any:
    return on_device(torch.as_tensor(values, dtype=dtype))


def host(tensor: Any) -> Any:
    """What the server itself waits for."""
    return tensor.cpu() if CUDA else tensor.as_subclass(torch.Tensor)


def following(token: int) -> int:
    """The target's greedy choice after `token`."""
    return (token * 31 + 7) % VOCAB


@dataclass
class Params:
    temperature: float = 1.0
    top_k: int = 1
    top_p: float = 1.0
    max_new_tokens: int = 16


@dataclass
class Reason:
    kind: str
    status_code: int | None = None

    def to_json(self) -> dict[str, Any]:
        return {"type": self.kind, "status_code": self.status_code}


class Req:
    def __init__(self, rid: str, prompt: Sequence[int], params: Params | None = None) -> None:
        self.rid = rid
        self.origin_input_ids = array("q", prompt)
        self.output_ids = array("q")
        self.sampling_params = params or Params()
        self.finished_reason: Any = None
        self.finished_len: int | None = None
        self.is_retracted = False
        self.cached_tokens = 0
        self.spec_verify_ct = 0

    def finished(self) -> bool:
        return self.finished_reason is not None

    def update_finish_state(self) -> None:
        limit = self.sampling_params.max_new_tokens
        if len(self.output_ids) >= limit:
            self.finished_reason, self.finished_len = Reason("length"), limit

    @property
    def returned(self) -> list[int]:
        return list(self.output_ids[: self.finished_len])


class Mode:
    def __init__(self, kind: str) -> None:
        self.kind = kind

    def is_decode(self) -> bool:
        return self.kind == "decode"

    def is_extend(self) -> bool:
        return self.kind == "extend"


@dataclass
class Batch:
    reqs: list[Req]
    forward_mode: Mode = field(default_factory=lambda: Mode("decode"))
    spec_info: Any = None
    seq_lens: Any = None


@dataclass
class Output:
    next_token_logits: Any
    hidden_states: Any = None


@dataclass
class Tree:
    """A verify input. The shape is the same for all requests: 0 → 1, 2; 1 → 3."""

    draft_token: Any
    positions: Any
    retrieve_next_token: Any
    retrieve_next_sibling: Any
    custom_mask: Any
    draft_token_num: int
    topk: int = 2


PARENTS = (-1, 0, 0, 1)
NEXT, SIBLING = (1, 3, -1, -1), (-1, 2, -1, -1)
CLOSURE = ((1, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 1, 0, 1))


def make_modules(drafted_right: Callable[[int], int], spec: bool, overlap: bool) -> dict[str, types.ModuleType]:
    """Modules by name. drafted_right: how many of the two levels of the tree are right, by number of the step."""
    names = ("scheduler", "utils", "overlap_utils", "tp_worker", "scheduler_components.batch_result_processor")
    modules = {f"sglang.srt.managers.{name}": types.ModuleType(name) for name in names}
    for name in ("sglang", "sglang.srt", "sglang.srt.managers", "sglang.srt.managers.scheduler_components",
                 "sglang.srt.speculative"):  # fmt: skip
        modules[name] = types.ModuleType(name)
        modules[name].__path__ = []
    eagle = modules["sglang.srt.speculative.eagle_utils"] = types.ModuleType("eagle_utils")

    @dataclass
    class GenerationBatchResult:
        logits_output: Any = None
        next_token_ids: Any = None
        accept_lens: Any = None
        can_run_cuda_graph: bool = False
        copy_done: Any = None
        num_correct_drafts_per_req_cpu: Any = None

        def copy_to_cpu(self, return_logprob: bool = False) -> None:
            self.next_token_ids = host(self.next_token_ids)
            if self.accept_lens is not None:
                self.accept_lens = host(self.accept_lens)

    class TpModelWorker:
        model_runner = types.SimpleNamespace(attn_backend=None)

        def forward_batch_generation(
            self, batch: Any, forward_batch: Any = None, pp_proxy_tensors: Any = None, is_verify: bool = False
        ) -> Any:
            ids = host(batch.spec_info.draft_token).tolist() if is_verify else [last_token(r) for r in batch.reqs]
            logits = torch.zeros(len(ids), VOCAB)
            for row, token in enumerate(ids):
                logits[row, following(token)] = 5.0
            made = GenerationBatchResult(logits_output=Output(on_device(logits)))
            if not is_verify:
                made.next_token_ids = device([following(t) for t in ids])
            return made

    def last_token(req: Req) -> int:
        return (req.output_ids or req.origin_input_ids)[-1]

    def eagle_sample(verify_input: Any, batch: Any, logits_output: Any, grammar_mask: Any = None) -> Any:
        tokens = host(verify_input.draft_token).view(-1, 4).tolist()
        index, lens, predict = [], [], []
        for row, drafted in enumerate(tokens):
            path = [0]
            while (child := next((i for i in range(1, 4) if PARENTS[i] == path[-1]
                                  and drafted[i] == following(drafted[path[-1]])), None)):  # fmt: skip
                path.append(child)
            lens.append(len(path))
            index.append([row * 4 + i for i in path] + [-1] * (3 - len(path)))
            predict += [following(t) for t in drafted]
        return device(predict, torch.int32), device(lens, torch.int32), device(index, torch.int32)

    eagle.eagle_sample = eagle_sample  # type: ignore[attr-defined]

    def resolve_forward_inputs(batch: Any, future_map: Any) -> None: ...

    overlap_utils = modules["sglang.srt.managers.overlap_utils"]
    overlap_utils.resolve_forward_inputs = resolve_forward_inputs  # type: ignore[attr-defined]

    class Scheduler:
        def __init__(self) -> None:
            self.tokenizer = None
            self.worker = TpModelWorker()
            self.step = 0

        def run_batch(self, batch: Any, pp_proxy_tensors: Any = None) -> Any:
            batch.seq_lens = device([len(req.origin_input_ids) + len(req.output_ids) for req in batch.reqs])
            overlap_utils.resolve_forward_inputs(batch, None)
            if batch.forward_mode.is_decode() and spec:
                made = self.verify(batch)
            else:
                made = self.worker.forward_batch_generation(batch)
            if spec or overlap:
                made.copy_done = object()
                made.copy_to_cpu(return_logprob=False)
            return made

        def verify(self, batch: Any) -> Any:
            right, rows, positions = drafted_right(self.step), [], []
            self.step += 1
            for req in batch.reqs:
                root = last_token(req)
                one = following(root)
                good, bad = (one, (one + 1) % VOCAB), ((one + 1) % VOCAB, (one + 2) % VOCAB)
                first, second = good if right else bad
                rows += [root, first, second, following(first) if right > 1 else (following(first) + 1) % VOCAB]
                base = len(req.origin_input_ids) + len(req.output_ids) - 1
                positions += [base, base + 1, base + 1, base + 2]
            size = len(batch.reqs)
            mask = on_device(torch.tensor(CLOSURE, dtype=torch.bool).repeat(size, 1, 1).reshape(-1))
            batch.spec_info = Tree(
                device(rows), device(positions), device([NEXT] * size), device([SIBLING] * size), mask, 4
            )
            out = self.worker.forward_batch_generation(batch, is_verify=True)
            predict, lens, index = sys.modules["sglang.srt.speculative.eagle_utils"].eagle_sample(
                batch.spec_info, batch, out.logits_output
            )
            flat = host(index)
            tokens = torch.where(flat >= 0, host(predict)[flat.clamp(min=0).long()], 0)
            made = GenerationBatchResult(out.logits_output, device(tokens.reshape(-1)), lens)
            out.logits_output.next_token_logits.fill_(float("nan"))  # the next forward overwrites what a graph owns
            batch.spec_info.draft_token.fill_(0)
            return made

    class SchedulerBatchResultProcessor:
        is_generation = True
        enable_overlap = overlap

        def _resolve_spec_v2_tokens(self, result: Any, batch: Any) -> list[list[int]]:
            ids, lens = result.next_token_ids.tolist(), result.accept_lens.tolist()
            result.num_correct_drafts_per_req_cpu = [n - 1 for n in lens]
            for req in batch.reqs:
                req.spec_verify_ct += not (req.is_retracted or req.finished())
            return [ids[i * 3 : i * 3 + n] for i, n in enumerate(lens)]

        def process_batch_result_decode(self, batch: Any, result: Any) -> None:
            if spec:
                runs = self._resolve_spec_v2_tokens(result, batch)
            else:
                runs = [[t] for t in host(result.next_token_ids).tolist()]
            for req, run in zip(batch.reqs, runs, strict=True):
                if not (req.finished() or req.is_retracted):
                    req.output_ids.extend(run)
                    req.update_finish_state()

        def process_batch_result_prefill(self, batch: Any, result: Any) -> None:
            for req, token in zip(batch.reqs, host(result.next_token_ids).tolist(), strict=True):
                if not (req.finished() or req.is_retracted):
                    req.output_ids.append(token)
                    req.update_finish_state()

    for module, names_ in (
        ("scheduler", [Scheduler]), ("utils", [GenerationBatchResult]), ("tp_worker", [TpModelWorker]),
        ("scheduler_components.batch_result_processor", [SchedulerBatchResultProcessor]),
    ):  # fmt: skip
        for thing in names_:
            setattr(modules[f"sglang.srt.managers.{module}"], thing.__name__, thing)
    return modules


@contextmanager
def installed(modules: dict[str, types.ModuleType]) -> Iterator[None]:
    """The modules in `sys.modules`, as packages of one another; what was there before comes back."""
    before = {name: sys.modules.get(name) for name in modules}
    sys.modules.update(modules)
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        if parent in modules:
            setattr(modules[parent], last, module)
    try:
        yield
    finally:
        for name, module in before.items():
            if module is None:
                sys.modules.pop(name, None)
            else:
                sys.modules[name] = module


def apply(hook: Hook, run: Callable[..., None]) -> None:
    """Set a hook as SGLang's registry does: wrappers that hand on what the hook returns."""
    import functools
    import pkgutil

    path, _, name = hook.target.rpartition(".")
    owner = pkgutil.resolve_name(path)
    original = getattr(owner, name)

    @functools.wraps(original)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if hook.when == "before":
            changed = run(*args, **kwargs)
            assert changed is None
            return original(*args, **kwargs)
        result = original(*args, **kwargs)
        assert run(result, *args, **kwargs) is None
        return result

    setattr(owner, name, wrapper)


class Server:
    """The stand-in with the taps on it, and one viewer's books. The threads of the emitter do not run: see `Pumped`."""

    def __init__(
        self,
        modules: dict[str, types.ModuleType],
        config: Config | None = None,
        *,
        algorithm: str = "STANDALONE",
        place: Place | None = None,
        taps: Sequence[Any] | None = None,
        watched: bool = True,
    ) -> None:
        self.pumped = Pumped(token_text=lambda ids: [f"<{i}>" for i in ids])
        self.emitter: Emitter = self.pumped.emitter
        self.core = Core(config or Config(), self.emitter, place or Place(), algorithm)
        self.told = registry.install(self.core, apply, taps)
        managers = "sglang.srt.managers"
        self.scheduler = modules[f"{managers}.scheduler"].Scheduler()
        processor = modules[f"{managers}.scheduler_components.batch_result_processor"]
        self.processor = processor.SchedulerBatchResultProcessor()
        self.viewer = RawViewer(self.pumped.join()[1]) if watched else None
        self.pump()

    def pump(self) -> None:
        self.pumped.pump()
        if self.viewer is not None:
            self.viewer.read()

    def prefill(self, reqs: list[Req]) -> None:
        batch = Batch(reqs, Mode("extend"))
        self.processor.process_batch_result_prefill(batch, self.scheduler.run_batch(batch))

    def decode(self, reqs: list[Req], then: Callable[[], None] = lambda: None) -> None:
        """One pass. then: what happens between its launch and the processing of its result."""
        batch = Batch(reqs)
        result = self.scheduler.run_batch(batch)
        then()
        self.processor.process_batch_result_decode(Batch(reqs), result)

    def run(self, reqs: list[Req]) -> None:
        """All requests to their end."""
        self.prefill(reqs)
        while live := [req for req in reqs if not req.finished()]:
            self.decode(live)
        self.pump()

    def records(self, type: str) -> list[dict[str, Any]]:
        self.pump()
        assert self.viewer is not None
        return self.viewer.books.of(type)

    def close(self) -> None:
        self.pumped.close()


@contextmanager
def serving(
    *, right: Callable[[int], int] = lambda step: step % 3, spec: bool = True, overlap: bool = True, **options: Any
) -> Iterator[Server]:
    """A server of the stand-in, its modules in place while it is used."""
    modules = make_modules(right, spec, overlap)
    with installed(modules):
        server = Server(modules, **options)
        try:
            yield server
        finally:
            server.close()
