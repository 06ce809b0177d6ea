"""Who sees whom among the nodes of a step: rows of bits as Python integers, and the tensor an attention takes.

Only the block of a step is described here; every node sees the whole committed prefix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def ancestor_rows(parents: Sequence[int]) -> list[int]:
    """[n + 1] rows of the ancestor closure: bit j of row i is set when node j is an ancestor of node i, or i itself.

    parents: [n] node numbers of nodes 1 … n, parents first. Raises ValueError when a parent does not come first.
    """
    rows = [1]
    for node, parent in enumerate(parents, start=1):
        if not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: parents must come before their children")
        rows.append(rows[parent] | 1 << node)
    return rows


def causal_rows(count: int) -> list[int]:
    """[count] rows of a plain causal mask: row i sees 0 … i."""
    return [(2 << i) - 1 for i in range(count)]


def visibility(rows: Sequence[int], *, device: torch.device | str | None = None) -> Tensor:
    """[m, m] bool tensor from m rows of bits (bit j of row i → [i, j]), any m.

    Raises ValueError when a row has a bit at or above m.
    """
    count = len(rows)
    if count == 0:
        return torch.zeros(0, 0, dtype=torch.bool, device=device)
    if max(rows) >> count:
        raise ValueError(f"a row of a {count} × {count} mask has a bit beyond column {count - 1}")
    width = (count + 7) // 8
    packed = torch.frombuffer(bytearray(b"".join([row.to_bytes(width, "little") for row in rows])), dtype=torch.uint8)
    # Eight columns at a time: a byte of bits is the number of eight bytes that are 0 or 1.
    bits = _BYTES.index_select(0, packed.int()).view(torch.bool).view(count, width * 8)
    return bits[:, :count].to(device=device)


def ancestor_mask(parents: Sequence[int], *, device: torch.device | str | None = None) -> Tensor:
    """[n + 1, n + 1] bool: the ancestor closure, `visibility(ancestor_rows(parents))` without the rows.

    parents: [n] node numbers of nodes 1 … n, parents first. Raises ValueError when a parent does not come first.
    """
    count = len(parents) + 1
    rows = [bytearray(count)]
    rows[0][0] = 1
    for node, parent in enumerate(parents, start=1):
        if not 0 <= parent < node:
            raise ValueError(f"node {node} has parent {parent}: parents must come before their children")
        row = rows[parent][:]
        row[node] = 1
        rows.append(row)
    mask = torch.frombuffer(bytearray().join(rows), dtype=torch.bool).view(count, count)
    return mask if device is None else mask.to(device=device)


def _bytes_of_bits() -> Tensor:
    """[256] int64: the eight bits of a number as eight bytes, the lowest first."""
    bits = torch.arange(256, dtype=torch.uint8)[:, None] >> torch.arange(8, dtype=torch.uint8) & 1
    return bits.contiguous().view(torch.int64).squeeze(1)


_BYTES = _bytes_of_bits()
