"""Neighbour lists with Triton: all pairs of each replica, counted and then written, one program a row.

Distances are measured in float64 and without fused multiply-add, so that both passes agree.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.molecules.neighbors import transposed_list
from icml_kernels.molecules.radius_pairs.reference import places

BLOCK = 128


def radius_pairs(
    pos: Tensor, ptr: Tensor, reach: float, cell: Tensor | None, pbc: Tensor | None, capacity: int
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Open systems on the device; periodic ones on the CPU, where lists are built once in many steps."""
    if cell is not None:
        from icml_kernels.molecules.radius_pairs import cpu

        on_cpu = cpu.radius_pairs(pos.cpu(), ptr.cpu(), reach, cell, pbc, capacity)
        return tuple(part.to(pos.device) for part in on_cpu)  # type: ignore[return-value]
    n, device = len(pos), pos.device
    x = pos.double().contiguous()
    bounds = ptr.to(device, torch.int32)
    rows = torch.arange(n, device=device, dtype=torch.int32)
    end = bounds[1:][torch.searchsorted(bounds[1:].contiguous(), rows, right=True)]
    # As a tensor: Triton passes Python's floats in single precision.
    limit = torch.full((), reach * reach, dtype=torch.float64, device=device)
    count = torch.empty(n, dtype=torch.int32, device=device)
    row_ptr = torch.zeros(n + 1, dtype=torch.int32, device=device)
    if n:
        count_kernel[(n,)](x, end, limit, count, BLOCK=BLOCK, enable_fp_fusion=False)
        row_ptr[1:] = count.cumsum(0)
    idx = torch.zeros(places(int(row_ptr[-1]), capacity), dtype=torch.int32, device=device)
    if n:
        fill_kernel[(n,)](x, end, limit, row_ptr, idx, BLOCK=BLOCK, enable_fp_fusion=False)
    pairs = transposed_list(row_ptr, idx)
    return *pairs.tensors(), torch.empty(0, 3, dtype=torch.int32, device=device)


def specializations() -> list[Specialization]:
    """What is compiled ahead of time: both passes, which know no other precision than float64."""
    types = {"pos_ptr": "*fp64", "limit_ptr": "*fp64"}
    types |= dict.fromkeys(("end_ptr", "count_ptr", "row_ptr", "idx_ptr"), "*i32")
    return [
        Specialization(
            kernel, {name: types[name] for name in kernel.arg_names if name in types}, {"BLOCK": BLOCK}
        )
        for kernel in (count_kernel, fill_kernel)
    ]


@triton.jit
def _near(pos_ptr, i, j, inside, limit):
    dx = tl.load(pos_ptr + j * 3, mask=inside, other=0.0) - tl.load(pos_ptr + i * 3)
    dy = tl.load(pos_ptr + j * 3 + 1, mask=inside, other=0.0) - tl.load(pos_ptr + i * 3 + 1)
    dz = tl.load(pos_ptr + j * 3 + 2, mask=inside, other=0.0) - tl.load(pos_ptr + i * 3 + 2)
    return inside & (dx * dx + dy * dy + dz * dz < limit)


@triton.jit
def count_kernel(pos_ptr, end_ptr, limit_ptr, count_ptr, BLOCK: tl.constexpr):
    """count[i] = number of beads j > i of the same replica within reach of bead i."""
    i = tl.program_id(0)
    end = tl.load(end_ptr + i)
    limit = tl.load(limit_ptr)
    found = tl.zeros([BLOCK], tl.int32)
    for first in range(i + 1, end, BLOCK):
        j = first + tl.arange(0, BLOCK)
        found += _near(pos_ptr, i, j, j < end, limit).to(tl.int32)
    tl.store(count_ptr + i, tl.sum(found, 0))


@triton.jit
def fill_kernel(pos_ptr, end_ptr, limit_ptr, row_ptr, idx_ptr, BLOCK: tl.constexpr):
    """Write the partners of bead i in rising order from row_ptr[i] on."""
    i = tl.program_id(0)
    end = tl.load(end_ptr + i)
    limit = tl.load(limit_ptr)
    place = tl.load(row_ptr + i)
    for first in range(i + 1, end, BLOCK):
        j = first + tl.arange(0, BLOCK)
        near = _near(pos_ptr, i, j, j < end, limit)
        rank = tl.cumsum(near.to(tl.int32), 0)
        tl.store(idx_ptr + place + rank - 1, j, mask=near)
        place += tl.sum(near.to(tl.int32), 0)
