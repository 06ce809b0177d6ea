"""How a step is decoded, as far as the shape of its work depends on it: what has one CUDA graph."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, log

from ddscope.engine.config import DrafterConfig
from ddscope.engine.drafting import CHAIN_TOPK
from ddscope.engine.errors import EngineError
from ddscope.engine.step import Algorithm, Params

MAX_TOPK = 64
"""Candidates a depth at most; more than any tree of the budgets here uses (docs/kernels.md)."""
TARGET_TOPK = 8
"""Target's likeliest tokens at each node that a traced step records."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One kind of step.

    budget:      nodes of the tree without the root; of a chain: its depths; 0 decodes plainly.
    depths:      drafted positions; 0 where nothing is drafted.
    topk:        candidates a depth.
    draft_vocab: only ids below it are drafted; None: all.
    least:       nats: nodes whose path is less likely are not verified; -inf: the whole budget.
    sampled:     whether a request may have a temperature above 0.
    traced:      whether all that a trace records is read back, or only what is emitted.
    """

    algorithm: Algorithm
    budget: int
    depths: int
    topk: int
    draft_vocab: int | None
    least: float
    sampled: bool
    traced: bool

    @classmethod
    def of(cls, params: Params, drafter: DrafterConfig, *, budget: int | None = None, traced: bool = True) -> Plan:
        """Of a request's parameters. budget: in place of theirs, where that is auto.

        Raises EngineError where budget is auto and none is given.
        """
        nodes = params.budget if budget is None else budget
        if isinstance(nodes, str):
            raise EngineError("A budget of auto needs a number for every step.")
        depths = min(params.draft_rows or drafter.block_size, drafter.block_size) - 1
        if params.algorithm == "dflash":
            nodes = depths
        if params.algorithm == "autoregressive" or (params.algorithm == "ddtree" and nodes == 0):
            nodes = depths = 0
        vocab = drafter.stack.vocab
        wanted = params.topk or (CHAIN_TOPK if params.algorithm == "dflash" else nodes)
        drafted = vocab if params.draft_vocab is None else min(params.draft_vocab, vocab)
        return cls(
            params.algorithm,
            nodes,
            depths,
            min(wanted, MAX_TOPK, drafted) if depths else 0,
            drafted if drafted < vocab else None,
            log(params.cut) if params.cut else -inf,
            params.temperature > 0,
            traced,
        )

    @property
    def chain(self) -> bool:
        """Whether the tree is a single branch."""
        return self.algorithm == "dflash"

    @property
    def rows(self) -> int:
        """Rows of a verify: the nodes and the root."""
        return self.budget + 1
