"""The target's side of one request: from logits to a choice at every node, and to what a trace says about it."""

from __future__ import annotations

import torch
from torch import Tensor

from ddscope.engine.drafting import finite
from ddscope.engine.step import Params, TargetStep
from ddscope_kernels import count_nonfinite, gumbel, ordered_topk, perturbed_argmax

PATH_TOPK = 8
"""Target's likeliest tokens recorded at each node of the path."""


class Judge:
    """Chooses, greedily or by draws; keeps the noise of positions that later steps may need again."""

    def __init__(self) -> None:
        self._noise: dict[tuple[int, int], Tensor] = {}

    def choose(self, logits: Tensor, positions: list[int], params: Params) -> Tensor:
        """[m] int64: the token after each row of logits [m, V]; positions: of the tokens that are chosen."""
        if params.temperature == 0:
            return logits.argmax(-1)
        size = logits.shape[-1]
        for position in positions:
            if (params.seed, position) not in self._noise:
                self._noise[params.seed, position] = gumbel(params.seed, position, size).to(logits.device)
        noise = torch.stack([self._noise[params.seed, position] for position in positions])
        return perturbed_argmax(logits, noise, params.temperature)

    def judge(self, logits: Tensor, positions: list[int], params: Params) -> tuple[TargetStep, Tensor, int]:
        """The choice at every node, its log-probability and gap; log Z [m]; the count of non-finite logits.

        logits: [m, V]; positions: [m] of the tokens that are chosen (a node's own position + 1).
        """
        exact = logits.float()
        nonfinite = count_nonfinite(exact)
        if nonfinite:
            chosen, top = self.choose(exact, positions, params), exact.topk(2, dim=-1).values
            logz = exact.logsumexp(-1)
        else:
            top, ids = ordered_topk(exact, 2)
            # The first of equals, which is what argmax takes too.
            chosen = ids[:, 0] if params.temperature == 0 else self.choose(exact, positions, params)
            logz = top[:, 0] - exact.softmax(-1).amax(-1).log()
        gap = top[:, 0] - top[:, 1]
        logprobs = exact.gather(-1, chosen[:, None]).squeeze(-1) - logz
        return TargetStep(chosen.tolist(), finite(logprobs.tolist()), finite(gap.tolist())), logz, nonfinite

    def add_topk(self, step: TargetStep, logits: Tensor, logz: Tensor, path: list[int]) -> None:
        """Fill in the target's likeliest tokens on the path."""
        rows = torch.tensor(path, device=logits.device)
        on_path = logits[rows].float()
        if torch.isfinite(logz[rows]).all():
            values, ids = ordered_topk(on_path, PATH_TOPK)
        else:
            values, ids = on_path.topk(min(PATH_TOPK, logits.shape[-1]), dim=-1)
        step.topk_ids = ids.tolist()
        step.topk_logprobs = [finite(row) for row in (values - logz[rows, None]).tolist()]

    def forget(self, before: int) -> None:
        """Noise of positions below `before` will not be needed again."""
        self._noise = {key: noise for key, noise in self._noise.items() if key[1] >= before}
