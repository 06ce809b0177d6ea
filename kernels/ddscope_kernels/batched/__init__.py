"""A step of tree speculative decoding for a batch of requests: tensors of fixed shape, counts that stay on the device.

The functions of `ddscope_kernels` under the same names, one request a row. On CUDA tensors, or with TRITON_INTERPRET=1,
they are Triton kernels that wait for no host and can be captured in a CUDA graph; elsewhere the references, row by row.
"""

from ddscope_kernels.batched.advance import advance
from ddscope_kernels.batched.attention import tree_attention
from ddscope_kernels.batched.backend import use_triton
from ddscope_kernels.batched.choose import choose, gumbel_noise
from ddscope_kernels.batched.judge import JudgementBatch, judge
from ddscope_kernels.batched.kv import compact_kv
from ddscope_kernels.batched.marginals import MarginalsBatch, topk_logprobs
from ddscope_kernels.batched.tree import TreeBatch, build_tree, empty_trees, unpack_bits
from ddscope_kernels.batched.walk import WalkBatch, empty_walks, walk

__all__ = [
    "JudgementBatch",
    "MarginalsBatch",
    "TreeBatch",
    "WalkBatch",
    "advance",
    "build_tree",
    "choose",
    "compact_kv",
    "empty_trees",
    "empty_walks",
    "gumbel_noise",
    "judge",
    "topk_logprobs",
    "tree_attention",
    "unpack_bits",
    "use_triton",
    "walk",
]
