"""What the taps tell of a drafter that reads the target's layers: its own configuration, and what is in force."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ddscope_hooks.taps import drafters


def target(numbers: object, *, nested: bool = False) -> Any:
    inner = SimpleNamespace(layers_to_capture=numbers)
    return SimpleNamespace(language_model=SimpleNamespace(model=inner)) if nested else SimpleNamespace(model=inner)


def test_the_checkpoint_is_read_from_its_section_and_from_the_top() -> None:
    config = SimpleNamespace(
        hidden_size=576,
        block_size=16,
        num_target_layers=30,
        dflash_config={"mask_token_id": 0, "target_layer_ids": [1, 8]},
    )
    assert drafters.checkpoint(config) == {
        "block_size": 16,
        "mask_token_id": 0,
        "target_layer_ids": [1, 8],
        "num_target_layers": 30,
        "hidden_size": 576,
    }


def test_what_a_checkpoint_does_not_say_is_absent() -> None:
    assert drafters.checkpoint(SimpleNamespace(dflash_config={"mask_token_id": "none"}, hidden_size=True)) == {}


@pytest.mark.parametrize("nested", [False, True])
def test_captured_layers_are_told_as_they_are_taken(nested: bool) -> None:
    """Before layer i + 1, so one less, and in the order of the layers."""
    assert drafters.captured_layers(target([28, 9, 2], nested=nested), 30, [27, 8, 1]) == [1, 8, 27]


def test_a_layer_that_is_never_reached_is_not_captured() -> None:
    assert drafters.captured_layers(target([2, 9, 30]), 30, [1, 8, 29]) == [1, 8]


def test_a_model_that_may_number_otherwise_tells_nothing() -> None:
    assert drafters.captured_layers(target({1, 8}), 30, [1, 8]) is None


@pytest.mark.parametrize("numbers", [None, [], ["2"], 3])
def test_a_model_that_says_nothing_readable_tells_nothing(numbers: object) -> None:
    assert drafters.captured_layers(target(numbers), 30, [1]) is None


def test_what_is_in_force_comes_from_the_worker_and_the_target() -> None:
    worker = SimpleNamespace(block_size=8, _mask_token_id=0)
    config = SimpleNamespace(text_config=SimpleNamespace(num_hidden_layers=30, hidden_size=576))
    assert drafters.in_force(worker, target([2, 9]), config, [1, 8]) == {
        "block_size": 8,
        "mask_token_id": 0,
        "target_layer_ids": [1, 8],
        "num_target_layers": 30,
        "hidden_size": 576,
    }


@pytest.mark.parametrize(
    ("draft", "width"),
    [
        (SimpleNamespace(fc=SimpleNamespace(in_features=2880)), 2880),
        (SimpleNamespace(fc=SimpleNamespace(input_size=2880)), 2880),
        (SimpleNamespace(), None),
    ],
)
def test_the_width_that_a_drafter_takes_is_its_projections(draft: Any, width: int | None) -> None:
    assert drafters.features_expected(draft) == width
