"""Packed products change no weight: what does not fit float16 exactly, scaled by a power of two, is not packed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddscope.engine.linear import Linear
from ddscope.engine.target import Target
from tests.engine_models import reference_target, target_config, target_tensors, write_folder

CPU = torch.device("cpu")
needs_fbgemm = pytest.mark.skipif(
    "fbgemm" not in torch.backends.quantized.supported_engines, reason="this torch was built without FBGEMM"
)


def bf16_weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).to(torch.bfloat16)


@needs_fbgemm
@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 12, 16, 33])
@pytest.mark.parametrize("shape", [(960, 576), (7, 5), (33, 70), (1, 64)])
def test_a_packed_product_is_the_float32_product_of_the_same_weights(rows: int, shape: tuple[int, int]) -> None:
    weight = bf16_weight(*shape)
    linear = Linear(weight, None, torch.float32, CPU)
    assert linear.packed
    x = torch.randn(rows, shape[1])
    exact = x.double() @ weight.double().T
    torch.testing.assert_close(linear(x).double(), exact, atol=1e-4, rtol=1e-5)


@needs_fbgemm
def test_weights_below_float16s_range_are_packed_through_a_scale() -> None:
    weight = bf16_weight(16, 64)
    weight[3, 5] = 2.0**-23 * 1.1  # bfloat16 takes it, float16 would round it
    assert not torch.equal(weight.half().to(torch.bfloat16), weight)
    linear = Linear(weight, None, torch.float32, CPU)
    assert linear.packed
    one = torch.zeros(1, 64)
    one[0, 5] = 1.0
    assert linear(one)[0, 3].item() == weight[3, 5].item()


@needs_fbgemm
def test_large_weights_are_packed_through_a_scale() -> None:
    weight = bf16_weight(16, 64) * 2.0**20
    linear = Linear(weight, None, torch.float32, CPU)
    assert linear.packed
    one = torch.zeros(1, 64)
    one[0, 5] = 1.0
    assert torch.equal(linear(one)[0], weight[:, 5].float())


@pytest.mark.parametrize("spoil", [1 + 2.0**-20, 2.0**-60, float("nan"), float("inf")])
def test_a_weight_that_float16_cannot_hold_is_not_packed(spoil: float) -> None:
    weight = bf16_weight(16, 64).float()
    weight[3, 5] = spoil
    linear = Linear(weight, None, torch.float32, CPU)
    assert not linear.packed
    one = torch.zeros(1, 64)
    one[0, 5] = 1.0
    torch.testing.assert_close(linear(one), torch.nn.functional.linear(one, weight), equal_nan=True)


def test_an_all_zero_weight_is_no_special_case() -> None:
    assert torch.equal(Linear(torch.zeros(4, 8), None, torch.float32, CPU)(torch.ones(2, 8)), torch.zeros(2, 4))


@pytest.mark.parametrize("scale", [1.0, 2.0**20])
def test_a_bias_is_added_after_the_scale(scale: float) -> None:
    weight, bias = bf16_weight(8, 16) * scale, torch.randn(8)
    x = torch.randn(3, 16)
    want = torch.nn.functional.linear(x, weight.float(), bias)
    torch.testing.assert_close(Linear(weight, bias, torch.float32, CPU)(x), want, atol=scale * 1e-5, rtol=1e-5)


def test_bfloat16_activations_stay_bfloat16_and_are_rounded_once() -> None:
    weight = bf16_weight(24, 48)
    x = torch.randn(4, 48).to(torch.bfloat16)
    got = Linear(weight, None, torch.bfloat16, CPU)(x)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, (x.float() @ weight.float().T).to(torch.bfloat16), atol=0, rtol=2**-7)


@needs_fbgemm
def test_a_float32_file_run_in_bfloat16_has_its_weights_rounded_to_bfloat16() -> None:
    weight = torch.randn(24, 48)
    x = torch.randn(4, 48).to(torch.bfloat16)
    got = Linear(weight, None, torch.bfloat16, CPU)(x)
    want = (x.float() @ weight.to(torch.bfloat16).float().T).to(torch.bfloat16)
    torch.testing.assert_close(got, want, atol=0, rtol=2**-7)


@pytest.mark.parametrize("exact", [True, False])
def test_an_input_of_another_width_raises(exact: bool) -> None:
    weight = bf16_weight(8, 16).float() + (0 if exact else 2.0**-20)
    with pytest.raises(RuntimeError):
        Linear(weight, None, torch.float32, CPU)(torch.zeros(2, 15))


@needs_fbgemm
@pytest.mark.parametrize("family", ["llama", "qwen3"])
@torch.inference_mode()
def test_a_target_from_a_bfloat16_file_is_packed_and_computes_what_its_definition_says(
    tmp_path: Path, family: str
) -> None:
    config = target_config(family)
    stored = {name: value.to(torch.bfloat16) for name, value in target_tensors(config).items()}
    target = Target.load(write_folder(tmp_path / "t", config, stored), torch.float32, CPU)
    assert target.head.packed
    assert all(layer.qkv.packed and layer.out.packed and layer.down.packed for layer in target.layers)
    ids = [3, 1, 4, 1, 5, 9, 2]
    want, _ = reference_target({name: value.float() for name, value in stored.items()}, config, ids)
    torch.testing.assert_close(target.read(ids, target.new_cache(8), keep=7).logits, want, atol=2e-5, rtol=1e-4)
