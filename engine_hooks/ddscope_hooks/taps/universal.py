"""What every algorithm shows, also one of a fork or a plug-in: the target's verify and the result that comes of it.

Reads attributes that verify inputs of any algorithm have by convention. What is not there is left out.
"""

from __future__ import annotations

from typing import Any

from ddscope_hooks.taps.core import Core
from ddscope_hooks.taps.hooks import Hook

NAME = "universal"
ALGORITHMS = None

_WORKER = "sglang.srt.managers.tp_worker.TpModelWorker.forward_batch_generation"
_INPUTS = "sglang.srt.managers.overlap_utils.resolve_forward_inputs"
"""The first thing a pass does on the stream of its forward."""
_RESULT = "sglang.srt.managers.utils.GenerationBatchResult"
LINKS = (("positions", "positions"), ("next", "retrieve_next_token"), ("sibling", "retrieve_next_sibling"))
MODES = ("QLEN_ONLY", "FULL_MASK")
MASK_EVERY = 16
"""A mask over the whole context is cut out of its buffer in so many passes once: that costs some kernels."""


def hooks(core: Core) -> list[list[Hook]]:
    """One place in 0.5.17 and 0.5.23; without the last hook a pass on a GPU does not tell when it began."""

    def verify(batch: Any, forward: Any, is_verify: Any) -> None:
        if is_verify:
            core.mark("verify", getattr(_info(batch, forward), "draft_token", None))

    def verified(result: Any, worker: Any, batch: Any, forward: Any, is_verify: Any) -> None:
        if not core.capture:
            return
        if is_verify:
            _take(core, _info(batch, forward), forward if forward is not None else batch, worker, result)
        elif core.algorithm == PLAIN:
            _plain(core, forward if forward is not None else batch, result)

    def made(_: Any, result: Any) -> None:
        if core.capture and result.accept_lens is not None:
            cargo = core.cargo
            if cargo is not None and cargo.n and not cargo.chain and "accept_index" not in cargo.parts:
                core.put("accept_index", getattr(result, "accept_index", None))
            core.attach(result)

    def drafting(batch: Any) -> None:
        core.mark("draft", batch.seq_lens)

    pair = [
        Hook(_WORKER, "before", ("batch", "forward_batch", "is_verify"), verify, gate=core.timing),
        Hook(_WORKER, "after", ("self", "batch", "forward_batch", "is_verify"), verified),
        Hook(f"{_RESULT}.__init__", "after", ("self",), made),
    ]
    return [[*pair, Hook(_INPUTS, "before", ("batch",), drafting, gate=core.timing)], pair]


PLAIN = "autoregressive"
"""Name of decoding without speculation, as in the embedded engine."""


def _info(batch: Any, forward: Any) -> Any:
    return getattr(forward if forward is not None else batch, "spec_info", None)


def _take(core: Core, info: Any, forward: Any, worker: Any, result: Any) -> None:
    """References to what the verify was given, and to its logits."""
    draft, n = getattr(info, "draft_token", None), getattr(info, "draft_token_num", None)
    cargo, nodes = core.cargo, 0 if draft is None else draft.numel()
    if cargo is None or not nodes or not isinstance(n, int) or n < 1 or nodes % n:
        return
    cargo.n, cargo.size = n, nodes // n
    cargo.chain = getattr(info, "tree_topk", getattr(info, "topk", None)) == 1
    if not cargo.host:
        cargo.parts["draft"] = draft
    # A chain needs no links, nor does a tree that is on the host already.
    for name, attribute in LINKS[:1] if cargo.chain or cargo.host else LINKS:
        tensor = getattr(info, attribute, None)
        if tensor is not None and tensor.numel() == nodes:
            cargo.parts[name] = tensor
    if not cargo.host:
        core.put("mask", _mask(core, info, n, cargo.size, forward, worker))
    output = result.logits_output
    if output is not None:
        cargo.logits = output.next_token_logits
    if cargo.clock is not None:
        cargo.clock.mark("verified", draft)


def _plain(core: Core, forward: Any, result: Any) -> None:
    """Decoding without speculation: nothing but the logits."""
    output = result.logits_output
    if not forward.forward_mode.is_decode() or output is None or output.next_token_logits is None:
        return
    logits = output.next_token_logits
    core.about(n=1, size=logits.shape[0])
    core.logits(logits)
    core.attach(result)


def _mask(core: Core, info: Any, n: int, size: int, forward: Any, worker: Any) -> Any:
    """[size, n, n]: which nodes each node sees; None where no mask is read, or its layout is not known."""
    mask = getattr(info, "custom_mask", None)
    if mask is None or (mask.numel() != size * n * n and core.passes % MASK_EVERY and not mask.is_cpu):
        return None  # most passes on a GPU end here
    kept = getattr(getattr(worker.model_runner, "attn_backend", None), "verify_mask", None)
    mode = getattr(getattr(kept, "mode", None), "name", None)
    # Some backends keep a byte for each cell in a buffer of their own; other whole numbers are packed bits.
    if str(mask.dtype) != "torch.bool" and not (mode in MODES and str(mask.dtype) == "torch.uint8"):
        return None
    if (kept is not None and not getattr(kept, "is_read", True)) or mask.numel() < size * n * n:
        return None
    if mode == "QLEN_ONLY" or (mode is None and mask.numel() == size * n * n):
        return mask.view(-1)[: size * n * n]
    if mode not in (None, "FULL_MASK") or core.passes % MASK_EVERY:
        return None
    import torch

    # Rows are as long as the request's context and its nodes; the nodes' own columns come last. The index never leaves
    # the buffer, whatever the lengths say: outside it the device would stop the server.
    context = forward.seq_lens[:size].to(torch.int64)
    wide = context + n
    node = torch.arange(n, device=mask.device)
    start = torch.cumsum(wide * n, 0) - wide * n + context
    index = start[:, None, None] + node[None, :, None] * wide[:, None, None] + node[None, None, :]
    return mask.view(-1)[index.clamp_(0, mask.numel() - 1)]
