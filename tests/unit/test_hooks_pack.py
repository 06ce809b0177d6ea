"""What taps put is what comes out on the host, whatever it is, and no two passes under way share a buffer."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

from ddscope_hooks.taps import pack
from ddscope_hooks.taps.pack import Packed, unpack

TYPES = (torch.int64, torch.int32, torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, torch.uint8,
         torch.int8, torch.int16)  # fmt: skip


@st.composite
def tensors(draw: st.DrawFn) -> torch.Tensor:
    """Of any type and shape, also with gaps in memory."""
    dtype = draw(st.sampled_from(TYPES))
    shape = draw(st.lists(st.integers(1, 5), min_size=1, max_size=3))
    values = draw(st.lists(st.integers(0, 1 if dtype == torch.bool else 100), min_size=1, max_size=9))
    flat = torch.tensor(values).repeat(math.prod(shape) * 2)[: math.prod(shape) * 2].to(dtype)
    return flat.view(*shape, 2)[..., draw(st.integers(0, 1))] if draw(st.booleans()) else flat[::2].reshape(shape)


def through(parts: dict[str, Any], logits: torch.Tensor | None = None) -> dict[str, list[Any]]:
    """One pass to the host and back."""
    packed = Packed(dict(parts), logits)
    packed.ship()
    data = packed.take()
    assert len(data) == packed.size
    return unpack(packed.layout, data)


@given(st.dictionaries(st.sampled_from("abcdefgh"), tensors(), min_size=1))
def test_parts_of_any_type_come_out_as_they_were(parts: dict[str, torch.Tensor]) -> None:
    assert through(parts) == {name: tensor.reshape(-1).tolist() for name, tensor in parts.items()}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_choice_and_its_logit_come_with_the_parts(dtype: torch.dtype) -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits[1, 7], logits[2, 3] = math.nan, math.inf
    told = through({"draft": torch.arange(6)}, logits)
    assert told["target"] == logits.argmax(-1).tolist() and told["target"][1:3] == [7, 3]
    assert math.isnan(told["best"][1]) and told["best"][2] == math.inf
    assert told["best"][3:] == logits[3:].amax(-1).tolist() and told["draft"] == [0, 1, 2, 3, 4, 5]


def test_a_choice_that_the_server_made_itself_is_kept() -> None:
    logits = torch.zeros(2, 5)
    logits[:, 4] = 1.0
    told = through({"target": torch.tensor([3, 1])}, logits)
    assert told["target"] == [3, 1] and told["best"] == [1.0, 1.0]


def test_logits_alone_are_enough() -> None:
    assert through({}, torch.eye(3)) == {"best": [1.0] * 3, "target": [0, 1, 2]}


def test_passes_under_way_share_no_buffer_and_one_that_is_over_gives_its_back() -> None:
    """Overlap scheduling launches the next pass before the last one was read."""
    pack._plans.clear()
    under_way = [Packed({"a": torch.tensor([i, i]), "b": torch.tensor([-i], dtype=torch.int32)}) for i in range(5)]
    places = {packed._slot.there.data_ptr() for packed in under_way if packed._slot is not None}
    assert len(places) == 5
    for packed in under_way:
        packed.ship()
    for i in (3, 0, 4, 1, 2):
        assert unpack(under_way[i].layout, under_way[i].take()) == {"a": [i, i], "b": [-i]}
    again = Packed({"a": torch.tensor([7, 8]), "b": torch.tensor([9], dtype=torch.int32)})
    assert again._slot is not None and again._slot.there.data_ptr() in places


def test_what_changes_after_packing_is_not_seen() -> None:
    """The next pass writes over what a graph owns."""
    owned, logits = torch.tensor([1, 2]), torch.eye(2)
    packed = Packed({"a": owned}, logits)
    owned.fill_(0)
    logits.fill_(math.nan)
    packed.ship()
    told = unpack(packed.layout, packed.take())
    assert told["a"] == [1, 2] and told["best"] == [1.0, 1.0]


def test_other_sizes_types_and_names_get_buffers_of_their_own() -> None:
    for size in (2, 3, 2):
        assert through({"a": torch.arange(size)})["a"] == list(range(size))
    assert through({"a": torch.arange(2, dtype=torch.int32)}) == {"a": [0, 1]}
    assert through({"b": torch.arange(2)}) == {"b": [0, 1]}
    assert through({"a": torch.arange(2)}, torch.eye(2)) == {"a": [0, 1], "best": [1.0, 1.0], "target": [0, 1]}


def test_plans_do_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    pack._plans.clear()
    monkeypatch.setattr(pack, "MAX_PLANS", 4)
    for size in range(1, 20):
        assert through({"a": torch.arange(size)})["a"] == list(range(size))
    assert len(pack._plans) <= 4


def test_it_works_inside_and_outside_of_inference_mode_with_the_same_buffers() -> None:
    pack._plans.clear()
    for inside in (True, False, True):
        with torch.inference_mode(inside):
            assert through({"a": torch.arange(3)}, torch.eye(3))["target"] == [0, 1, 2]
    assert sum(len(plan.spare) for plan in pack._plans.values()) == 1
