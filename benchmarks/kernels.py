"""The kernels of a step on a CUDA device: µs by replays of a CUDA graph, against alternatives measured in the same run.

    python benchmarks/kernels.py [--quick] [--json FILE] [--tune SECONDS]

GB/s counts what must be read and written once, TFLOP/s the multiplications and additions that must be done; the share
is of this device's own ceilings (a large copy, a large bfloat16 product), measured first. Everything is captured with
static shapes; what works on the host is timed by the wall, from data on the device to data on the device.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

try:
    import ddscope_kernels
except ModuleNotFoundError:  # a checkout on a machine where nothing is installed
    sys.path.insert(0, str(Path(__file__).parents[1] / "kernels"))
    import ddscope_kernels

import torch
import torch.nn.functional as F
from kernels_measure import Bench, Lost, Row, ceilings
from torch import Tensor

from ddscope_kernels import batched

DEPTHS, K = 15, 64


def topk(bench: Bench) -> None:
    """Candidates from logits, and from hidden states."""
    width = 576
    for requests, size in (
        [(1, 49152), (8, 49152)] if bench.quick else [(1, 49152), (8, 49152), (32, 49152), (1, 151936)]
    ):
        logits = bench.random(requests, DEPTHS, size) * 4
        shape = f"R {requests}, V {size}"
        counted = {"bytes": logits.numel() * logits.element_size()}

        def eager(x: Tensor) -> tuple[Tensor, Tensor]:
            wide = x.float()
            top = wide.topk(K)
            return top.values - wide.logsumexp(-1, keepdim=True), top.indices

        def ours(x: Tensor = logits) -> Any:
            return batched.topk_logprobs(x, K)

        bench.add("topk_logprobs", shape, "ours", ours, **counted)
        bench.add("topk_logprobs", shape, "torch topk + logsumexp", lambda x=logits: eager(x), **counted)
        if not bench.quick:
            compiled = torch.compile(eager)
            bench.add("topk_logprobs", shape, "the same, torch.compile", lambda x=logits, f=compiled: f(x), **counted)
        # In a step the head has left the cache since it was last read: two of them take turns here.
        hidden, heads = bench.random(requests, DEPTHS, width), [bench.random(size, width) for _ in range(2)]
        counted = {"bytes": heads[0].numel() * 2, "flops": 2 * hidden.numel() * size}
        fused = "hidden @ lm_headᵀ + topk"
        for variant, function in (
            ("ours, fused", lambda h, w: batched.topk_logprobs(h, K, w)),
            ("torch product + ours", lambda h, w: batched.topk_logprobs(h @ w.T, K)),
            ("torch throughout", lambda h, w: eager(h @ w.T)),
        ):
            calls = [partial(function, hidden, head) for head in heads]
            bench.add(fused, shape, variant, *calls, **counted)


def marginals(bench: Bench, requests: int, sharp: tuple[float, float] = (8.0, 4.0)) -> tuple[Tensor, Tensor]:
    """Candidates of a drafter whose first token has 0.77 at depth 1, 0.36 at depth 15: trees of 10 to 15 depths.

    sharp: deviation of the logits at the first and the last depth; (3, 1) are flat, and trees of 3 to 6 depths.
    """
    random = torch.Generator(bench.device).manual_seed(7)
    scale = torch.linspace(*sharp, DEPTHS, device=bench.device)[None, :, None]
    logits = torch.randn(requests, DEPTHS, 4096, generator=random, device=bench.device) * scale
    top = logits.log_softmax(-1).topk(K)
    return top.values, top.indices


def build(bench: Bench) -> None:
    """Trees with positions and bits, with the dense mask, and the heap of the host."""
    budgets = (16, 64, 256, 512, 1024) if bench.quick else (16, 32, 64, 128, 256, 512, 1024)
    sure, flat = (8.0, 4.0), (3.0, 1.0)
    for requests, sharp in (
        ((1, sure), (1, flat), (32, sure)) if bench.quick else ((1, sure), (1, flat), (8, sure), (32, sure))
    ):
        logprobs, ids = marginals(bench, requests, sharp)
        base = torch.zeros(requests, dtype=torch.int64, device=bench.device)
        for budget in budgets:
            shape = f"R {requests}, B {budget}{', flat' if sharp is flat else ''}"
            ways = [(False, None)] if bench.quick and budget > 256 else [(False, None), (False, torch.bool)]
            ways += [(True, None)] if budget > 32 else []
            for merge, mask in ways:
                out = batched.empty_trees(requests, budget, bench.device, mask)
                call = partial(batched.build_tree, logprobs, ids, budget, base=base, out=out, merge=merge)
                variant = (
                    f"ours, {'by merges' if merge else 'by pointers'}, {'bits' if mask is None else 'bool mask too'}"
                )
                bench.add("build_tree", shape, variant, call)

            def heap(p: Tensor = logprobs, i: Tensor = ids, b: int = budget) -> None:
                for one, these in zip(p.cpu(), i.cpu(), strict=True):
                    tree = ddscope_kernels.build_tree(one, these, b)
                    ddscope_kernels.visibility(tree.rows, device=bench.device)
                    torch.tensor(tree.tokens).to(bench.device)

            if requests == 1 and sharp is sure:
                bench.add("build_tree", shape, "heap on the host", heap, host=True)


def choose(bench: Bench) -> None:
    """The target's tokens after all nodes: argmax, and one draw each."""
    for requests, nodes in ((1, 65), (8, 65)):
        logits = bench.random(requests, nodes, 49152)
        counted = {"bytes": logits.numel() * 2}
        draws = {
            "temperatures": torch.full((requests,), 0.7, device=bench.device),
            "seeds": torch.arange(requests, device=bench.device),
            "positions": torch.arange(nodes, device=bench.device).expand(requests, nodes).contiguous(),
        }
        shape = f"R {requests}, {nodes} nodes, V 49152"
        bench.add("choose", shape, "ours, argmax", lambda x=logits: batched.choose(x), **counted)
        bench.add("choose", shape, "torch argmax", lambda x=logits: x.argmax(-1), **counted)
        bench.add("judge", shape, "ours", lambda x=logits: batched.judge(x), **counted)
        bench.add(
            "judge", shape, "torch topk 2 + logsumexp", lambda x=logits: (x.topk(2), x.float().logsumexp(-1)), **counted
        )
        bench.add("choose", shape, "ours, draws", lambda x=logits, d=draws: batched.choose(x, **d), **counted)
        bench.add(
            "choose",
            shape,
            "torch softmax + exponential",
            lambda x=logits: (
                (x / 0.7).float().softmax(-1) / torch.empty_like(x, dtype=torch.float32).exponential_()
            ).argmax(-1),
            **counted,
        )


