"""Small tensors of one step as one: packed on the forward stream, copied to the host without a wait, unpacked there.

Packing is also the clone: buffers that a graph or the next step overwrites are read once, where the stream has them
ready. Nothing here waits for a device. torch is imported when the first tensor comes.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

_CODES = {"torch.int64": "q", "torch.int32": "i", "torch.int16": "h", "torch.int8": "b", "torch.uint8": "B",
          "torch.bool": "B", "torch.float32": "f", "torch.float64": "d"}  # fmt: skip


class Packed:
    """Parts by name behind one another in one tensor of bytes. First `ship` is called, then `take`, once each."""

    __slots__ = ("_data", "_host", "layout", "size")

    def __init__(self, parts: Sequence[tuple[str, Any]]) -> None:
        """parts: (name, tensor) of one device. One kernel on the current stream; halves become 32-bit floats before."""
        import torch

        flat = []
        self.layout: list[tuple[str, str, int]] = []  # name, type code of `array`, bytes
        for name, tensor in parts:
            code = _CODES.get(str(tensor.dtype))
            if code is None:
                tensor, code = tensor.to(torch.float32), "f"
            # Not view(-1): a dimension of size 1 may keep a stride that bytes cannot have.
            flat.append(tensor.detach().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8))
            self.layout.append((name, code, flat[-1].shape[0]))
        self._data: Any = torch.cat(flat)
        self._host: Any = None
        self.size = sum(size for _, _, size in self.layout)

    @property
    def shipped(self) -> bool:
        """Whether the copy was started."""
        return self._host is not None

    def ship(self) -> None:
        """Start the copy to the host on the current stream. Whoever waits for that stream later waits for it, too."""
        import torch

        data = self._data
        if data.device.type == "cpu":
            self._host = data
            return
        host = torch.empty(data.shape, dtype=data.dtype, pin_memory=True)
        host.copy_(data, non_blocking=True)
        # The allocator must not hand the memory on before the copy stream is done with it.
        data.record_stream(torch.get_device_module(data.device).current_stream(data.device))
        self._host = host

    def take(self) -> bytes:
        """The bytes, after the stream of `ship` was waited for by somebody else. Frees both tensors."""
        host = self._host
        data = ctypes.string_at(host.data_ptr(), self.size) if self.size else b""
        self._data = self._host = None
        return data


def unpack(layout: Sequence[tuple[str, str, int]], data: bytes) -> dict[str, list[Any]]:
    """Flat lists by name."""
    parts: dict[str, list[Any]] = {}
    start = 0
    for name, code, size in layout:
        values = array(code)
        values.frombytes(data[start : start + size])
        parts[name] = values.tolist()
        start += size
    return parts
