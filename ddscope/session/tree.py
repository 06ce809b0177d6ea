"""The tree of one step as a person asks about it: depth, rank, path probability, a verdict in words.

Pure: a Step and a TokenTable in, a TreeView out. It never raises: what cannot be true is listed in `problems`, what
the source did not say stays unknown. Whether a tree is a finding is for `ddscope.diagnose`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import msgspec

from ddscope.model import Draft, Step, Target, Tree
from ddscope.session.shape import build_shape, mask_fits, position_fits
from ddscope.session.tokens import TokenTable
from ddscope.session.views import BonusView, Choice, NodeView, TreeView, Verdict

T = TypeVar("T")

UNKNOWN_TEXT = "⟨?⟩"
PROBLEM_LIMIT = 12  # one broken record must not fill the screen; the rest is counted


def tree_view(step: Step, tokens: TokenTable, record: int) -> TreeView:
    """The tree of a step. record: its number in the file."""
    return _Builder(step, tokens, record).view()


def unreadable_view(record: int, why: str) -> TreeView:
    """What is shown of a record that is no readable step."""
    empty = Step(src="", seq=0, t=0, mono=0, rid="", step=-1)
    return msgspec.structs.replace(tree_view(empty, TokenTable(), record), problems=(why,))


@dataclass
class _Builder:
    step: Step
    tokens: TokenTable
    record: int
    problems: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        step = self.step
        self.tree = step.tree if step.tree is not None else Tree(budget=0, tokens=[], parents=[])
        self.n = len(self.tree.tokens)
        self.target: Target | None = step.target
        self.draft: Draft | None = step.draft
        self.sampled = bool(step.flags is not None and step.flags.sampled)
        self.truncated = bool(step.flags is not None and step.flags.truncated)
        self.chose = "drew" if self.sampled else "chose"
        self._check_lengths()
        self.parent, self.depth, self.orphan = build_shape(self.n, self.tree.parents, self.problems)
        children: list[list[int]] = [[] for _ in range(self.n + 1)]
        for node in range(1, self.n + 1):
            above = self.parent[node]
            if above is not None:
                children[above].append(node)
        self.children = children
        self.path = self._usable_path()
        self.on_path = frozenset(self.path)
        self.last = self.path[-1] if self.path else None
        self.path_known = bool(self.path)
        self.path_place = {node: place for place, node in enumerate(self.path)}
        self._check_bonus()

    # checks ---------------------------------------------------------------------------------------------------

    def _check_lengths(self) -> None:
        n, tree, target = self.n, self.tree, self.target
        told: list[tuple[str, Sequence[object] | None, int]] = [
            ("parents", tree.parents, n),
            ("draft log-probabilities", tree.logprobs, n),
        ]
        told += [("positions", tree.positions, n + 1), ("mask rows", tree.mask, n + 1)]
        if target is not None:
            told += [("target tokens", target.ids, n + 1), ("target log-probabilities", target.logprobs, n + 1)]
            told += [("target gaps", target.gap, n + 1)]
        for name, values, want in told:
            if values is not None and len(values) != want:
                self.problems.append(f"{len(values)} {name} for {n} nodes: expected {want}")
        if self.step.tree is not None and tree.budget < n:
            self.problems.append(f"{n} nodes, but the budget is {tree.budget}")

    def _usable_path(self) -> list[int]:
        told = self.step.path
        if told is None:
            return []
        if not told or told[0] != 0:
            self.problems.append("the path does not begin at the root")
        if not told:
            return []
        path, taken = [0], {0}
        for node in told[1:] if told and told[0] == 0 else told:
            if not 1 <= node <= self.n:
                self.problems.append(f"the path names node {node}, which is not in the tree")
            elif node in taken:
                self.problems.append(f"the path names node {node} twice")
            else:
                if self.parent[node] != path[-1]:
                    self.problems.append(f"the path goes from node {path[-1]} to node {node}, which is not its child")
                elif (want := self._target_id(path[-1])) is not None and want != self.tree.tokens[node - 1]:
                    self.problems.append(
                        f"node {node} is on the path, but the target {self.chose} {self._show(want)} at its parent"
                    )
                path.append(node)
                taken.add(node)
        return path

    def _check_bonus(self) -> None:
        bonus, last = self.step.bonus, self.last
        if bonus is None or last is None:
            return
        told = self._target_id(last)
        if told is not None and told != bonus:
            self.problems.append(
                f"the bonus is {self._show(bonus)}, but the target {self.chose} {self._show(told)} at the path's end"
            )
        for child in self.children[last]:
            if self.tree.tokens[child - 1] == bonus and not self.truncated:
                self.problems.append(
                    f"the bonus {self._show(bonus)} is drafted node {child}, yet the path ends before it"
                )

    # pieces ---------------------------------------------------------------------------------------------------

    def _show(self, token: int | None) -> str:
        return UNKNOWN_TEXT if token is None else self.tokens.display(token)

    def _target_id(self, node: int) -> int | None:
        target = self.target
        return target.ids[node] if target is not None and 0 <= node < len(target.ids) else None

    def _target_choice(self, node: int) -> Choice | None:
        token = self._target_id(node)
        if token is None or self.target is None:
            return None
        return Choice(token, self._show(token), _at(self.target.logprobs, node))

    def _runner_up(self, node: int) -> Choice | None:
        place = self.path_place.get(node)
        if place is None or self.target is None or self.target.topk is None:
            return None
        ids, logprobs = _at(self.target.topk.ids, place), _at(self.target.topk.logprobs, place)
        chosen = self._target_id(node)
        for rank, token in enumerate(ids or ()):
            if token != chosen:
                return Choice(token, self._show(token), _at(logprobs, rank))
        return None

    def chosen_at(self, node: int) -> int | None:
        """What the target chose at a node: as told, else as the path and the bonus tell it."""
        told = self._target_id(node)
        if told is not None:
            return told
        place = self.path_place.get(node)
        if place is None:
            return None
        return self.step.bonus if node == self.last else self.tree.tokens[self.path[place + 1] - 1]

    def _ranks(self) -> list[tuple[int | None, str]]:
        ranks: list[tuple[int | None, str]] = [(None, "")] * (self.n + 1)
        where = (
            [{token: rank for rank, token in reversed(list(enumerate(ids)))} for ids in self.draft.ids]
            if self.draft
            else []
        )
        for parent in range(self.n + 1):
            siblings = self.children[parent]
            order = {node: rank for rank, node in enumerate(sorted(siblings, key=self._likeness))}
            for node in siblings:
                level = self.depth[node] - 1
                rank = where[level].get(self.tree.tokens[node - 1]) if level < len(where) else None
                ranks[node] = (order[node], "siblings") if rank is None else (rank, "draft")
        return ranks

    def _likeness(self, node: int) -> tuple[float, int]:
        logprob = self._logprob(node)
        return (-logprob if logprob is not None and logprob == logprob else float("inf"), node)

    def _logprob(self, node: int) -> float | None:
        if self.tree.logprobs is not None:
            return _at(self.tree.logprobs, node - 1)
        if self.draft is None or self.orphan[node]:
            return None
        ids, logprobs = _at(self.draft.ids, self.depth[node] - 1), _at(self.draft.logprobs, self.depth[node] - 1)
        token = self.tree.tokens[node - 1]
        return _at(logprobs, ids.index(token)) if ids is not None and token in ids else None

    def _committed(self, place: int | None) -> bool | None:
        """place: 1 for the first accepted node, len(path) for the bonus."""
        if place is None or self.step.emitted is None:
            return None
        return place <= len(self.step.emitted)

    def _verdict(self, node: int) -> tuple[Verdict, str]:
        parent = self.parent[node]
        if node == 0:
            return Verdict.ROOT, self._root_words()
        if node in self.on_path:
            return self._accepted_words(node)
        if not self.path_known:
            return Verdict.UNKNOWN, "unknown: the source did not say what was accepted"
        if parent is None:
            return Verdict.UNKNOWN, "unknown: its place in the tree is invalid"
        if parent not in self.on_path:
            return Verdict.NOT_REACHED, "not reached: its parent was rejected"
        chosen = self.chosen_at(parent)
        if parent != self.last:
            kin = self.path[self.path_place[parent] + 1]
            return Verdict.SIBLING, f"sibling of accepted node {kin}: the target {self.chose} {self._show(chosen)} here"
        if chosen is None:
            return Verdict.REJECTED, "rejected: the source did not say what the target chose here"
        return Verdict.REJECTED, f"rejected: the target {self.chose} {self._show(chosen)} here"

    def _root_words(self) -> str:
        if not self.path_known:
            return "the root: the previous bonus token"
        if self.last == 0 and self.n:
            return "the root, and the end of the path: nothing was accepted"
        return "the root: the previous bonus token"

    def _accepted_words(self, node: int) -> tuple[Verdict, str]:
        cut = self._committed(self.path_place[node]) is False
        tail = "; the text ended before it" if cut else ""
        if node == self.last:
            return Verdict.LAST, f"accepted, last on the path{tail}"
        return Verdict.ACCEPTED, f"accepted{tail}"

    def _bonus(self) -> BonusView | None:
        token, last = self.step.bonus, self.last
        if token is None:
            return None
        at = 0 if last is None else last
        depth = self.depth[at] + 1
        rank, logprob, k = self._in_draft(token, depth)
        told = self._target_id(at) if last is not None else None
        return BonusView(
            token=token,
            text=self._show(token),
            depth=depth,
            parent=at,
            logprob=_at(self.target.logprobs, at) if self.target is not None and told == token else None,
            runner_up=self._runner_up(at) if last is not None else None,
            draft_rank=rank,
            draft_logprob=logprob,
            draft_k=k,
            committed=self._committed(len(self.path)) if self.path else None,
            words=self._bonus_words(depth, rank, k),
        )

    def _in_draft(self, token: int, depth: int) -> tuple[int | None, float | None, int | None]:
        ids = _at(self.draft.ids, depth - 1) if self.draft is not None else None
        if ids is None or self.draft is None or not self.path_known:
            return None, None, None
        if token not in ids:
            return None, None, len(ids)
        rank = ids.index(token)
        return rank, _at(_at(self.draft.logprobs, depth - 1), rank), len(ids)

    def _bonus_words(self, depth: int, rank: int | None, k: int | None) -> str:
        if not self.path_known:
            return "the bonus; the source did not say where the path ends"
        at = self.last or 0
        if not self.n and self.draft is None:
            return "plain decoding: nothing was drafted"
        if any(self.tree.tokens[child - 1] == self.step.bonus for child in self.children[at]):
            return "the bonus is a drafted child, yet the path ends before it"
        start = "no drafted child matches" if self.children[at] else "nothing in the tree follows"
        if rank is not None:
            return f"{start}; the target's token was the drafter's rank {rank} at this depth, outside the tree"
        if k is not None:
            return f"{start}; the target's token is not among the drafter's {k} candidates at this depth"
        if self.draft is not None and depth > len(self.draft.ids):
            return f"{start}; the block ends at depth {len(self.draft.ids)}"
        return f"{start}; what else the drafter proposed is not in the trace"

    # the whole ------------------------------------------------------------------------------------------------

    def view(self) -> TreeView:
        """All of it."""
        step, n = self.step, self.n
        ranks = self._ranks()
        positions = position_fits(self.tree.positions, step.base, self.depth, self.orphan, self.problems)
        masks = mask_fits(self.tree.mask, self.parent, self.depth, self.orphan, self.problems)
        order = sorted(range(n + 1), key=self.depth.__getitem__)
        path_logprob: list[float | None] = [0.0] * (n + 1)
        for node in order[1:]:
            above, own = self.parent[node], self._logprob(node)
            before = path_logprob[above] if above is not None else None
            path_logprob[node] = None if own is None or before is None else before + own
        leaves, size = [0] * (n + 1), [1] * (n + 1)
        for node in reversed(order):
            leaves[node] = leaves[node] or 1
            above = self.parent[node]
            if above is not None:
                leaves[above] += leaves[node]
                size[above] += size[node]
        nodes = tuple(
            self._node(i, ranks[i], path_logprob[i], (positions[i], masks[i]), leaves[i], size[i]) for i in range(n + 1)
        )
        bonus = self._bonus()
        shown = self.problems[:PROBLEM_LIMIT]
        if len(self.problems) > PROBLEM_LIMIT:
            shown.append(f"{len(self.problems) - PROBLEM_LIMIT} more problems like these")
        return TreeView(
            record=self.record,
            rid=step.rid,
            step=step.step,
            t=step.t,
            algorithm=step.algorithm,
            sampled=self.sampled,
            base=step.base,
            budget=step.tree.budget if step.tree is not None else None,
            auto=step.tree.auto if step.tree is not None else None,
            nodes=nodes,
            orphans=tuple(i for i in range(n + 1) if self.orphan[i]),
            path=tuple(self.path),
            path_known=self.path_known,
            bonus=bonus,
            accepted=len(step.path) - 1 if step.path else None,
            emitted=tuple(step.emitted) if step.emitted is not None else None,
            truncated=self.truncated,
            problems=tuple(shown),
            has_tree=step.tree is not None,
        )

    def _node(
        self,
        i: int,
        rank: tuple[int | None, str],
        path_logprob: float | None,
        fits: tuple[bool | None, bool | None],
        leaves: int,
        size: int,
    ) -> NodeView:
        token = self.step.root if i == 0 else self.tree.tokens[i - 1]
        parent = self.parent[i]
        at_parent = self._target_id(parent) if parent is not None else None
        verdict, words = self._verdict(i)
        return NodeView(
            index=i,
            token=token,
            text=self._show(token),
            depth=self.depth[i],
            parent=parent,
            children=tuple(self.children[i]),
            rank=rank[0],
            rank_of="draft" if rank[1] == "draft" else "siblings" if rank[1] == "siblings" else "",
            logprob=self._logprob(i) if i else None,
            path_logprob=path_logprob if i else None,
            verdict=verdict,
            words=words,
            on_path=i in self.on_path,
            committed=self._committed(self.path_place[i]) if i and i in self.on_path else None,
            orphan=self.orphan[i],
            target=self._target_choice(i),
            runner_up=self._runner_up(i),
            gap=_at(self.target.gap, i) if self.target is not None else None,
            agrees=None if at_parent is None else at_parent == token,
            position=_at(self.tree.positions, i),
            position_ok=fits[0],
            mask_ok=fits[1],
            leaves=leaves,
            size=size,
        )


def _at(values: Sequence[T] | None, index: int) -> T | None:
    return values[index] if values is not None and 0 <= index < len(values) else None
