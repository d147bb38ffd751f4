"""Metropolis chains of a restricted Boltzmann machine with Triton: a chain is one persistent program.

Spins and angles stay in registers for all steps of a call. A hyperbolic cosine is cheap here beside the row
of W that it needs, so that the angles themselves are kept and not their exponentials.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.wavefunctions.metropolis_draws.triton import words_of_step
from icml_kernels.wavefunctions.rbm_metropolis.reference import log_psi as log_psi_of

REFRESH = {torch.float32: 8, torch.float64: 64}
"""Sweeps after which the angles are summed anew."""
_UNIT = tl.constexpr(2.0**-32)
_LOG_2 = tl.constexpr(math.log(2.0))


def chains(
    weight: Tensor,
    hidden_bias: Tensor,
    visible_bias: Tensor,
    x: Tensor,
    moves: Tensor,
    chain: Tensor,
    step: int,
    n_steps: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.chains``."""
    n_spins, n_hidden = weight.shape
    new = torch.empty_like(x)
    accepted = torch.zeros_like(chain)
    if len(x):
        refresh = max(64, REFRESH[weight.dtype] * n_spins)
        chains_kernel[(len(x),)](
            weight.contiguous(),
            hidden_bias.contiguous(),
            visible_bias.contiguous(),
            x.contiguous(),
            moves.contiguous(),
            chain.contiguous(),
            new,
            accepted,
            seed,
            step,
            n_steps,
            len(moves),
            n_spins,
            n_hidden,
            refresh,
            **_blocks(n_spins, n_hidden),
            enable_fp_fusion=True,
        )
    return new, log_psi_of(weight, hidden_bias, visible_bias, new), accepted


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
        signature = dict.fromkeys(("weight_ptr", "hidden_ptr", "visible_ptr"), kind)
        signature |= {"x_ptr": "*i8", "moves_ptr": "*i32", "chain_ptr": "*i64", "new_ptr": "*i8"}
        signature |= {"accepted_ptr": "*i64", "seed": "i64", "first": "i64"}
        signature |= dict.fromkeys(("n_steps", "n_moves", "n_spins", "n_hidden", "refresh"), "i32")
        for n_spins, n_hidden in ((64, 64), (128, 512)):
            blocks = _blocks(n_spins, n_hidden)
            warps = blocks.pop("num_warps")
            found.append(Specialization(chains_kernel, signature, blocks, warps))
    return found


@triton.jit
def log_cosh(u):
    """|u| + log(1 + exp(-2|u|)) - log 2."""
    size = tl.abs(u)
    return size + tl.log(1.0 + tl.exp(-2.0 * size)) - _LOG_2


@triton.jit
def angles_of(x, site, unit, weight_ptr, hidden_ptr, n_spins, n_hidden):
    """θ = b + x W of the spins in registers."""
    inside = unit < n_hidden
    theta = tl.load(hidden_ptr + unit, mask=inside, other=0.0)
    for i in range(n_spins):
        spin = tl.sum(tl.where(site == i, x, 0), 0)
        row = tl.load(weight_ptr + i * n_hidden + unit, mask=inside, other=0.0)
        theta += spin.to(theta.dtype) * row
    return theta


@triton.jit(do_not_specialize=["seed", "first", "n_steps"])
def chains_kernel(
    weight_ptr,
    hidden_ptr,
    visible_ptr,
    x_ptr,
    moves_ptr,
    chain_ptr,
    new_ptr,
    accepted_ptr,
    seed,
    first,
    n_steps,
    n_moves,
    n_spins,
    n_hidden,
    refresh,
    BLOCK_N: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """All steps of one chain."""
    c = tl.program_id(0).to(tl.int64)
    site, unit = tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_H)
    inside = unit < n_hidden
    dtype: tl.constexpr = weight_ptr.dtype.element_ty
    chain = tl.load(chain_ptr + c)
    x = tl.load(x_ptr + c * n_spins + site, mask=site < n_spins, other=0).to(tl.int32)
    visible = tl.load(visible_ptr + site, mask=site < n_spins, other=0.0)
    theta = tl.zeros((BLOCK_H,), dtype)
    count = tl.sum(tl.zeros((BLOCK_N,), tl.int64), 0)
    for s in range(n_steps):
        if s % refresh == 0:
            theta = angles_of(x, site, unit, weight_ptr, hidden_ptr, n_spins, n_hidden)
        step = tl.to_tensor(first).to(tl.int64) + s
        which, decides = words_of_step(step, chain, chain * 0, seed)
        move = ((which.to(tl.uint64) * tl.to_tensor(n_moves).to(tl.uint64)) >> 32).to(tl.int64)
        i = tl.load(moves_ptr + 2 * move)
        k = tl.load(moves_ptr + 2 * move + 1)
        alone = k < 0
        other = tl.maximum(k, 0)
        of_first = tl.sum(tl.where(site == i, x, 0), 0)
        of_second = tl.where(alone, 0, tl.sum(tl.where(site == k, x, 0), 0))
        change = of_first.to(dtype) * tl.load(weight_ptr + i * n_hidden + unit, mask=inside, other=0.0)
        change += of_second.to(dtype) * tl.load(weight_ptr + other * n_hidden + unit, mask=inside, other=0.0)
        new = theta - 2.0 * change
        gain = tl.sum(tl.where(inside, log_cosh(new) - log_cosh(theta), 0.0), 0)
        gain -= 2.0 * tl.sum(tl.where((site == i) | (site == k), x.to(dtype) * visible, 0.0), 0)
        log_uniform = tl.log(decides.to(tl.float64) * _UNIT + 0.5 * _UNIT)
        takes = (alone | (of_first != of_second)) & (log_uniform < 2.0 * gain.to(tl.float64))
        theta = tl.where(takes, new, theta)
        x = tl.where(takes & ((site == i) | (site == k)), -x, x)
        count += takes.to(tl.int64)
    tl.store(new_ptr + c * n_spins + site, x.to(tl.int8), mask=site < n_spins)
    tl.store(accepted_ptr + c, count)
