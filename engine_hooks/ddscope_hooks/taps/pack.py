"""Small tensors of one pass as one: packed on the forward stream, copied to the host without a wait, unpacked there.

Packing is also the clone: buffers that a graph or the next pass overwrites are read once, where the stream has them
ready. Nothing here waits for a device. torch is imported when the first tensor comes.
"""

from __future__ import annotations

import ctypes
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

Layout = tuple[str, str, int]
"""Name, type code of `array`, size in bytes."""

_WORDS = {"int64": "q", "int32": "i", "float32": "f", "float64": "d"}
_BYTES = {"bool": "B", "uint8": "B", "int8": "b"}
_codes: dict[Any, tuple[str, bool]] = {}  # by dtype; whether it is made of whole words
_pool: dict[Any, deque[tuple[Any, Any]]] = {}
MAX_SIZES = 512
KEPT = 8


class Packed:
    """Parts by name behind one another. First `ship` is called, then `take`, once each, in any thread."""

    __slots__ = ("_rest", "_words", "layout", "shipped", "size")

    def __init__(self, parts: Sequence[tuple[str, Any]]) -> None:
        """parts: (name, tensor) of one device. At most two kernels, on the current stream, and one for each half."""
        import torch

        words: list[Any] = []
        rest: list[Any] = []
        self.layout: list[Layout] = []
        after: list[Layout] = []
        for name, tensor in parts:
            found = _codes.get(tensor.dtype) or _code(tensor.dtype)
            if found is None:
                tensor, found = tensor.float(), ("f", True)
            code, whole = found
            flat = tensor if tensor.dim() == 1 else tensor.reshape(-1)
            if whole:
                if code != "i":
                    flat = _as(flat, torch.int32)
                words.append(flat)
                self.layout.append((name, code, flat.shape[0] * 4))
            else:
                rest.append(_as(flat, torch.uint8))
                after.append((name, code, rest[-1].shape[0]))
        self._words = _joined(words, torch.int32)
        self._rest = _joined(rest, torch.uint8)
        self.layout += after
        self.size = sum(size for _, _, size in self.layout)
        self.shipped = False

    def ship(self) -> None:
        """Start the copy to the host on the current stream. Whoever waits for that stream later waits for it, too."""
        self.shipped = True
        for pair in (self._words, self._rest):
            if pair is not None and pair[0] is not pair[1]:
                pair[1].copy_(pair[0], non_blocking=True)

    def take(self) -> bytes:
        """The bytes, after somebody else has waited for the stream of `ship`. Lets go of the buffers."""
        data = b""
        for pair in (self._words, self._rest):
            if pair is not None:
                host = pair[1]
                data += ctypes.string_at(host.data_ptr(), host.numel() * host.element_size())
                if len(_pool) > MAX_SIZES:
                    _pool.clear()
                _pool.setdefault(_key(pair[0]), deque(maxlen=KEPT)).append(pair)
        self._words = self._rest = None
        return data


def unpack(layout: Sequence[Layout], data: bytes) -> dict[str, list[Any]]:
    """Flat lists by name."""
    parts: dict[str, list[Any]] = {}
    start = 0
    for name, code, size in layout:
        values = array(code)
        values.frombytes(data[start : start + size])
        parts[name] = values.tolist()
        start += size
    return parts


def _code(dtype: Any) -> tuple[str, bool] | None:
    name = str(dtype).removeprefix("torch.")
    if name in _WORDS:
        _codes[dtype] = (_WORDS[name], True)
    elif name in _BYTES:
        _codes[dtype] = (_BYTES[name], False)
    return _codes.get(dtype)


def _as(flat: Any, dtype: Any) -> Any:
    """A flat tensor's bytes as another type. One of a single element may have a stride that this does not allow."""
    try:
        return flat.view(dtype)
    except RuntimeError:
        return flat.clone().as_strided((flat.shape[0],), (1,)).view(dtype)


def _joined(flat: list[Any], dtype: Any) -> tuple[Any, Any] | None:
    """(device, host) buffers with the tensors behind one another on the device; one and the same on a CPU.

    Buffers are used again only after `take`: then the copy is over, so no other stream reads them any more.
    """
    if not flat:
        return None
    import torch

    size, device = sum(tensor.shape[0] for tensor in flat), flat[0].device
    spare = _pool.get((device, dtype, size))
    if spare:
        pair = spare.pop()
    else:
        with torch.inference_mode(False):  # the server may run some passes inside of it, and others outside
            here = torch.empty(size, dtype=dtype, device=device)
            there = here if device.type == "cpu" else torch.empty(size, dtype=dtype, pin_memory=True)
        pair = (here, there)
    torch.cat(flat, out=pair[0])
    return pair


def _key(tensor: Any) -> tuple[Any, Any, int]:
    return (tensor.device, tensor.dtype, tensor.shape[0])
