"""TEST SUPPORT: a pure-torch stand-in for the CPU build of sgl_kernel, of which no wheel exists.

Only what text generation and speculation of SGLang 0.5.23 call with device=cpu. Made to be read: batches are tiny.
Anything else can be imported and raises when it is called.
"""

import ctypes

import torch

FULL_MASK = 0
"""TreeMaskMode: a row of the mask covers the whole sequence; otherwise it covers the tree's nodes only."""


def build_tree_kernel_efficient_cpu(
    parent_list, selected_index, seq_lens, tree_mask, positions,
    retrieve_index, retrieve_next_token, retrieve_next_sibling, topk, depth, nodes, mode,
):  # fmt: skip
    """Mask, positions and child/sibling links of EAGLE's trees. Node 0 is the root; node i is selected_index[i - 1].

    A selected candidate c hangs below the root where c // topk is 0, else below the candidate parent_list[c // topk].
    """
    batch = seq_lens.numel()
    flat, start = tree_mask.view(-1), 0
    for b, length in enumerate(seq_lens.tolist()):
        chosen = selected_index.view(batch, -1)[b].tolist()
        candidates = parent_list.view(batch, -1)[b].tolist()
        parents = [0]
        for candidate in chosen:
            row = candidate // topk
            parents.append(0 if row == 0 else chosen.index(candidates[row]) + 1)
        retrieve_index[b] = torch.arange(b * nodes, (b + 1) * nodes)
        _link(parents, retrieve_next_token[b], retrieve_next_sibling[b])
        width = length + nodes if int(mode) == FULL_MASK else nodes
        for i in range(nodes):
            tail = flat[start + width * (i + 1) - nodes : start + width * (i + 1)]
            seen = _closure(parents, i)
            tail[:] = False
            tail[seen] = True
            positions[b * nodes + i] = length + len(seen) - 1
        start += width * nodes


def verify_tree_greedy_cpu(
    predicts, accept_index, accept_token_num, candidates,
    retrive_index, retrive_next_token, retrive_next_sibling, target_predict,
):  # fmt: skip
    """From the root to the child that holds the target's choice, until there is none: that choice is the bonus."""
    wanted = target_predict.reshape(-1).tolist()
    for b in range(candidates.shape[0]):
        node, accepted = 0, 0
        accept_index[b, 0] = retrive_index[b, 0]
        while True:
            row = int(retrive_index[b, node])
            predicts[row] = wanted[row]
            child = int(retrive_next_token[b, node])
            while child != -1 and int(candidates[b, child]) != wanted[row]:
                child = int(retrive_next_sibling[b, child])
            if child == -1 or accepted + 1 == accept_index.shape[1]:
                break
            node, accepted = child, accepted + 1
            accept_index[b, accepted] = retrive_index[b, node]
        accept_token_num[b] = accepted


def assign_req_to_token_pool_cpu(req_pool_indices, req_to_token, start, end, cache_loc, pool_len):
    """Give each request its next slots."""
    taken = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[row, first:last] = cache_loc[taken : taken + last - first].to(req_to_token.dtype)
        taken += last - first


def assign_extend_cache_locs_cpu(req_pool_indices, req_to_token, start, end, out_cache_loc, pool_len):
    """The slots of positions start … end of each request, packed."""
    put = 0
    for row, first, last in zip(req_pool_indices.tolist(), start.tolist(), end.tolist(), strict=True):
        out_cache_loc[put : put + last - first] = req_to_token[row, first:last].to(out_cache_loc.dtype)
        put += last - first


def assign_draft_cache_locs_contiguous_cpu(
    req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, steps
):
    """topk · steps slots of each request, from its length on."""
    flat, count = out_cache_loc.view(-1), topk * steps
    for i, (row, length) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        flat[i * count : (i + 1) * count] = req_to_token[row, length : length + count].to(flat.dtype)


def fill_bonus_tokens_cpu(accept_tokens, accept_lens, bonus_tokens, stride):
    """The last accepted token of each request; the lengths count it."""
    flat = accept_tokens.reshape(-1)
    for i, length in enumerate(accept_lens.tolist()):
        bonus_tokens[i] = flat[i * stride + length - 1].to(bonus_tokens.dtype)


def fill_accept_out_cache_loc_cpu(accept_index, out_cache_loc, accept_out_cache_loc):
    """Slots of accepted nodes, packed to the front."""
    flat = accept_index.reshape(-1)
    kept = flat[flat > -1].long()
    accept_out_cache_loc[: kept.numel()] = out_cache_loc[kept]


def rotate_input_ids_cpu(input_ids, start, lens, topk_index, select_index=None):
    """Shift each request's ids by one to the left and put its new token at the end (or where select_index says)."""
    new = topk_index.reshape(-1).to(input_ids.dtype)
    for i, (first, length) in enumerate(zip(start.tolist(), lens.tolist(), strict=True)):
        if length == 0:
            continue
        input_ids[first : first + length - 1] = input_ids[first + 1 : first + length].clone()
        input_ids[first + length - 1 if select_index is None else int(select_index[i])] = new[i]


def copy_all_layer_kv_cache_cpu(data_ptrs, strides, target, source):
    """Move rows of every layer's buffer, given by address and bytes a row: all are read before the first is written."""
    if not target.numel():
        return
    rows = int(torch.maximum(target.max(), source.max())) + 1
    for address, stride in zip(data_ptrs.tolist(), strides.tolist(), strict=True):
        memory = (ctypes.c_uint8 * (rows * stride)).from_address(address)
        buffer = torch.frombuffer(memory, dtype=torch.uint8).view(rows, stride)
        buffer[target.long()] = buffer[source.long()]


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*args, **kwargs):
        raise NotImplementedError(f"the stand-in for sgl_kernel has no {name}")

    missing.__name__ = name
    return missing


def _closure(parents, node):
    """A node and its ancestors, the root included."""
    seen = [node]
    while node:
        node = parents[node]
        seen.append(node)
    return seen


def _link(parents, next_token, next_sibling):
    """First child and next sibling of every node, −1 for none; children in node order."""
    next_token.fill_(-1)
    next_sibling.fill_(-1)
    for node in range(len(parents) - 1, 0, -1):
        next_sibling[node] = next_token[parents[node]]
        next_token[parents[node]] = node
