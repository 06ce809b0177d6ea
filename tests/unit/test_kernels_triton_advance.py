"""Where requests stand after a step: the Triton form and the reference."""

from __future__ import annotations

import pytest
import torch

from ddscope_kernels.batched import WalkBatch, advance
from ddscope_kernels.batched.walk import LENGTH, RUNNING, STOP
from tests.unit.triton_support import DEVICES, run


@pytest.mark.parametrize("device", [*DEVICES, "reference"])
def test_requests_that_go_on_move_and_others_stay(device) -> None:
    lengths, counts = torch.tensor([3, 2, 5, 1], dtype=torch.int32), torch.tensor([3, 1, 4, 0], dtype=torch.int32)
    reasons = torch.tensor([RUNNING, STOP, LENGTH, LENGTH], dtype=torch.int32)
    nothing = torch.zeros(4, 5, dtype=torch.int64)
    walks = WalkBatch(nothing.int(), lengths, torch.tensor([10, 11, 12, 13]), nothing, counts, reasons)

    def moved(walks: WalkBatch, base: torch.Tensor, block: torch.Tensor, room: torch.Tensor):
        base, block, room = base.clone(), block.clone(), room.clone()
        advance(walks, base, block[:, 0], room)
        return base, block, room

    given = (
        torch.tensor([7, 8, 9, 6], dtype=torch.int32),
        torch.arange(12).view(4, 3),
        torch.tensor([20, 20, 4, 0], dtype=torch.int32),
    )
    base, block, room = moved(walks, *given) if device == "reference" else run(device, moved, walks, *given)
    assert base.tolist() == [10, 8, 9, 6]
    assert block.tolist() == [[10, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]
    assert room.tolist() == [17, 0, 0, 0]


def test_shapes_that_do_not_fit_are_refused() -> None:
    one = torch.zeros(1, dtype=torch.int32)
    nothing = torch.zeros(1, 2, dtype=torch.int64)
    walks = WalkBatch(nothing.int(), one, torch.zeros(1, dtype=torch.int64), nothing, one, one)
    with pytest.raises(ValueError, match="are not"):
        advance(walks, torch.zeros(2, dtype=torch.int32), nothing[:, 0], one)
