"""What must hold between a server's answers and the records of them, for every algorithm."""

from __future__ import annotations

from collections import Counter

from ddscope.model import Step, Tree
from tests.integration.sglang.support.reading import output_of, told
from tests.integration.sglang.support.running import Run


def tokens_are_the_answers(run: Run, rids: list[str]) -> None:
    """Emitted tokens of each request, concatenated, are the returned output ids; the last block may overrun them."""
    for rid in rids:
        returned = run.outputs[rid]["output_ids"]
        recorded = output_of(run.trace, rid)
        assert recorded == returned, f"{rid}: recorded {recorded}, returned {returned}"
        finish = run.trace.finish(rid)
        assert finish.emitted == len(returned)
        assert finish.reason == run.outputs[rid]["meta_info"]["finish_reason"]["type"]
        request = run.trace.request(rid)
        assert request.prompt_ids == run.prompts[rid]
        assert request.prompt_len == len(run.prompts[rid])


def counts_are_the_servers(run: Run, rids: list[str]) -> None:
    """Steps, accepted drafts and their histogram are SGLang's own."""
    for rid in rids:
        meta = run.outputs[rid]["meta_info"]
        steps = run.trace.steps(rid)
        assert [step.step for step in steps] == list(range(len(steps)))
        assert len(steps) == meta["spec_verify_ct"] == run.trace.finish(rid).steps
        histogram = Counter(accepted(step) for step in steps)
        expected = {n: count for n, count in enumerate(meta["spec_correct_drafts_histogram"]) if count}
        assert histogram == expected, f"{rid}: {histogram} recorded, {expected} by the server"
        assert sum(accepted(step) for step in steps) == meta["spec_num_correct_drafts"]
        # The server divides all output tokens by the steps, and the first of them came from the prefill.
        emitted = sum(len(told(step)) for step in steps)
        assert abs((emitted + 1) / len(steps) - meta["spec_accept_length"]) < 1e-6


def trees_are_sound(run: Run, rids: list[str], *, branching: bool, padded: bool = False, masked: bool = True) -> None:
    """The file passes `trace verify`, each step's mask is the closure of its parents, each path follows the target.

    padded: the server fills its trees up with nodes of one token, and no tap knows that they are padding.
    masked: each step tells its mask; one over the whole context is cut out now and then only.
    """
    problems = [problem for problem in run.trace.problems() if not (padded and "siblings of the same token" in problem)]
    assert problems == []
    steps = [step for rid in rids for step in run.trace.steps(rid)]
    assert any(_branches(tree_of(step)) for step in steps) == branching
    # A chain is verified without a mask of its own.
    told = [tree_of(step).mask is not None for step in steps]
    assert (all(told) or not masked) if branching else not any(told)
    for step in steps:
        tree = tree_of(step)
        assert tree.mask is None or [int(row, 16) for row in tree.mask] == closure(tree)
        assert tree.positions is not None and step.base is not None
        assert tree.positions == [step.base + depth for depth in depths(tree)]
        assert step.path is not None and step.target is not None
        assert walk(tree, step.target.ids) == step.path, f"step {step.step} of {step.rid}"
        assert step.bonus == step.target.ids[step.path[-1]]


def books_balance(run: Run) -> None:
    """For every source: emitted = received + dropped, and here nothing was dropped."""
    run.trace.refresh()
    assert run.trace.sources
    for source, (emitted, received, dropped) in run.trace.sources.items():
        assert emitted == received + dropped, source
        assert dropped == 0, source


def no_hook_failed(run: Run) -> None:
    """No breaker opened, and no tap that is live has a reason not to be."""
    assert run.trace.facts("hook.fault") == []
    assert run.trace.gaps("hook_fault") == []
    for tap in run.trace.taps().values():
        assert tap["live"] or tap.get("why"), tap


# -- of one step -----------------------------------------------------------------------------------------------------


def accepted(step: Step) -> int:
    """Drafted tokens that the target accepted, by the path: the last block may overrun the output."""
    assert step.path is not None
    return len(step.path) - 1


def tree_of(step: Step) -> Tree:
    assert step.tree is not None, f"step {step.step} of {step.rid} has no tree"
    return step.tree


def depths(tree: Tree) -> list[int]:
    """Of the root and every node."""
    found = [0]
    for parent in tree.parents:
        found.append(found[parent] + 1)
    return found


def closure(tree: Tree) -> list[int]:
    """Rows as integers: bit j of row i where node j is node i or its ancestor."""
    rows = [1]
    for i, parent in enumerate(tree.parents):
        rows.append(rows[parent] | 1 << (i + 1))
    return rows


def walk(tree: Tree, wanted: list[int]) -> list[int]:
    """The path that the target's choices take through the tree."""
    path = [0]
    while True:
        children = [i + 1 for i, parent in enumerate(tree.parents) if parent == path[-1]]
        follow = [node for node in children if tree.tokens[node - 1] == wanted[path[-1]]]
        if not follow:
            return path
        path.append(follow[0])


def _branches(tree: Tree) -> bool:
    return any(count > 1 for count in Counter(tree.parents).values())
