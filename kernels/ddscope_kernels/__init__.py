"""What a step of tree speculative decoding computes besides the two models, one public function each, in torch.

`topk_logprobs` → `build_tree` (or `chain_tree`) → `visibility` → verify (a model's forward) → `walk` → `compact_kv`.
Imports torch (and, for compiled forms, triton) only: no model, no engine, no trace.
"""

from ddscope_kernels.kv import compact_kv
from ddscope_kernels.marginals import Marginals, count_nonfinite, ordered_topk, topk_logprobs
from ddscope_kernels.mask import ancestor_mask, ancestor_rows, causal_rows, visibility
from ddscope_kernels.noise import gumbel, perturbed_argmax
from ddscope_kernels.tree import DraftTree, build_tree, chain_tree
from ddscope_kernels.walk import walk

__all__ = [
    "DraftTree",
    "Marginals",
    "ancestor_mask",
    "ancestor_rows",
    "build_tree",
    "causal_rows",
    "chain_tree",
    "compact_kv",
    "count_nonfinite",
    "gumbel",
    "ordered_topk",
    "perturbed_argmax",
    "topk_logprobs",
    "visibility",
    "walk",
]
