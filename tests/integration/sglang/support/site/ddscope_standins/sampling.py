"""TEST SUPPORT: sampled verification on a CPU, where SGLang commits the argmax whatever was asked for.

It takes the branch that it takes on a GPU, with the three kernels of that branch in torch.
"""

import torch
from sglang.srt.speculative import dflash_utils, eagle_utils


def tree_speculative_sampling_target_only(
    predicts, accept_index, accept_token_num, candidates, retrive_index, retrive_next_token, retrive_next_sibling,
    uniform_samples, uniform_samples_for_final_sampling, target_probs, draft_probs,
    threshold_single=1.0, threshold_acc=1.0, deterministic=True,
):  # fmt: skip
    """Down the tree: at each node one coin over the target's distribution, in which the children come first.

    A coin that falls on no child ends the path; the bonus is drawn from what the children refused have left over.
    """
    for b in range(candidates.shape[0]):
        node, accepted = 0, 0
        accept_index[b, 0] = retrive_index[b, 0]
        left = target_probs[b, 0].clone()
        while accepted + 1 < accept_index.shape[1]:
            coin, passed = float(uniform_samples[b, node]), 0.0
            child = int(retrive_next_token[b, node])
            while child != -1:
                token = int(candidates[b, child])
                share = float(target_probs[b, node, token])
                passed += share
                if coin <= passed / threshold_acc or share >= threshold_single:
                    break
                left[token] = 0.0
                child = int(retrive_next_sibling[b, child])
            if child == -1:
                break
            predicts[int(retrive_index[b, node])] = candidates[b, child]
            node, accepted = child, accepted + 1
            accept_index[b, accepted] = retrive_index[b, node]
            left = target_probs[b, node].clone()
        drawn = torch.searchsorted(left.cumsum(0), uniform_samples_for_final_sampling[b] * left.sum())
        predicts[int(retrive_index[b, node])] = drawn.clamp(max=left.numel() - 1)
        accept_token_num[b] = accepted


def top_k_renorm_prob(probs, top_ks):
    """Each row's k largest, made to sum to 1."""
    order = probs.sort(-1, descending=True)
    rank = torch.arange(probs.shape[-1])
    kept = order.values * (rank < top_ks.view(-1, 1))
    return torch.zeros_like(probs).scatter(-1, order.indices, kept / kept.sum(-1, keepdim=True))


def top_p_renorm_prob(probs, top_ps):
    """Each row's largest until they pass p, made to sum to 1."""
    order = probs.sort(-1, descending=True)
    before = order.values.cumsum(-1) - order.values
    kept = order.values * (before < top_ps.view(-1, 1))
    return torch.zeros_like(probs).scatter(-1, order.indices, kept / kept.sum(-1, keepdim=True))


def install():
    """Greedy batches go as ever."""
    eagle_utils._verify_uses_greedy = lambda *, is_all_greedy, **_: is_all_greedy
    dflash_utils._DFLASH_SAMPLING_VERIFY_AVAILABLE = True
    for kernel in (tree_speculative_sampling_target_only, top_k_renorm_prob, top_p_renorm_prob):
        for module in (dflash_utils, eagle_utils):
            setattr(module, kernel.__name__, kernel)
