"""Products with weights, in the form that is fastest where the engine runs; none of them changes a weight.

Checkpoints come in bfloat16, so their weights have 8 significant bits and fit float16 exactly but for its narrow range,
and a power of two per matrix, taken out again after the product, widens that. FBGEMM keeps float16 weights packed and
multiplies in float32: half the memory traffic of float32 weights, at the same result, and several times the speed of a
bfloat16 product on a CPU without bfloat16 instructions. A matrix that would not come back exactly is not packed.
"""

from __future__ import annotations

from math import frexp, isfinite
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

_FLOAT16_TOP = 15  # a scaled matrix stays below 2^15; float16 ends just below 2^16


class Linear:
    """x [n, columns] → x · weightᵀ + bias, [n, rows], in the dtype of x. Raises RuntimeError for another width."""

    def __init__(self, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, device: torch.device) -> None:
        """weight [rows, columns] and bias [rows] as they come from a file; dtype: of the activations."""
        self.rows, self.columns = weight.shape
        self._dtype = dtype
        weight = weight.to(dtype)
        self._weight: Tensor | None = None
        self._bias = None if bias is None else bias.to(device=device, dtype=dtype)
        self._packed: Any = None
        self._unscale = 1.0
        if not (device.type == "cpu" and _packing_pays(dtype) and self._pack(weight)):
            self._weight = weight.to(device).contiguous()

    @property
    def packed(self) -> bool:
        """Whether the weights are held in float16 panels."""
        return self._weight is None

    @property
    def weight(self) -> Tensor:
        """[rows, columns] in the dtype of the activations: the weight itself, or a copy where it is packed."""
        if self._weight is not None:
            return self._weight
        unpacked: Tensor = torch.ops.quantized.linear_unpack_fp16(self._packed)[0]
        return (unpacked * self._unscale).to(self._dtype)

    @property
    def bias(self) -> Tensor | None:
        """[rows], or None."""
        return self._bias

    def __call__(self, x: Tensor) -> Tensor:
        if self._weight is not None:
            return F.linear(x, self._weight, self._bias)
        wide = x if x.dtype == torch.float32 else x.float()
        y: Tensor = torch.ops.quantized.linear_dynamic_fp16(wide, self._packed)
        if self._unscale != 1.0:
            y.mul_(self._unscale)
        if y.dtype != x.dtype:
            y = y.to(x.dtype)
        return y if self._bias is None else y + self._bias

    def _pack(self, weight: Tensor) -> bool:
        """Pack the weight if every element survives; False leaves nothing behind."""
        exact = weight.float()
        peak = float(exact.abs().max())
        if not isfinite(peak):  # the prepack would saturate it
            return False
        for scale in (1.0, _scale(peak)):
            scaled = exact if scale == 1.0 else exact * scale
            if torch.equal(scaled.half().float(), scaled):
                self._packed = torch.ops.quantized.linear_prepack_fp16(scaled, None)
                self._unscale = 1 / scale
                return True
        return False


def _packing_pays(dtype: torch.dtype) -> bool:
    """Whether FBGEMM is there, and the CPU has nothing better for this dtype."""
    backend = torch.backends.quantized
    if "fbgemm" not in backend.supported_engines or backend.engine not in ("x86", "fbgemm"):
        return False
    return dtype == torch.float32 or not torch.ops.mkldnn._is_mkldnn_bf16_supported()


def _scale(peak: float) -> float:
    """The power of two that brings the largest magnitude just below float16's end."""
    return 2.0 ** (_FLOAT16_TOP - frexp(peak)[1]) if peak else 1.0
