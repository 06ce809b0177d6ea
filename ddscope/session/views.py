"""What the screen and the command line are given: frozen values of a moment. No file, no thread, no widget.

Structs, because twenty dataclasses take 30 ms to make. "None" means that the source did not say. Records are named by
their number in the file (0 = header). Times are µs.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from ddscope.model import Auto

STAGES = ("draft", "build", "mask", "verify", "commit")
"""Stage names of a step in the order they run."""

Anomaly = Literal["accepted_zero", "nonfinite", "truncated", "tensor", "error"]


def probability(logprob: float | None) -> float | None:
    """exp of a log-probability; None for unknown or NaN. Values above 0 are no log-probabilities and give 1."""
    if logprob is None or math.isnan(logprob):
        return None
    return math.exp(min(logprob, 0.0))


class Verdict(enum.Enum):
    """Why a node is or is not in the text."""

    ROOT = "root"
    ACCEPTED = "accepted"
    LAST = "last"  # accepted, and the last node of the path
    SIBLING = "sibling"  # sibling of an accepted node
    REJECTED = "rejected"  # its parent ends the path: the target chose another token there
    NOT_REACHED = "not_reached"  # its parent was not accepted
    BONUS = "bonus"
    UNKNOWN = "unknown"  # the source gave no path

    @property
    def accepted(self) -> bool:
        """True for drafted nodes that are on the path."""
        return self in (Verdict.ACCEPTED, Verdict.LAST)


class Choice(msgspec.Struct, frozen=True):
    """A token the target or the drafter considered: text is one visible line."""

    token: int
    text: str
    logprob: float | None = None

    @property
    def p(self) -> float | None:
        """Probability, None when unknown."""
        return probability(self.logprob)


class NodeView(msgspec.Struct, frozen=True):
    """One node of a step's tree. Index 0 is the root. `parent` None: the root, or a node whose parent is invalid."""

    index: int
    token: int | None
    text: str  # one visible line; "⟨?⟩" when the token is unknown
    depth: int
    parent: int | None
    children: tuple[int, ...]
    rank: int | None  # 0 = the drafter's likeliest at this depth; among its siblings when `rank_of` says so
    rank_of: Literal["draft", "siblings", ""]
    logprob: float | None  # drafter's, at this depth
    path_logprob: float | None  # sum from the first drafted node to here
    verdict: Verdict
    words: str  # the verdict in words
    on_path: bool
    committed: bool | None  # in the text; False for a path node behind the end of the text
    orphan: bool  # its parent is invalid; drawn at depth 1
    target: Choice | None  # what the target chose here, at every node
    runner_up: Choice | None  # the target's next choice, known on the path
    gap: float | None  # target's top-1 minus top-2 logit
    agrees: bool | None  # this token is what the target chose at the parent, reached or not
    position: int | None  # that the target was given
    position_ok: bool | None  # is base + depth
    mask_ok: bool | None  # sees its ancestors and itself and nothing else of the tree
    leaves: int  # of its subtree, itself when it has no child: the rows it takes on the screen
    size: int  # nodes of its subtree, itself included

    @property
    def p(self) -> float | None:
        """Drafter's probability of this token at its depth."""
        return probability(self.logprob)

    @property
    def path_p(self) -> float | None:
        """Drafter's probability of the path to here."""
        return probability(self.path_logprob)


class BonusView(msgspec.Struct, frozen=True):
    """The target's token after the path; a child of `parent` that no node holds."""

    token: int
    text: str
    depth: int
    parent: int
    logprob: float | None  # target's
    runner_up: Choice | None
    draft_rank: int | None  # in the drafter's candidates at this depth
    draft_logprob: float | None
    draft_k: int | None  # how many candidates the record holds at this depth; None: no candidates recorded
    committed: bool | None
    words: str
    verdict: Verdict = Verdict.BONUS

    @property
    def p(self) -> float | None:
        """Target's probability of the bonus."""
        return probability(self.logprob)


class TreeView(msgspec.Struct, frozen=True):
    """The draft tree of one step with a verdict for every node. `problems` says what in the record cannot be true."""

    record: int
    rid: str
    step: int
    t: int
    algorithm: str | None
    sampled: bool
    base: int | None
    budget: int | None
    auto: Auto | None  # why so many, where the engine chose the budget
    nodes: tuple[NodeView, ...]  # nodes[0] is the root, always there
    orphans: tuple[int, ...]
    path: tuple[int, ...]  # usable node indices, root first; empty when the source gave no path
    path_known: bool
    bonus: BonusView | None
    accepted: int | None
    emitted: tuple[int, ...] | None
    truncated: bool
    problems: tuple[str, ...]
    has_tree: bool  # False: the record has no tree (plain decoding has one of no nodes)

    @property
    def root(self) -> NodeView:
        """The previous bonus token."""
        return self.nodes[0]

    @property
    def depth(self) -> int:
        """Deepest drafted node; 0 for a bare root."""
        return max((node.depth for node in self.nodes), default=0)

    def ancestors(self, index: int) -> tuple[int, ...]:
        """Node indices from the root (or an orphan) to `index`, both included."""
        chain = [index]
        while (parent := self.nodes[chain[-1]].parent) is not None:
            chain.append(parent)
        return tuple(reversed(chain))


