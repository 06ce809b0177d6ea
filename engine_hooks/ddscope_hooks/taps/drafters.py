"""What a drafter that reads the target's layers was made for, and what the server gives it: two facts, from attributes.

For drafters of DFLASH's kind. Looks at configurations and at shapes, never at a tensor's values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_KEYS = ("block_size", "mask_token_id", "target_layer_ids", "num_target_layers")


def checkpoint(config: Any) -> dict[str, Any]:
    """The fact `drafter.checkpoint`. config: the drafter's own; its section `dflash_config` comes before the rest."""
    section = getattr(config, "dflash_config", None)
    values = {key: _plain(_get(section, key)) for key in _KEYS}
    values = {key: _plain(getattr(config, key, None)) if value is None else value for key, value in values.items()}
    values["hidden_size"] = _plain(getattr(_text(config), "hidden_size", None))
    return _known(values)


def in_force(worker: Any, target: Any, target_config: Any, asked: Sequence[int] | None) -> dict[str, Any]:
    """The fact `drafter.in_force`: the same keys, as the engine uses them.

    worker: has the block size and the mask token. target: the model whose layers are captured. asked: layers that the
    drafter's configuration names; they tell how the model numbers what it captures.
    """
    text = _text(target_config)
    count = _plain(getattr(text, "num_hidden_layers", None))
    return _known(
        {
            "block_size": _plain(getattr(worker, "block_size", getattr(worker, "gamma", None))),
            "mask_token_id": _plain(getattr(worker, "_mask_token_id", None)),
            "target_layer_ids": captured_layers(target, count, asked),
            "num_target_layers": count,
            "hidden_size": _plain(getattr(text, "hidden_size", None)),
        }
    )


def captured_layers(target: Any, count: int | None, asked: Sequence[int] | None) -> list[int] | None:
    """0-based layers whose outputs are captured, in the order in which they are: the layers', whatever was asked for.

    Most models capture before layer i + 1 what layer i put out, and none after the last one. Some number by the layer
    itself: where their numbers are those that were asked for, nothing can be told apart, and None is the answer.
    """
    numbers = _numbers(target)
    if numbers is None or count is None:
        return None
    if asked is not None and set(numbers) == set(asked):
        return None
    return sorted({number - 1 for number in numbers if 0 < number < count})


def _numbers(target: Any) -> list[int] | None:
    """`layers_to_capture` of the model, wherever it keeps its layers."""
    waiting = [target]
    for _ in range(8):
        if not waiting:
            break
        model = waiting.pop(0)
        numbers = getattr(model, "layers_to_capture", None)
        if isinstance(numbers, (list, tuple, set, frozenset)) and numbers and all(map(_is_int, numbers)):
            return list(numbers)
        waiting += [inner for name in ("model", "language_model") if (inner := getattr(model, name, None)) is not None]
    return None


def features_expected(draft: Any) -> int | None:
    """Width of the target's features that the drafter's projection `fc` takes."""
    projection = getattr(draft, "fc", None)
    for name in ("in_features", "input_size"):
        width = getattr(projection, name, None)
        if isinstance(width, int) and not isinstance(width, bool):
            return width
    return None


def _text(config: Any) -> Any:
    inner = getattr(config, "text_config", None)
    return config if inner is None else inner


def _get(section: Any, key: str) -> Any:
    return section.get(key) if isinstance(section, Mapping) else getattr(section, key, None)


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(value: Any) -> Any:
    """Whole numbers and lists of them, as JSON has them; anything else is not known."""
    if _is_int(value):
        return int(value)
    if isinstance(value, (list, tuple)) and all(map(_is_int, value)):
        return [int(item) for item in value]
    return None


def _known(values: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value is not None}