def walk(bench: Bench) -> None:
    """Greedy paths through full trees."""
    for requests, budget in ((1, 64), (32, 256)):
        logprobs, ids = marginals(bench, requests)
        trees = batched.build_tree(logprobs, ids, budget)
        # The target chooses the likeliest child of each node; what has none writes to the last node, a leaf.
        choices = torch.full((requests, budget + 1), -1, device=bench.device)
        choices.scatter_(1, torch.where(trees.ranks == 0, trees.parents, budget).long(), trees.tokens)
        room = torch.full((requests,), 999, dtype=torch.int32, device=bench.device)
        out = batched.empty_walks(requests, DEPTHS + 1, bench.device)
        eos = torch.tensor([2], device=bench.device)

        def ours(t: batched.TreeBatch = trees, c: Tensor = choices, e: Tensor = eos, left: Tensor = room,
                 o: batched.WalkBatch = out) -> Any:  # fmt: skip
            return batched.walk(t.tokens, t.parents, t.counts, c, DEPTHS, eos=e, room=left, out=o)

        def host(t: batched.TreeBatch = trees, c: Tensor = choices) -> None:
            for r, count in enumerate(t.counts.tolist()):
                tokens, parents = t.tokens[r, :count].tolist(), t.parents[r, :count].tolist()
                torch.tensor(ddscope_kernels.walk(tokens, parents, c[r, : count + 1].tolist())[0]).to(bench.device)

        bench.add("walk", f"R {requests}, B {budget}", "ours", ours)
        bench.add("walk", f"R {requests}, B {budget}", "lists on the host", host, host=True)


def compact(bench: Bench) -> None:
    """Eight accepted rows of all layers, spread over a tree of 64."""
    for name, layers, heads, width in (("135M", 30, 3, 64), ("8B", 36, 8, 128)):
        cache = bench.random(2 * layers, 1, heads, 2048, width)
        path = torch.tensor([[0, 2, 5, 9, 17, 30, 44, 60]], dtype=torch.int32, device=bench.device)
        lengths = torch.full((1,), 8, dtype=torch.int32, device=bench.device)
        base = torch.full((1,), 1000, device=bench.device)
        counted = {"bytes": 2 * 7 * 2 * layers * heads * width * 2}
        target = torch.arange(8, device=bench.device)

        def plain(c: Tensor = cache, p: Tensor = path, b: Tensor = base, t: Tensor = target) -> None:
            c.index_copy_(3, b + t, c.index_select(3, b + p[0]))

        straight = torch.arange(8, dtype=torch.int32, device=bench.device)[None]

        def ours(p: Tensor, c: Tensor = cache, n: Tensor = lengths, b: Tensor = base) -> None:
            batched.compact_kv(c, p, n, base=b)

        bench.add("compact_kv", name, "ours", lambda p=path, f=ours: f(p), **counted)
        bench.add("compact_kv", name, "torch index_select + index_copy", plain, **counted)
        bench.add("compact_kv", name, "ours, path 0..7", lambda p=straight, f=ours: f(p))