class RequestRow(msgspec.Struct, frozen=True):
    """One request as of a moment."""

    rid: str
    record: int | None  # its `request` record; None when it was not seen (joined late)
    preview: str  # one visible line
    preview_of: Literal["prompt", "output", ""]
    prompt_len: int | None
    cached: int | None
    sampling: Mapping[str, Any]
    steps: int
    emitted: int  # by the steps seen; the prefill's token not counted
    tau: float | None  # mean emitted per step
    state: Literal["open", "finished", "error"]
    reason: str | None
    t: int  # of the first record
    last_t: int
    last_step: int | None  # record number of the newest step
    anomalies: int
    seconds: float | None  # from first to last step
    rate: float | None  # tokens per second over the steps


class StepRow(msgspec.Struct, frozen=True):
    """One step of a request, from the index alone (budget is read with the row)."""

    record: int
    rid: str
    step: int
    accepted: int | None
    emitted: int | None
    nodes: int | None
    budget: int | None
    total_us: int | None
    t: int
    flags: int
    anomalies: tuple[Anomaly, ...]


class TextRun(msgspec.Struct, frozen=True):
    """A piece of a request's text. Spaces and newlines are themselves, everything else is made visible.

    root: the prefill's token. accepted, bonus: of a step. emitted: of a step that does not say which.
    gap: tokens that no record holds (the text says how many). tail: bytes of a character that has only begun.
    """

    text: str
    kind: Literal["prompt", "root", "accepted", "bonus", "emitted", "gap", "tail"]
    step: int | None
    record: int | None
    tokens: tuple[int, ...] = ()


class Curve(msgspec.Struct, frozen=True):
    """P(accepted ≥ d) for d = 1, 2, …: `at_least[d - 1]` of `n` steps whose accepted count is known."""

    n: int
    at_least: tuple[int, ...]

    @classmethod
    def empty(cls) -> Curve:
        """No steps."""
        return cls(0, ())

    @property
    def p(self) -> tuple[float, ...]:
        """Shares, d = 1 first."""
        return tuple(count / self.n for count in self.at_least) if self.n else ()

    @property
    def mean_accepted(self) -> float | None:
        """Mean number of accepted tokens, None without steps."""
        return sum(self.at_least) / self.n if self.n else None


class StageTime(msgspec.Struct, frozen=True):
    """One stage: this step's time, and its sum over `steps` steps that gave it."""

    name: str
    step_us: int | None
    sum_us: int
    steps: int
    share: float | None  # of the run's summed totals

    @property
    def mean_us(self) -> float | None:
        """Mean over the steps that gave it."""
        return self.sum_us / self.steps if self.steps else None


class Timing(msgspec.Struct, frozen=True):
    """Stage times of the step at the cursor and over the run (or one request) up to it.

    counted of steps: how many steps have been read for the sums; fewer while the file is still being read.
    """

    record: int | None
    step: int | None
    stages: tuple[StageTime, ...]
    total_step_us: int | None
    total_sum_us: int
    total_steps: int
    counted: int
    steps: int
    domain: str | None

    @classmethod
    def empty(cls) -> Timing:
        """No steps."""
        return cls(None, None, (), None, 0, 0, 0, 0, None)


class TensorRow(msgspec.Struct, frozen=True):
    """A tensor as last seen. `words` says what a mismatch means."""

    name: str
    shape: tuple[int, ...]
    expect: tuple[int | None, ...] | None
    dtype: str
    device: str | None
    owner: str | None
    ok: bool | None
    words: str
    record: int
    t: int
    changes: int  # how many times it was told, this one included


class LogRow(msgspec.Struct, frozen=True):
    """One log line, or a gap in a source's stream (kind "gap")."""

    record: int
    kind: Literal["log", "gap"]
    t: int
    src: str
    unit: str | None
    pid: int | None
    priority: int | None
    ident: str | None
    text: str  # visible; newlines stay
    partial: bool
    null: bool = False  # the journal gave no message


class GapRow(msgspec.Struct, frozen=True):
    """Records that are missing. count None: nobody knows how many."""

    record: int
    src: str
    of: str
    count: int | None
    reason: str
    t: int
    words: str


class MarkRow(msgspec.Struct, frozen=True):
    """A person's note. `target` is the record it stands at, None when that record is not in the file."""

    record: int | None  # None for a mark kept beside the file
    text: str
    src: str
    seq: int
    t: int
    target: int | None


class EngineState(msgspec.Struct, frozen=True):
    """What the embedded engine last said of itself: idle, running, paused, break; "unknown" when it never did."""

    state: str
    rid: str | None
    step: int | None
    reason: str | None
    record: int | None
    breakpoints: tuple[tuple[str, Any], ...] = ()
    fault: str | None = None

    @classmethod
    def unknown(cls) -> EngineState:
        """Nothing was said."""
        return cls("unknown", None, None, None, None)


class Totals(msgspec.Struct, frozen=True):
    """All requests together: what a title shows. rate: tokens a second over the newest steps."""

    requests: int
    steps: int
    emitted: int
    tau: float | None
    rate: float | None


class ProbeRow(msgspec.Struct, frozen=True):
    """The newest answer of one rung of the ladder of liveness. src: `probe`, or `probe/<host>` of several."""

    rung: str
    ok: bool
    ms: float | None
    detail: str  # visible
    record: int
    t: int
    src: str = "probe"


class Counters(msgspec.Struct, frozen=True):
    """A source's books: emitted = received + dropped at every record. `unknown` counts gaps without a number.

    asked: of the dropped, those nobody wanted: from before a viewer was there, or left out by an engine's sampling.
    late: of these, the ones from before.
    """

    src: str
    emitted: int
    received: int
    dropped: int
    unknown: int = 0
    asked: int = 0
    late: int = 0

    @property
    def lost(self) -> int:
        """Dropped although somebody was there and wanted them."""
        return max(self.dropped - self.asked, 0)
