"""What a tensor's shape means in words."""

from __future__ import annotations

import pytest

from ddscope.model import Tensor
from ddscope.session.tensors import shape_text, tensor_words


def tensor(shape: list[int], expect: list[int | None] | None, ok: bool | None = None) -> Tensor:
    return Tensor(src="e", seq=0, t=0, mono=0, name="draft.target_hidden", shape=shape, dtype="f", expect=expect, ok=ok)


@pytest.mark.parametrize(
    ("shape", "expect", "ok", "hidden", "words"),
    [
        ([60, 576], [None, 2880], False, 576, "576 given, 2,880 = 5 × 576 expected: one layer given, five expected"),
        (
            [60, 1152],
            [None, 2880],
            False,
            576,
            "1,152 given, 2,880 = 5 × 576 expected: two layers given, five expected",
        ),
        ([60, 576], [None, 2880], False, None, "576 given, 2,880 = 5 × 576 expected: one layer given?"),
        ([60, 288], [None, 576], False, None, "288 given, 576 = 2 × 288 expected"),
        (
            [60, 1152],
            [None, 576],
            False,
            None,
            "1,152 = 2 × 576 given, 576 expected: exactly twice, as two packed halves would be",
        ),
        ([60, 577], [None, 2880], False, 576, "577 given, 2,880 expected (dimension 1)"),
        ([0, 576], [1, 576], False, 576, "0 given, 1 expected (dimension 0)"),
        ([60], [None, 2880], False, 576, "1 dimension where 2 are expected (any × 2,880)"),
        ([60, 2880], [None, 2880], True, 576, "as expected"),
        ([60, 2880], [None, 2880], False, 576, "the shape fits, yet the source calls it wrong"),
        ([60, 2880], None, None, 576, "no expectation told"),
        ([60, 2880], None, False, 576, "the source calls it wrong and does not say what it expects"),
        ([3, 4], [5, 6], False, None, "3 given, 5 expected (dimension 0); 4 given, 6 expected (dimension 1)"),
    ],
)
def test_words(
    shape: list[int], expect: list[int | None] | None, ok: bool | None, hidden: int | None, words: str
) -> None:
    assert tensor_words(tensor(shape, expect, ok), hidden) == words


def test_shapes_read_as_products() -> None:
    assert [shape_text(s) for s in ([60, 2880], [None, 3], [])] == ["60 × 2,880", "any × 3", "scalar"]