def attention(bench: Bench) -> None:
    """A tree of 64 over prefixes, one layer."""
    budget = 64
    logprobs, ids = marginals(bench, 1)
    trees = batched.build_tree(logprobs, ids, budget, mask=torch.bool)
    for name, heads, kv_heads, width in (("9/3 × 64", 9, 3, 64), ("32/8 × 128", 32, 8, 128)):
        for prefix in (512, 8192) if bench.quick else (512, 4096, 32768):
            rows = prefix + budget + 1
            q = bench.random(1, budget + 1, heads, width)
            k, v = bench.random(1, kv_heads, rows, width), bench.random(1, kv_heads, rows, width)
            lengths = torch.full((1,), prefix, dtype=torch.int32, device=bench.device)
            repeated = [x.repeat_interleave(heads // kv_heads, 1) for x in (k, v)]
            shape = f"{name}, {prefix} rows"
            counted = {"bytes": 2 * k.numel() * 2 + 2 * q.numel() * 2, "flops": 4 * q.numel() * rows}
            mask = torch.cat([torch.ones(budget + 1, prefix, dtype=torch.bool, device=bench.device), trees.mask[0]], 1)  # type: ignore[index]
            bench.add(
                "tree_attention",
                shape,
                "ours",
                lambda q=q, k=k, v=v, n=lengths: batched.tree_attention(q, k, v, trees.bits, n),
                **counted,
            )
            bench.add(
                "tree_attention",
                shape,
                "SDPA, bool mask, heads repeated before",
                lambda q=q, k=repeated[0], v=repeated[1], m=mask: F.scaled_dot_product_attention(
                    q.transpose(1, 2), k, v, attn_mask=m[None, None]
                ),
                **counted,
            )
            if not bench.quick:
                _others(bench, shape, q, k, v, mask, counted)


def _others(bench: Bench, shape: str, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, counted: dict[str, int]) -> None:
    """FlexAttention and FlashInfer's custom mask, where they can be had."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    flex = torch.compile(flex_attention, dynamic=False)
    block_mask = create_block_mask(
        lambda _b, _h, i, j: mask[i, j], None, None, mask.shape[0], mask.shape[1], device=str(bench.device)
    )
    moved = q.transpose(1, 2).contiguous()
    bench.add(
        "tree_attention",
        shape,
        "FlexAttention (block mask made before)",
        lambda: flex(moved, k, v, block_mask=block_mask, enable_gqa=True),
        **counted,
    )
    try:
        import flashinfer  # type: ignore[import-not-found]
    except ImportError:
        bench.show(Row("tree_attention", shape, "FlashInfer custom_mask", 0.0, note="not installed here"))
        return
    rows_first = (k[0].transpose(0, 1).contiguous(), v[0].transpose(0, 1).contiguous())
    bench.add(
        "tree_attention",
        shape,
        "FlashInfer custom_mask",
        lambda: flashinfer.single_prefill_with_kv_cache(q[0], *rows_first, custom_mask=mask),
        **counted,
    )


PARTS = {"build": build, "topk": topk, "attention": attention, "choose": choose, "walk": walk, "compact": compact}


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--quick", action="store_true", help="fewer shapes and replays, no alternative that is compiled"
    )
    parser.add_argument(
        "--tune",
        type=float,
        metavar="SECONDS",
        help="try tile sizes for so long, and nothing else (of attention, build, topk)",
    )
    parser.add_argument("--only", nargs="*", choices=PARTS, help="these parts alone, in this order")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows here too, a line of JSON each")
    given = parser.parse_args()
    if not torch.cuda.is_available():
        print("These kernels are measured on a CUDA device, and there is none here.", file=sys.stderr)
        return 1
    with given.json.open("w") if given.json else nullcontext() as file:
        bench = Bench(given.quick, torch.device("cuda"), file)
        properties = torch.cuda.get_device_properties(0)
        print(f"{properties.name}, {properties.multi_processor_count} multiprocessors, torch {torch.__version__}")
        print(f"R requests, {DEPTHS} depths of {K} candidates, budgets B without the root, bfloat16")
        bench.copied, bench.product = ceilings(bench)
        print(f"ceilings: copy {bench.copied / 1e12:.2f} TB/s, bfloat16 product {bench.product / 1e12:.0f} TFLOP/s\n")
        titles = ("kernel", "shape", "variant", "µs", "GB/s", "share", "TFLOP/s", "share")
        print("{:26} {:26} {:38} {:>9} {:>7} {:>6} {:>8} {:>6}".format(*titles))
        bench.write(
            {"device": properties.name, "torch": torch.__version__, "copy": bench.copied, "product": bench.product}
        )
        if given.tune:
            from kernels_tune import tune

            tune(bench, given.tune, *marginals(bench, 1), given.only)
            return 0
        try:
            for name in given.only or PARTS:
                began = perf_counter()
                PARTS[name](bench)
                print(f"# {name}: {perf_counter() - began:.1f} s", flush=True)
        except Lost as lost:
            print(lost, file=sys.stderr, flush=True)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
