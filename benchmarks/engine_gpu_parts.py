"""What a step of the embedded engine costs on a CUDA device beyond its two forwards: µs of graphs, in one run.

    python benchmarks/engine_gpu_parts.py [--requests 1 8] [--budgets 16 32 64] [--target FOLDER]

The forwards alone are a graph too: drafter and its head, target and its head over the same rows, the drafter's reading
of the path. What a whole step takes longer is top-k, tree, choice, walk, compaction and the requests' moving on, and
the waiting between all of them. Both graphs take turns; requests stand still meanwhile.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from torch import Tensor

from ddscope.engine.device.decoder import Decoder
from ddscope.engine.device.ladder import standing_us
from ddscope.engine.device.models import Rows
from ddscope.engine.device.plan import Plan
from ddscope.engine.device.step import Step
from ddscope.engine.pair import Pair, load_pair
from ddscope.engine.step import Params

sys.path.insert(0, str(Path(__file__).parent))
from engine_gpu import held_out

STEPS = 40


class ForwardsStep(Step):
    """The two forwards of a step over a tree that is as large as the budget, and nothing else."""

    def run(self, tell: Callable[[dict[str, Tensor]], None]) -> None:
        """Draft, verify, read; the same every time."""
        plan, state, trees = self.plan, self.state, self._trees
        if not torch.cuda.is_current_stream_capturing():  # a chain in the tree's buffers, so that all rows are there
            self._fixed(trees)
            trees.tokens.fill_(7)
            torch.add(state.base[:, None], trees.depths.clamp(max=plan.depths), out=trees.positions)
            self._path = torch.arange(plan.depths + 1, device=state.base.device, dtype=torch.int32)
            self._path = self._path.expand(len(state.base), -1).contiguous()
        if plan.depths:
            positions = state.base[:, None] + self._offsets[: plan.depths + 1]
            rows = Rows(positions, state.base, self._block_bits, self._block_counts)
            self.draft_logits(self.drafter.draft(state.block[:, : plan.depths + 1], rows))
        ids = torch.cat([state.root[:, None], trees.tokens], dim=1)
        rows = Rows(trees.positions, state.base, trees.bits, trees.counts)
        last, captured = self.target.forward(ids, rows, self.drafter.config.target_layer_ids)
        F.linear(last, self.target.head)
        self.drafter.read(captured, self._path, state.base)
        tell({"emitted": ids})


def main() -> int:
    """Run; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", type=Path, help="folder of the target (the embedded engine's own)")
    parser.add_argument("--draft", type=Path, help="folder of its drafter")
    parser.add_argument("--requests", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--budgets", type=int, nargs="*", default=[16, 32, 64, 128, 255])
    parser.add_argument("--rows", type=int, default=1024, help="rows of a request's cache")
    given = parser.parse_args()
    given.synthetic = None
    if not torch.cuda.is_available():
        print("This is measured on a CUDA device, and there is none here.", file=sys.stderr)
        return 1
    pair = load_pair(given.target, given.draft, "bfloat16", torch.device("cuda"))
    prompts = held_out(pair, given)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {pair.title}")
    for requests in given.requests:
        print(f"{requests} request(s)\n  {'':12} {'step µs':>9} {'forwards':>9} {'beyond':>9}")
        measure(pair, given, requests, prompts)
    return 0


def measure(pair: Pair, given: argparse.Namespace, requests: int, prompts: list[list[int]]) -> None:
    """A table of one number of requests."""
    decoders = []
    for make in (Step, ForwardsStep):
        decoder = Decoder(pair, requests=requests, rows=given.rows, most=max(given.budgets), make_step=make)
        for place, prompt in enumerate(prompts[:requests]):
            decoder.load(place, prompt, max_new_tokens=64)
        decoders.append(decoder)
    rows = [("plain", Params("autoregressive")), ("chain", Params("dflash"))]
    rows += [(f"tree {budget}", Params("ddtree", budget)) for budget in given.budgets]
    for name, params in rows:
        plan = Plan.of(params, pair.drafter.config, traced=False)
        turns: list[list[int]] = [[], []]
        for _ in range(5):
            for decoder, times in zip(decoders, turns, strict=True):
                times += standing_us(decoder, plan, STEPS)[4:]  # the first ones wake the clocks
        whole, forwards = map(median, turns)
        print(f"  {name:12} {whole:9.1f} {forwards:9.1f} {whole - forwards:9.1f}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
