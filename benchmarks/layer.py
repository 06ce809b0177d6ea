"""The fused operations of a decoder layer on a CUDA device: µs a call, against the same in torch, in the same run.

    python benchmarks/layer.py [--quick] [--tune] [--only NAME …] [--rows M …] [--models NAME …]

Every measurement is a CUDA graph of many calls, each with weights of its own, so that weights come from memory as they
do in decoding; the median over replays, divided by the calls. "early" launches every kernel before the one before it
ends (programmatic dependent launch); a kernel lets the next one start at once, or after it has waited itself. GB/s
counts the weights only, read once. --tune tries tiles, best first.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

try:
    import ddscope_kernels  # noqa: F401
except ModuleNotFoundError:  # a checkout on a machine where nothing is installed
    sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope_kernels.batched import layer
from ddscope_kernels.batched.layer_plan import Early, Few, Library, Plan, Tiles, Whole, early, forced

EPS = 1e-5
COLD = 130 << 20
"""Bytes of different weights in a graph: more than two times the second-level cache."""

Call = Callable[[int], object]
"""Of the number of the call, which chooses the weights."""


@dataclass(frozen=True)
class Model:
    """Widths of a decoder."""

    name: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp: int
    layers: int

    def product(self, name: str) -> tuple[int, int]:
        """Rows and columns of a product's weight."""
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        return {
            "qkv": (qkv, self.hidden),
            ROTATED: (qkv, self.hidden),
            "out": (self.hidden, self.heads * self.head_dim),
            "gate_up": (2 * self.mlp, self.hidden),
            "down": (self.hidden, self.mlp),
        }[name]


MODELS = [
    Model("135M", 576, 9, 3, 64, 1536, 30),
    Model("1B", 2048, 32, 8, 64, 8192, 16),
    Model("8B", 4096, 32, 8, 128, 14336, 32),
]
PRODUCTS = ("qkv", "out", "gate_up", "down")
ROTATED = "rotated"
"""The product qkv with the rotation of its rows into the cache."""


@dataclass
class Bench:
    """What is measured, with how many replays."""

    quick: bool
    device: torch.device = field(default_factory=lambda: torch.device("cuda"))
    dtype: torch.dtype = torch.bfloat16

    def us(self, call: Call, calls: int) -> float:
        """µs of one of so many calls in a graph."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call(0)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(calls):
                call(i)
        times = []
        for _ in range(5 if self.quick else 15):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end) * 1000 / calls)
        return median(times)

    def random(self, *shape: int, scale: float = 1.0) -> Tensor:
        """Normal, in the benchmark's dtype."""
        return torch.randn(*shape, device=self.device, dtype=self.dtype) * scale

    def row(self, what: str, rows: int, variant: str, call: Call, calls: int, bytes: int = 0,
            under: AbstractContextManager[None] | None = None) -> float:  # fmt: skip
        """Measure and print one line; one that cannot run says why."""
        try:
            with under or nullcontext():
                us = self.us(call, calls)
        except Exception as error:  # an option that this device does not have may fail in any way
            print(f"{what:18} {rows:5} {variant:58} failed: {type(error).__name__}: {error}"[:200], flush=True)
            return float("inf")
        rate = f" {bytes / us / 1e3:7.0f} GB/s" if bytes else ""
        print(f"{what:18} {rows:5} {variant:58} {us:9.2f} µs{rate}", flush=True)
        return us


@contextmanager
def nested(*contexts: AbstractContextManager[None]) -> Iterator[None]:
    """Within all of them."""
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield


