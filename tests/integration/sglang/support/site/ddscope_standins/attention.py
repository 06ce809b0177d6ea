"""TEST SUPPORT: an attention back end in torch that knows tree masks, several draft steps and DFLASH's blocks.

SGLang's own torch_native knows none of these. It is registered under that name: only known names pass the arguments.
"""

import torch
from sglang.srt.layers.attention.attention_registry import register_attention_backend
from sglang.srt.layers.attention.torch_native_backend import TorchNativeAttnBackend
from sglang.srt.layers.radix_attention import AttentionType
from sglang.srt.mem_cache.memory_pool import KVWriteLoc
from sglang.srt.speculative.draft_utils import DraftBackendFactory
from sglang.srt.speculative.frozen_kv_mtp_worker_v2 import FrozenKVMTPDraftWorker
from torch.nn.functional import scaled_dot_product_attention

NAMES = ("torch_native", "intel_amx")
"""Some models do not take the first; the second is SGLang's own for CPUs, and needs kernels that are not here."""


class TreeAttention(TorchNativeAttnBackend):
    """One forward for all shapes: rows of the queries, slots of the keys, and which of them each query sees."""

    slots_of_step = None
    """Slots of each row, where this is one step of a drafter's loop (`DraftSteps` sets it)."""

    def forward_extend(self, q, k, v, layer, forward_batch, save_kv_cache=True, **_):
        self._write(k, v, layer, forward_batch, save_kv_cache)
        queries = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        out = torch.zeros_like(queries)
        table, start = self.req_to_token_pool.req_to_token, 0
        for row, before, new, seen in self._rows(layer, forward_batch):
            slots = table[row, : before + new].long()
            mask = torch.cat([torch.ones(new, before, dtype=torch.bool), seen], dim=1)
            out[start : start + new] = self._attend(queries[start : start + new], layer, slots, mask)
            start += new
        return out.view_as(q)

    def forward_decode(self, q, k, v, layer, forward_batch, save_kv_cache=True, **_):
        self._write(k, v, layer, forward_batch, save_kv_cache)
        queries = q.reshape(-1, layer.tp_q_head_num, layer.qk_head_dim)
        rows = self.slots_of_step
        if rows is None:
            table = self.req_to_token_pool.req_to_token
            lengths = zip(forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist(), strict=True)
            rows = [table[row, :length].long() for row, length in lengths]
        out = torch.zeros_like(queries)
        for i, slots in enumerate(rows):
            out[i : i + 1] = self._attend(queries[i : i + 1], layer, slots, None)
        return out.view(q.shape[0], -1)

    def _rows(self, layer, forward_batch):
        """(row of the pool, tokens before, new tokens, which new ones see which) of each request with new tokens."""
        verify, masks = forward_batch.forward_mode.is_target_verify(), None
        lengths = forward_batch.seq_lens.tolist()
        if verify:
            info = forward_batch.spec_info
            new = [info.draft_token_num] * len(lengths)
            before = lengths
            if getattr(info, "tree_topk", 1) != 1:
                masks = _tails(info.custom_mask, lengths, new[0])
        else:
            new = forward_batch.extend_seq_lens.tolist()
            before = [length - n for length, n in zip(lengths, new, strict=True)]
        for b, row in enumerate(forward_batch.req_pool_indices.tolist()):
            if new[b] == 0:
                continue
            seen = torch.ones(new[b], new[b], dtype=torch.bool)
            if masks is not None:
                seen = masks[b]
            elif layer.attn_type != AttentionType.ENCODER_ONLY and getattr(layer, "is_causal", True) is not False:
                seen = seen.tril()
            yield row, before[b], new[b], seen

    def _attend(self, queries, layer, slots, mask):
        keys = self.token_to_kv_pool.get_key_buffer(layer.layer_id)[slots].transpose(0, 1)
        values = self.token_to_kv_pool.get_value_buffer(layer.layer_id)[slots].transpose(0, 1)
        heads = queries.transpose(0, 1)
        out = scaled_dot_product_attention(
            heads[None], keys[None], values[None], attn_mask=mask, scale=layer.scaling, enable_gqa=True
        )
        return out[0].transpose(0, 1)

    def _write(self, k, v, layer, forward_batch, save):
        if save and k is not None:
            self.token_to_kv_pool.set_kv_buffer(layer, KVWriteLoc(forward_batch.out_cache_loc, None), k, v)


def _tails(mask, lengths, nodes):
    """[nodes, nodes] of each request; a mask may have columns for what comes before the nodes, too."""
    wide = [0 if mask.numel() == len(lengths) * nodes**2 else length for length in lengths]
    rows = mask.view(-1).split([(before + nodes) * nodes for before in wide])
    return [row.view(nodes, -1)[:, before:].bool() for row, before in zip(rows, wide, strict=True)]


class DraftSteps:
    """The back ends of a drafter's loop: at step s, row (request, branch) sees the prompt and its own s + 1 slots."""

    def __init__(self, runner, topk, steps):
        self.topk, self.steps = topk, steps
        self.attn_backends = [TreeAttention(runner) for _ in range(steps - 1)]

    def init_forward_metadata(self, forward_batch):
        table = self.attn_backends[0].req_to_token_pool.req_to_token
        rows = list(zip(forward_batch.req_pool_indices.tolist(), forward_batch.seq_lens.tolist(), strict=True))
        for step, backend in enumerate(self.attn_backends):
            backend.slots_of_step = [
                torch.cat([table[row, :length], table[row, first : first + step + 1]]).long()
                for row, length in rows
                for first in range(length, length + self.topk * self.steps, self.steps)
            ]


def install():
    """Register the back end, and let SGLang's drafters have it."""
    for name in NAMES:
        register_attention_backend(name)(TreeAttention)
    FrozenKVMTPDraftWorker._init_draft_attn_backend = lambda worker: TreeAttention(worker.draft_model_runner)
    create = DraftBackendFactory._create_backend

    def create_backend(self, name, makers, error, stamps_children=False):
        runner = self.draft_model_runner

        def make():
            many = "decode attention backend" in error
            backend = DraftSteps(runner, self.topk, self.speculative_num_steps) if many else TreeAttention(runner)
            return "torch_native", backend

        return create(self, name, {**makers, "torch_native": make}, error, stamps_children=False)

    DraftBackendFactory._create_backend = create_backend
