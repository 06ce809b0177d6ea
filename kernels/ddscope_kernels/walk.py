"""From the target's choice at every node to the accepted path and the bonus token.

Greedy or sampled makes no difference here: the choices are argmaxes or one draw per node, see `noise`.
"""

from __future__ import annotations

from collections.abc import Sequence


def walk(tokens: Sequence[int], parents: Sequence[int], choices: Sequence[int]) -> tuple[list[int], int]:
    """Follow the children that carry the target's choice, from the root down.

    tokens, parents: [n], node i + 1 has tokens[i] and parents[i] ≤ i.
    choices:         [n + 1] the target's token after each node, root first: its argmax, or one draw.
    Returns the path (node numbers, root first) and the bonus: the first choice that no child carries. With one draw per
    node every emitted token is a draw from the target given what precedes it, whatever the drafter proposed.
    When siblings carry equal tokens, the first is followed.
    Raises ValueError when the lengths disagree.
    Source: DDTree (arXiv 2604.12989), section 3.
    """
    if len(tokens) != len(parents) or len(choices) != len(tokens) + 1:
        raise ValueError(f"{len(tokens)} tokens, {len(parents)} parents and {len(choices)} choices do not fit one tree")
    path = [0]
    here = 0
    # Parents come first, so one pass in node order meets the whole path.
    for node, (token, parent) in enumerate(zip(tokens, parents, strict=True), start=1):
        if parent == here and token == choices[here]:
            path.append(node)
            here = node
    return path, choices[here]