@dataclass
class Product:
    """One product of a model over M rows: ours and torch's, with many weights."""

    bench: Bench
    model: Model
    name: str
    rows: int

    def __post_init__(self) -> None:
        columns, depth = self.model.product(self.name)
        self.bytes = columns * depth * 2
        self.calls = min(200, max(3 if self.bytes > COLD else 4, -(-COLD // self.bytes)))
        self.weights = [self.bench.random(columns, depth, scale=depth**-0.5) for _ in range(self.calls)]
        self.x = self.bench.random(self.rows, depth)
        self.norm = self.bench.random(depth)
        self.add = self.bench.random(self.rows, columns)
        if self.name == ROTATED:
            self.moves = Rows(self.bench, self.model, self.rows)

    def ours(self, i: int) -> Tensor:
        """By the function for it."""
        if self.name == ROTATED:
            moves = self.moves
            k, v = moves.caches[:, i % self.model.layers]
            return layer.norm_qkv_into(
                self.x, self.norm, EPS, self.weights[i], (moves.tables[0], moves.tables[1]), moves.positions, k, v,
                moves.base, heads=self.model.heads, counts=moves.counts)  # fmt: skip
        if self.name == "qkv":
            return layer.norm_linear(self.x, self.norm, EPS, self.weights[i])
        if self.name in ("gate_up", ROTATED):
            return layer.norm_gated_linear(self.x, self.norm, EPS, self.weights[i])
        return layer.linear_add(self.x, self.weights[i], self.add)

    def torch(self, i: int) -> Tensor:
        """By torch's functions."""
        if self.name in ("out", "down"):
            return self.add + F.linear(self.x, self.weights[i])
        found = F.linear(F.rms_norm(self.x, self.norm.shape, self.norm, EPS), self.weights[i])
        if self.name == "qkv":
            return found
        if self.name == ROTATED:
            self.moves.qkv = found.view_as(self.moves.qkv)
            return self.moves.rotate_torch(i)
        gate, up = found.chunk(2, -1)
        return F.silu(gate) * up

    def product_only(self, i: int) -> Tensor:
        """The library's product, without what stands around it."""
        return F.linear(self.x, self.weights[i])

    def measure(self) -> None:
        """A line a variant."""
        row = partial(self.bench.row, f"{self.model.name} {self.name}", self.rows, calls=self.calls, bytes=self.bytes)
        row("torch", self.torch)
        row("torch, the product only", self.product_only)
        row("ours", self.ours)
        row("ours, early", self.ours, under=early())
        for when in Early:
            row(f"ours, early: {when.name}", self.ours, under=early(when=when))
        row("ours, library", self.ours, under=forced(Library()))


class Rows:
    """What moves rows: nodes of R = 1 request, in torch and ours."""

    def __init__(self, bench: Bench, model: Model, rows: int) -> None:
        m, random, device = model, bench.random, bench.device
        self.model, self.rows, self.bench = m, rows, bench
        self.qkv = random(1, rows, m.heads + 2 * m.kv_heads, m.head_dim)
        self.caches = random(2, m.layers, 1, m.kv_heads, 1024, m.head_dim)
        self.tables = torch.randn(2, 2048, m.head_dim, device=device)
        self.positions = torch.arange(rows, device=device)[None] + 500
        self.base = torch.full((1,), 500, dtype=torch.int32, device=device)
        self.counts = torch.full((1,), rows - 1, dtype=torch.int32, device=device)
        self.kv = random(1, 16, 4, 2, m.kv_heads, m.head_dim)
        self.k_norm = random(4, m.head_dim)
        self.pieces = [random(1, rows, m.hidden) for _ in range(5)]
        self.path = torch.randint(0, rows, (1, 16), device=device, dtype=torch.int32)
        self.x, self.norm = random(rows, m.hidden), random(m.hidden)

    def rotate(self, i: int) -> Tensor:
        """Ours."""
        k, v = self.caches[:, i % self.model.layers]
        return layer.rotate_into(
            self.qkv, (self.tables[0], self.tables[1]), self.positions, k, v, self.base, heads=self.model.heads,
            counts=self.counts)  # fmt: skip

    def rotate_torch(self, i: int) -> Tensor:
        """The same in torch: tables looked up and cast outside."""
        m = self.model
        cos, sin = (self.tables[:, 500 : 500 + self.rows, None].to(self.bench.dtype))[:, None]
        qk, v = self.qkv.split([m.heads + m.kv_heads, m.kv_heads], 2)
        turned = qk * cos + qk.roll(m.head_dim // 2, -1) * sin
        caches = self.caches[:, i % m.layers]
        caches[0].index_copy_(2, self.positions[0], turned[:, :, m.heads :].transpose(1, 2))
        caches[1].index_copy_(2, self.positions[0], v.transpose(1, 2))
        return turned[:, :, : m.heads]

    def context(self, _: int) -> None:
        """A path's rows of context for the drafter's four layers."""
        k, v = self.caches[:, :4]
        layer.context_into(self.kv, (self.tables[0], self.tables[1]), self.base, self.k_norm, EPS, k, v, self.counts)

    def measure(self) -> None:
        """A line a variant."""
        what = {
            "rotate_into": (self.rotate, self.rotate_torch),
            "context_into": (self.context, None),
            "gather_rows": (
                lambda _: layer.gather_rows(self.pieces, self.path),
                lambda _: torch.cat([piece[:, self.path[0]] for piece in self.pieces], -1),
            ),
            "rms_norm": (
                lambda _: layer.rms_norm(self.x, self.norm, EPS),
                lambda _: F.rms_norm(self.x, self.norm.shape, self.norm, EPS),
            ),
        }
        for name, (ours, other) in what.items():
            row = partial(self.bench.row, f"{self.model.name} {name}", self.rows, calls=30)
            if other is not None:
                row("torch", other)
            row("ours", ours)
            row("ours, early", ours, under=early())


class Layers:
    """All layers in a row, without attention (queries stand for what it reads)."""

    def __init__(self, bench: Bench, model: Model, rows: int) -> None:
        self.bench, self.model, self.rows = bench, model, rows
        self.count = model.layers if model.name != "8B" else 4
        self.weights = [
            {name: bench.random(*model.product(name), scale=model.product(name)[1] ** -0.5) for name in PRODUCTS}
            for _ in range(self.count)
        ]
        self.bytes = sum(weight.numel() * 2 for weight in self.weights[0].values())
        self.norm = bench.random(model.hidden)
        self.moves = Rows(bench, model, rows)
        self.x = bench.random(rows, model.hidden)

    def ours(self, i: int, fused: bool = True) -> None:
        """One layer."""
        w, m, moves = self.weights[i], self.model, self.moves
        x = moves.x if i == 0 else self.x
        if fused:
            k, v = moves.caches[:, i]
            q = layer.norm_qkv_into(
                x, self.norm, EPS, w["qkv"], (moves.tables[0], moves.tables[1]), moves.positions, k, v, moves.base,
                heads=m.heads, counts=moves.counts)  # fmt: skip
        else:
            moves.qkv = layer.norm_linear(x, self.norm, EPS, w["qkv"]).view(1, self.rows, -1, m.head_dim)
            q = moves.rotate(i)
        x = layer.linear_add(q.view(self.rows, -1), w["out"], x)
        y = layer.norm_gated_linear(x, self.norm, EPS, w["gate_up"])
        self.x = layer.linear_add(y, w["down"], x)

    def torch(self, i: int) -> None:
        """One layer."""
        w, m = self.weights[i], self.model
        x = self.moves.x if i == 0 else self.x
        qkv = F.linear(F.rms_norm(x, self.norm.shape, self.norm, EPS), w["qkv"])
        self.moves.qkv = qkv.view(1, self.rows, -1, m.head_dim)
        q = self.moves.rotate_torch(i)
        x = x + F.linear(q.reshape(self.rows, -1), w["out"])
        gate, up = F.linear(F.rms_norm(x, self.norm.shape, self.norm, EPS), w["gate_up"]).chunk(2, -1)
        self.x = x + F.linear(F.silu(gate) * up, w["down"])

    def measure(self) -> None:
        """A line a variant."""
        row = partial(self.bench.row, f"{self.model.name} layer", self.rows, calls=self.count, bytes=self.bytes)
        row("torch", self.torch)
        row("ours", self.ours)
        row("ours, rotation in a launch of its own", partial(self.ours, fused=False))
        row("ours, early", self.ours, under=early())
        for when in Early:
            row(f"ours, early: {when.name}", self.ours, under=early(when=when))
        row("ours, library", self.ours, under=forced(Library()))


def candidates(rows: int, depth: int, pairs: bool) -> list[Plan]:
    """What is worth trying for so many rows; pairs: of products that need two weights for a column."""
    weights = 2 if pairs else 1
    found: list[Plan] = []
    if rows <= 4:
        few = itertools.product((2, 4, 8, 16), (512, 1024, 2048), (2, 4, 8))
        found += [Few(n, k, w) for n, k, w in few if 32 <= n * k * rows // (32 * w) <= 128 // weights]
    if 1 < rows <= 300 and depth <= 2048:
        whole = [(16, 16, 4), (16, 16, 8), (16, 32, 4), (16, 32, 8), (32, 16, 4), (32, 16, 8), (32, 32, 8), (64, 16, 8)]
        found += [
            Whole(m, n, w) for m, n, w in whole if m < 2 * rows and (m + n * weights) * depth * 2 < 160_000 * w // 8
        ]
    if rows > 4:
        tiles = [
            (16, 16, 128, 3),
            (32, 32, 64, 4),
            (64, 32, 64, 4),
            (64, 64, 64, 4),
            (128, 64, 64, 4),
            (128, 128, 64, 3),
        ]
        found += [
            Tiles(m, n, k, warps=8 if m >= 128 else 4, stages=s)
            for m, n, k, s in tiles
            if m < 2 * rows and rows < 64 * m and m * n * weights <= 128 * 128
        ]
    return found


def warm(job: tuple[Model, str, int, list[Plan]]) -> None:
    """Compile plans in a process of its own; what Triton has compiled lies on the disk."""
    model, name, rows, plans = job
    product = Product(Bench(True), model, name, rows)
    for plan, when in itertools.product(plans, (None, *Early)):
        try:
            with forced(plan), early(when is not None, when):
                product.ours(0)
        except Exception as error:
            print(f"{plan}: {type(error).__name__}: {error}"[:200], flush=True)


def tune(bench: Bench, model: Model, names: list[str], all_rows: list[int]) -> None:
    """Every product with every candidate, launched early and not, the best of them first."""

    def plans(name: str, rows: int) -> list[Plan]:
        return candidates(rows, model.product(name)[1], name in ("gate_up", ROTATED))

    each = list(itertools.product(names, all_rows))
    jobs = [(model, name, rows, plans(name, rows)[i::3]) for name, rows in each for i in range(3)]
    with multiprocessing.get_context("spawn").Pool(14) as pool:
        pool.map(warm, jobs, chunksize=1)
    for name, rows in each:
        product = Product(bench, model, name, rows)
        found = []
        for plan in [*plans(name, rows), None]:
            both = []
            for when in (Early.AFTER_WAIT, Early.AT_ONCE, None):
                try:
                    with forced(plan), early(when is not None, when):
                        both.append(bench.us(product.ours, product.calls))
                except Exception as error:
                    print(f"{plan}: {type(error).__name__}: {error}"[:150], flush=True)
                    break
            if len(both) == 3:
                found.append((*both, str(plan or "as planned")))
        for after, at_once, not_early, plan in sorted(found)[:10]:
            line = f"early {after:6.2f} at once {at_once:6.2f} not {not_early:6.2f} µs {plan}"
            print(f"tune {model.name} {name:8} {rows:4} {line}", flush=True)


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the smallest model at two sizes")
    parser.add_argument("--tune", action="store_true", help="a grid of tiles for every product")
    parser.add_argument("--only", nargs="*", default=[*PRODUCTS, ROTATED, "rows", "layer"], help="qkv rotated …")
    parser.add_argument("--rows", nargs="*", type=int, help="M")
    parser.add_argument("--models", nargs="*", default=[model.name for model in MODELS])
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("These operations are measured on a CUDA device, and there is none here.", file=sys.stderr)
        return 1
    bench = Bench(given.quick)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16; R = 1, M rows")
    print(f"{'what':18} {'M':>5} {'variant':58} {'µs a call':>12}", flush=True)
    for model in MODELS:
        if model.name not in given.models or (given.quick and model is not MODELS[0]):
            continue
        sizes = given.rows or ([1, 33] if given.quick else [1, 16, 33, 65, 129] if model is MODELS[0] else [1, 65])
        if given.tune:
            tune(bench, model, [name for name in (*PRODUCTS, ROTATED) if name in given.only], sizes)
            continue
        for rows in sizes:
            for name in (*PRODUCTS, ROTATED):
                if name in given.only:
                    Product(bench, model, name, rows).measure()
            if "rows" in given.only:
                Rows(bench, model, rows).measure()
            if "layer" in given.only:
                Layers(bench, model, rows).measure()
    return 0


if __name__ == "__main__":
    sys.exit(main())
