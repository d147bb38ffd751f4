"""Retraction and update with Triton: one read of W, one of Phi, one write."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

BLOCK = 1024
_TYPES = {torch.bfloat16: "*bf16", torch.float16: "*fp16", torch.float32: "*fp32", torch.float64: "*fp64"}


def retract_axpy(w: Tensor, scale: Tensor, phi: Tensor, alpha: Tensor) -> Tensor:
    """See ``reference.retract_axpy``."""
    w, phi = w.contiguous(), phi.contiguous()
    out = torch.empty_like(w)
    size = w.shape[1] * w.shape[2]
    if out.numel():
        retract_axpy_kernel[(triton.cdiv(size, BLOCK), w.shape[0])](
            w, scale, phi, alpha, out, size, BLOCK=BLOCK, num_warps=4, enable_fp_fusion=True
        )
    return out


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for weight, factor in (("*fp32", "*fp32"), ("*fp64", "*fp64"), ("*bf16", "*bf16")):
        for phi in {weight, "*bf16"}:
            signature = {
                "w": weight,
                "scale": factor,
                "phi": phi,
                "alpha": factor,
                "out": weight,
                "size": "i32",
            }
            found.append(Specialization(retract_axpy_kernel, signature, {"BLOCK": BLOCK}, 4, ("size",)))
    return found


@triton.jit
def retract_axpy_kernel(w, scale, phi, alpha, out, size, BLOCK: tl.constexpr):
    """scale W - alpha Phi; one lane an entry."""
    matrix = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    place = matrix * size + at
    dtype: tl.constexpr = scale.dtype.element_ty
    weight = tl.load(w + place, mask=inside, other=0.0).to(dtype)
    direction = tl.load(phi + place, mask=inside, other=0.0).to(dtype)
    value = tl.load(scale + matrix) * weight - tl.load(alpha + matrix) * direction
    tl.store(out + place, value.to(out.dtype.element_ty), mask=inside)
