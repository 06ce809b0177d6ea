"""Small tensors of one pass in one buffer: filled on the forward stream, copied to the host without a wait, read there.

Filling is also the clone: buffers that a graph or the next pass overwrites are read once, where the stream has them
ready. Nothing here waits for a device. What can be known of a pass by its shapes is worked out once and kept: calls
into torch are most of what a pass costs the server's own thread. torch is imported when the first tensor comes.
"""

from __future__ import annotations

import ctypes
import struct
from array import array
from collections import deque
from collections.abc import Sequence
from typing import Any

Layout = tuple[str, str, int]
"""Name, type code of `array` (and e: float16, g: bfloat16), size in bytes."""
Piece = tuple[Sequence[Layout], bytes]
"""Parts behind one another, and where each is."""

_CODES = {"int64": "q", "int32": "i", "float32": "f", "float64": "d", "bfloat16": "g", "float16": "e",
          "bool": "B", "uint8": "B", "int8": "b"}  # fmt: skip
HOST_CODES = {"l": "q", "q": "q", "i": "i", "f": "f", "d": "d", "?": "B", "B": "B", "b": "b"}
"""By numpy's own code of a type."""
_plans: dict[tuple[Any, ...], _Plan] = {}
MAX_PLANS = 512
KEPT = 8
BEST, CHOICE = "best", "target"


class Packed:
    """Parts by name behind one another. First `ship` is called, then `take`, once each, in any thread."""

    __slots__ = ("_plan", "_slot", "layout", "shipped", "size")

    def __init__(self, parts: dict[str, Any], logits: Any = None) -> None:
        """parts: tensors of one device; the dictionary is changed in here. logits: [rows, vocabulary]; of each row the
        largest value (`best`) and its place (`target`, unless it is a part) are added; NaN is larger than all.

        One kernel for both of these and one for all parts of a type, on the current stream.
        """
        device = (next(iter(parts.values())) if logits is None else logits).device
        asked = None if logits is None else (logits.dtype, logits.shape[0])
        key = (device, asked, *parts, *[(tensor.dtype, tensor.shape) for tensor in parts.values()])
        plan = _plans.get(key)
        if plan is None:
            if len(_plans) >= MAX_PLANS:
                _plans.clear()
            plan = _plans[key] = _Plan(device, parts, logits)
        spare = plan.spare
        slot = spare.pop() if spare else _Slot(plan)
        plan.fill(slot, parts, logits)
        self._plan: _Plan = plan
        self._slot: _Slot | None = slot
        self.layout, self.size = plan.layout, plan.size
        self.shipped = False

    def ship(self) -> None:
        """Start the copy to the host on the current stream. Whoever waits for that stream later waits for it, too."""
        self.shipped = True
        slot = self._slot
        if slot is not None and slot.there is not slot.here:
            slot.there.copy_(slot.here, non_blocking=True)

    def take(self) -> bytes:
        """The bytes, after somebody else has waited for the stream of `ship`. Lets go of the buffers."""
        slot, self._slot = self._slot, None
        assert slot is not None
        data: bytes = slot.bytes.raw
        # Only now are they used again: the copy is over, so no other stream reads them any more.
        self._plan.spare.append(slot)
        return data


class _Plan:
    """Where everything lies in the buffer, for tensors of the same names, types and shapes.

    Wider types come first, so each lies where its type may.
    """

    def __init__(self, device: Any, parts: dict[str, Any], logits: Any) -> None:
        import torch

        self.device, self.cat, self.max = device, torch.cat, torch.max
        self.spare: deque[_Slot] = deque(maxlen=KEPT)
        self.odd = [name for name, tensor in parts.items() if _code(tensor.dtype) is None]
        kinds: dict[Any, list[tuple[str, int]]] = {}
        for name, tensor in parts.items():
            kinds.setdefault(torch.float32 if name in self.odd else tensor.dtype, []).append((name, tensor.numel()))
        copied = {dtype: [name for name, _ in found] for dtype, found in kinds.items()}
        self.bent = [name for names in copied.values() for name in names if len(names) > 1 and parts[name].dim() != 1]
        if logits is not None:  # at the end of their types, so that what is copied is in one piece
            kinds.setdefault(logits.dtype, []).append((BEST, logits.shape[0]))
            kinds.setdefault(torch.int64, []).append(("" if CHOICE in parts else CHOICE, logits.shape[0]))
        self.layout: list[Layout] = []
        self.copied: list[tuple[list[str], Any, Any, int, int]] = []  # names, type, shape, first byte, end
        self.chosen: list[tuple[Any, int, int]] = []
        self.size = 0
        for dtype in sorted(kinds, key=lambda dtype: -int(dtype.itemsize)):
            names, start = copied.get(dtype, []), self.size
            for at, (name, count) in enumerate(kinds[dtype]):
                size = count * dtype.itemsize
                self.layout.append((name, _code(dtype) or "", size))
                self.size += size
                if at == len(names) - 1:
                    shape = parts[name].shape if len(names) == 1 else (-1,)
                    self.copied.append((names, dtype, shape, start, self.size))
                elif at >= len(names):
                    self.chosen.append((dtype, self.size - size, self.size))
        self.chosen.sort(key=lambda place: place[0] == torch.int64)  # values, then places

    def fill(self, slot: _Slot, parts: dict[str, Any], logits: Any) -> None:
        """Everything into the device's buffer."""
        for name in self.odd:
            parts[name] = parts[name].float()
        for name in self.bent:
            parts[name] = parts[name].reshape(-1)
        if logits is not None:
            self.max(logits, -1, out=slot.chosen)
        for names, view in slot.copied:
            if len(names) == 1:
                view.copy_(parts[names[0]])
            else:
                self.cat([parts[name] for name in names], out=view)


class _Slot:
    """Buffers of a plan: on the device with views of its parts, and on the host; one and the same on a CPU."""

    __slots__ = ("bytes", "chosen", "copied", "here", "there")

    def __init__(self, plan: _Plan) -> None:
        import torch

        with torch.inference_mode(False):  # the server may run some passes inside of it, and others outside
            self.here = here = torch.empty(plan.size, dtype=torch.uint8, device=plan.device)
            same = plan.device.type == "cpu"
            self.there = here if same else torch.empty(plan.size, dtype=torch.uint8, pin_memory=True)
            self.bytes = (ctypes.c_char * plan.size).from_address(self.there.data_ptr())
            self.chosen = tuple([here[start:end].view(dtype) for dtype, start, end in plan.chosen])
            self.copied = [(names, here[a:b].view(dtype).view(shape)) for names, dtype, shape, a, b in plan.copied]


def _code(dtype: Any) -> str | None:
    return _CODES.get(str(dtype).removeprefix("torch."))


def unpack(layout: Sequence[Layout], data: bytes) -> dict[str, list[Any]]:
    """Flat lists by name."""
    parts: dict[str, list[Any]] = {}
    start = 0
    for name, code, size in layout:
        piece, start = data[start : start + size], start + size
        if code == "e":
            parts[name] = list(struct.unpack(f"{size // 2}e", piece))
            continue
        if code == "g":  # the upper half of a float32
            piece, code = array("I", [half << 16 for half in array("H", piece)]).tobytes(), "f"
        parts[name] = array(code, piece).tolist()
    return parts
