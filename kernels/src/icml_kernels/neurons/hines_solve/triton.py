"""Linear systems on trees on the GPU: a thread owns a column, and neighbours read neighbouring addresses."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

LANES = 32


def forward(parent: Tensor, d: Tensor, u: Tensor, l: Tensor, rhs: Tensor) -> Tensor:
    """See ``reference.forward``."""
    nodes, batch = rhs.shape
    x = rhs.contiguous().clone()
    diagonal = d.contiguous().clone()
    if batch:
        solve_kernel[(triton.cdiv(batch, LANES),)](
            parent.contiguous(),
            u.contiguous(),
            l.contiguous(),
            diagonal,
            x,
            nodes,
            batch,
            BLOCK_B=LANES,
            num_warps=1,
            enable_fp_fusion=True,
        )
    return x


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        signature = {"parent": "*i32"} | dict.fromkeys(("u", "l", "diagonal", "x"), kind)
        signature |= {"nodes": "i32", "batch": "i32"}
        found.append(Specialization(solve_kernel, signature, {"BLOCK_B": LANES}, 1))
    return found


@triton.jit
def solve_kernel(parent, u, l, diagonal, x, nodes, batch, BLOCK_B: tl.constexpr):
    """``diagonal`` and ``x`` hold the diagonal and the right-hand sides; ``x`` the solution afterwards."""
    b = tl.program_id(0) * BLOCK_B + tl.arange(0, BLOCK_B)
    kept = b < batch
    for k in range(nodes):
        i = nodes - 1 - k
        p = tl.load(parent + i)
        here = tl.load(diagonal + i * batch + b, mask=kept, other=1.0)
        inverse = 1.0 / here
        tl.store(diagonal + i * batch + b, inverse, mask=kept)
        above = kept & (b * 0 + p >= 0)
        factor = tl.load(l + i * batch + b, mask=above, other=0.0) * inverse
        upper = tl.load(u + i * batch + b, mask=above, other=0.0)
        right = tl.load(x + i * batch + b, mask=above, other=0.0)
        old = tl.load(diagonal + p * batch + b, mask=above, other=0.0)
        tl.store(diagonal + p * batch + b, old - factor * upper, mask=above)
        old = tl.load(x + p * batch + b, mask=above, other=0.0)
        tl.store(x + p * batch + b, old - factor * right, mask=above)
    for i in range(nodes):
        p = tl.load(parent + i)
        above = kept & (b * 0 + p >= 0)
        inverse = tl.load(diagonal + i * batch + b, mask=kept, other=1.0)
        right = tl.load(x + i * batch + b, mask=kept, other=0.0)
        upper = tl.load(u + i * batch + b, mask=above, other=0.0)
        known = tl.load(x + p * batch + b, mask=above, other=0.0)
        tl.store(x + i * batch + b, (right - upper * known) * inverse, mask=kept)
