"""Distances and directions of pairs on the GPU: one warp a row, one lane a pair, no atomic additions."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

LANES = 32
_OPTIONS = {"BLOCK_P": LANES, "num_warps": 1, "enable_fp_fusion": True}


def forward(
    positions: Tensor, shift: Tensor, ptr: Tensor, idx: Tensor, ptr_t: Tensor, pair_t: Tensor
) -> tuple[Tensor, Tensor]:
    """See ``reference.forward``."""
    r, u = positions.new_zeros(idx.shape[0]), positions.new_zeros(idx.shape[0], 3)
    arguments = [t.contiguous() for t in (positions, shift, ptr, idx)]
    if r.numel():
        _distances[(ptr.shape[0] - 1,)](*arguments, r, u, SHIFTED=shift.shape[0] > 0, **_OPTIONS)
    return r, u


def backward(
    grad_r: Tensor,
    grad_u: Tensor,
    r: Tensor,
    u: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    pair_t: Tensor,
) -> tuple[Tensor, Tensor]:
    """See ``reference.backward``."""
    n_atoms = ptr.shape[0] - 1
    grad_x, grad_d = r.new_empty(n_atoms, 3), r.new_zeros(r.shape[0], 3)
    ptr, ptr_t, pair_t = (t.contiguous() for t in (ptr, ptr_t, pair_t))
    per_pair = [t.contiguous() for t in (grad_r, grad_u, r, u)]
    if n_atoms:
        _pull_back[(n_atoms,)](*per_pair, ptr, grad_d, **_OPTIONS)
        _sum[(n_atoms,)](ptr, ptr_t, pair_t, grad_d, grad_x, **_OPTIONS)
    return grad_x, grad_d


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    names = ("positions", "shift", "r", "u", "grad_r", "grad_u", "grad_d", "grad_x")
    integers = dict.fromkeys(("ptr", "idx", "ptr_t", "pair_t"), "*i32")
    found = []
    for kind in ("*fp32", "*fp64"):
        types = {**dict.fromkeys(names, kind), **integers}
        for kernel, constants in (
            (_distances, {"SHIFTED": False}),
            (_distances, {"SHIFTED": True}),
            (_pull_back, {}),
            (_sum, {}),
        ):
            signature = {name: types[name] for name in kernel.arg_names if name in types}
            found.append(Specialization(kernel, signature, {"BLOCK_P": LANES, **constants}, 1))
    return found


@triton.jit
def _distances(positions, shift, ptr, idx, r, u, SHIFTED: tl.constexpr, BLOCK_P: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x, y, z = tl.load(positions + 3 * row), tl.load(positions + 3 * row + 1), tl.load(positions + 3 * row + 2)
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        p = (begin + tl.arange(0, BLOCK_P)).to(tl.int64)
        held = p < end
        other = 3 * tl.load(idx + p, mask=held, other=0).to(tl.int64)
        dx = tl.load(positions + other, mask=held, other=0.0) - x
        dy = tl.load(positions + other + 1, mask=held, other=0.0) - y
        dz = tl.load(positions + other + 2, mask=held, other=0.0) - z
        if SHIFTED:
            dx += tl.load(shift + 3 * p, mask=held, other=0.0)
            dy += tl.load(shift + 3 * p + 1, mask=held, other=0.0)
            dz += tl.load(shift + 3 * p + 2, mask=held, other=0.0)
        squared = dx * dx + dy * dy + dz * dz
        # Triton's plain float32 root is an approximation; its rounded one does not exist in float64.
        d = tl.sqrt(squared) if squared.dtype == tl.float64 else tl.sqrt_rn(squared)
        inverse = 1.0 / tl.where(d == 0.0, 1.0, d)
        tl.store(r + p, d, mask=held)
        tl.store(u + 3 * p, dx * inverse, mask=held)
        tl.store(u + 3 * p + 1, dy * inverse, mask=held)
        tl.store(u + 3 * p + 2, dz * inverse, mask=held)


@triton.jit
def _pull_back(grad_r, grad_u, r, u, ptr, grad_d, BLOCK_P: tl.constexpr):
    row = tl.program_id(0)
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        p = (begin + tl.arange(0, BLOCK_P)).to(tl.int64)
        held = p < end
        d = tl.load(r + p, mask=held, other=1.0)
        by_r = tl.load(grad_r + p, mask=held, other=0.0)
        ux = tl.load(u + 3 * p, mask=held, other=0.0)
        uy = tl.load(u + 3 * p + 1, mask=held, other=0.0)
        uz = tl.load(u + 3 * p + 2, mask=held, other=0.0)
        gx = tl.load(grad_u + 3 * p, mask=held, other=0.0)
        gy = tl.load(grad_u + 3 * p + 1, mask=held, other=0.0)
        gz = tl.load(grad_u + 3 * p + 2, mask=held, other=0.0)
        along = gx * ux + gy * uy + gz * uz
        inverse = tl.where(d == 0.0, 0.0, 1.0 / tl.where(d == 0.0, 1.0, d))
        tl.store(grad_d + 3 * p, by_r * ux + (gx - along * ux) * inverse, mask=held)
        tl.store(grad_d + 3 * p + 1, by_r * uy + (gy - along * uy) * inverse, mask=held)
        tl.store(grad_d + 3 * p + 2, by_r * uz + (gz - along * uz) * inverse, mask=held)


@triton.jit
def _sum(ptr, ptr_t, pair_t, grad_d, grad_x, BLOCK_P: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x = tl.zeros((BLOCK_P,), dtype=grad_x.dtype.element_ty)
    y = tl.zeros((BLOCK_P,), dtype=grad_x.dtype.element_ty)
    z = tl.zeros((BLOCK_P,), dtype=grad_x.dtype.element_ty)
    end = tl.load(ptr_t + row + 1)
    for begin in range(tl.load(ptr_t + row), end, BLOCK_P):
        q = begin + tl.arange(0, BLOCK_P)
        held = q < end
        p = 3 * tl.load(pair_t + q, mask=held, other=0).to(tl.int64)
        x += tl.load(grad_d + p, mask=held, other=0.0)
        y += tl.load(grad_d + p + 1, mask=held, other=0.0)
        z += tl.load(grad_d + p + 2, mask=held, other=0.0)
    end = tl.load(ptr + row + 1)
    for begin in range(tl.load(ptr + row), end, BLOCK_P):
        q = begin + tl.arange(0, BLOCK_P)
        held = q < end
        p = 3 * q.to(tl.int64)
        x -= tl.load(grad_d + p, mask=held, other=0.0)
        y -= tl.load(grad_d + p + 1, mask=held, other=0.0)
        z -= tl.load(grad_d + p + 2, mask=held, other=0.0)
    tl.store(grad_x + 3 * row, tl.sum(x, axis=0))
    tl.store(grad_x + 3 * row + 1, tl.sum(y, axis=0))
    tl.store(grad_x + 3 * row + 2, tl.sum(z, axis=0))
