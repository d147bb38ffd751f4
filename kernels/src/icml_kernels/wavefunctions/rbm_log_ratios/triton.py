"""Ratios of amplitudes of a restricted Boltzmann machine with Triton: one program a row of spins."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.wavefunctions.rbm_metropolis.triton import angles_of, log_cosh


def ratios(
    weight: Tensor, hidden_bias: Tensor, visible_bias: Tensor, x: Tensor, ptr: Tensor, sites: Tensor
) -> Tensor:
    """See ``reference.ratios``."""
    n_spins, n_hidden = weight.shape
    n_masks = len(ptr) - 1
    out = weight.new_empty(len(x), n_masks)
    if out.numel():
        ratios_kernel[(len(x),)](
            weight.contiguous(),
            hidden_bias.contiguous(),
            visible_bias.contiguous(),
            x.contiguous(),
            ptr.contiguous(),
            sites.contiguous(),
            out,
            n_masks,
            n_spins,
            n_hidden,
            **_blocks(n_spins, n_hidden),
            enable_fp_fusion=True,
        )
    return out


def _blocks(n_spins: int, n_hidden: int) -> dict[str, int]:
    hidden = max(32, triton.next_power_of_2(max(1, n_hidden)))
    return {
        "BLOCK_N": max(32, triton.next_power_of_2(n_spins)),
        "BLOCK_H": hidden,
        "num_warps": min(8, max(1, hidden // 128)),
    }


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for kind in ("*fp32", "*fp64"):
        signature = dict.fromkeys(("weight_ptr", "hidden_ptr", "visible_ptr", "out_ptr"), kind)
        signature |= {"x_ptr": "*i8", "ptr_ptr": "*i64", "sites_ptr": "*i64"}
        signature |= dict.fromkeys(("n_masks", "n_spins", "n_hidden"), "i32")
        for n_spins, n_hidden in ((64, 64), (128, 512)):
            blocks = _blocks(n_spins, n_hidden)
            warps = blocks.pop("num_warps")
            found.append(Specialization(ratios_kernel, signature, blocks, warps))
    return found


@triton.jit
def ratios_kernel(
    weight_ptr,
    hidden_ptr,
    visible_ptr,
    x_ptr,
    ptr_ptr,
    sites_ptr,
    out_ptr,
    n_masks,
    n_spins,
    n_hidden,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """All masks of one row."""
    row = tl.program_id(0).to(tl.int64)
    site, unit = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_H)
    inside = unit < n_hidden
    dtype: tl.constexpr = weight_ptr.dtype.element_ty
    x = tl.load(x_ptr + row * n_spins + site, mask=site < n_spins, other=0).to(tl.int32)
    visible = tl.load(visible_ptr + site, mask=site < n_spins, other=0.0)
    theta = angles_of(x, site, unit, weight_ptr, hidden_ptr, n_spins, n_hidden)
    here = log_cosh(theta)
    for m in range(n_masks):
        change = tl.zeros((BLOCK_H,), dtype)
        flipped = tl.zeros((BLOCK_N,), tl.int32)
        begin, end = tl.load(ptr_ptr + m), tl.load(ptr_ptr + m + 1)
        for at in range(begin, end):
            i = tl.load(sites_ptr + at)
            spin = tl.sum(tl.where(site == i, x, 0), 0)
            flipped = tl.where(site == i, 1, flipped)
            change += spin.to(dtype) * tl.load(weight_ptr + i * n_hidden + unit, mask=inside, other=0.0)
        gain = tl.sum(tl.where(inside, log_cosh(theta - 2.0 * change) - here, 0.0), 0)
        gain -= 2.0 * tl.sum(tl.where(flipped == 1, x.to(dtype) * visible, 0.0), 0)
        tl.store(out_ptr + row * n_masks + m, gain)
