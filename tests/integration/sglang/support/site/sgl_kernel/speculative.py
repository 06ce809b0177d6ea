"""TEST SUPPORT: the part of sgl_kernel.speculative that NGRAM needs, in torch."""

from sgl_kernel import _link


def reconstruct_indices_from_tree_mask(
    tree_mask, seq_lens, positions, retrieve_index, retrieve_next_token, retrieve_next_sibling, batch, nodes
):
    """Positions and links of trees that are given by their masks [batch · nodes · nodes]."""
    mask = tree_mask.view(batch, nodes, nodes).bool()
    for b, length in enumerate(seq_lens.tolist()):
        parents = [0]
        for i in range(nodes):
            ancestors = mask[b, i, :i].nonzero().flatten().tolist()
            if i:
                parents.append(ancestors[-1])
            positions.view(-1)[b * nodes + i] = length + len(ancestors)
            retrieve_index.view(-1)[b * nodes + i] = b * nodes + i
        _link(parents, retrieve_next_token.view(batch, nodes)[b], retrieve_next_sibling.view(batch, nodes)[b])
