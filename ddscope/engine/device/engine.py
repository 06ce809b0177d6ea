"""What an engine process keeps for a CUDA device: one decoder with its graphs, and the policy of a budget of auto."""

from __future__ import annotations

from collections.abc import Sequence

from ddscope.engine.budget import AUTO
from ddscope.engine.control import MAX_BUDGET
from ddscope.engine.convert import Progress
from ddscope.engine.device.decoder import Decoder, rows_needed
from ddscope.engine.device.generator import DeviceGenerator, fits
from ddscope.engine.device.ladder import LadderBudget, measure_ladder
from ddscope.engine.device.plan import Plan
from ddscope.engine.pair import Pair
from ddscope.engine.step import Params

ROWS = 2048
"""Rows of a cache at least: graphs are made for one size, and a request that needs more rows makes all of them anew."""
GRAPHS = "Making CUDA graphs"


class DeviceEngine:
    """Generators for one request at a time over a decoder that outlives them."""

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self.auto: LadderBudget | None = None
        self._decoder: Decoder | None = None

    @staticmethod
    def serves(pair: Pair) -> bool:
        """Whether a pair is decoded here: on a CUDA device and sound. Faults live in the generator of one request."""
        return pair.target.device.type == "cuda" and pair.fault is None

    def prepare(self, params: Params, progress: Progress) -> None:
        """Make what the first step of a request with these parameters needs."""
        progress(GRAPHS, 0, 1)
        if params.budget == AUTO:
            self.policy(params, progress)
        else:
            self._room_for([0], params).prepare(Plan.of(params, self.pair.drafter.config))
        progress(GRAPHS, 1, 1)

    def generator(self, prompt_ids: Sequence[int], params: Params) -> DeviceGenerator:
        """A request in place 0; the one before must have been closed. Raises EngineError as Generator does."""
        decoder = self._room_for(prompt_ids, params)
        return DeviceGenerator(decoder, prompt_ids, params, self.policy(params))

    def policy(self, params: Params, progress: Progress | None = None) -> LadderBudget | None:
        """What chooses the budget of `params`; measured when it is asked for first. No step may be waiting."""
        if params.budget == AUTO and self.auto is None:
            self.auto = measure_ladder(self._room_for([0], params), params, progress)
        return self.auto

    def _room_for(self, prompt_ids: Sequence[int], params: Params) -> Decoder:
        if self._decoder is None or not fits(self._decoder, prompt_ids, params):
            most = min(MAX_BUDGET, self.pair.target.config.stack.vocab * self.pair.drafter.config.block_size)
            needed = rows_needed(self.pair, len(prompt_ids), params.max_new_tokens, most)
            self._decoder = None  # its caches are free before the next ones are made
            self._decoder = Decoder(self.pair, requests=1, rows=max(ROWS, -(-needed // 1024) * 1024), most=most)
        return self._decoder
