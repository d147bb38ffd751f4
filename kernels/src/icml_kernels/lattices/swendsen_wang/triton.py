"""Swendsen-Wang sweeps on the GPU: a program owns a lattice, clusters by propagation of the least label."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.lattices.words import threshold
from icml_kernels.lattices.words_triton import mix

LARGEST = 512


def sweeps(
    spins: Tensor, p: float, q: int, n_sweeps: int, seed: int, ghost: float, ghost_state: int
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.sweeps``."""
    out = spins.clone(memory_format=torch.contiguous_format)
    chains, rows, cols = out.shape
    clusters, squares = (torch.zeros(chains, dtype=torch.int64, device=out.device) for _ in range(2))
    if out.numel():
        label, size = (
            torch.empty(chains, rows * cols, dtype=torch.int32, device=out.device) for _ in range(2)
        )
        held = torch.zeros_like(label)
        limits = torch.tensor([threshold(p), threshold(ghost)], device=out.device)
        key = torch.tensor([(seed + 2**63) % 2**64 - 2**63], device=out.device)
        block = min(LARGEST, triton.next_power_of_2(rows * cols))
        shapes = (rows, cols, q, n_sweeps, ghost_state)
        _sweeps[(chains,)](
            out, label, size, held, clusters, squares, limits, key, *shapes,
            BLOCK=block, GHOST=ghost > 0, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out, clusters, squares


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    types = dict.fromkeys(("label", "size", "held"), "*i32") | {"state": "*i8"}
    types |= dict.fromkeys(("clusters", "squares", "limits", "seed"), "*i64")
    types |= dict.fromkeys(("rows", "cols", "q", "n_sweeps", "ghost_state"), "i32")
    signature = {name: types[name] for name in _sweeps.arg_names if name in types}
    return [Specialization(_sweeps, signature, {"BLOCK": LARGEST, "GHOST": g}, 4) for g in (False, True)]


@triton.jit
def _low(word):
    return (word & 0xFFFFFFFF).to(tl.int64)


@triton.jit
def _high(word):
    return (word >> 32).to(tl.int64)


@triton.jit
def _sweeps(
    state, label, size, held, clusters, squares, limits, seed, rows, cols, q, n_sweeps, ghost_state,
    BLOCK: tl.constexpr, GHOST: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64)
    n = rows * cols
    state += b * n
    label += b * n
    size += b * n
    held += b * n
    limit = tl.load(limits)
    chain = mix(mix(tl.load(seed).to(tl.uint64)) + b.to(tl.uint64))
    lanes = tl.arange(0, BLOCK)
    count = tl.zeros((), dtype=tl.int64)
    square = tl.zeros((), dtype=tl.int64)
    for sweep in range(0, n_sweeps):
        key = mix(chain + tl.cast(sweep, tl.uint64))
        bonds = mix(key)
        states = mix(key + 1)
        ghosts = mix(key + 2)
        for first in range(0, n, BLOCK):
            i = first + lanes
            tl.store(label + i, i, mask=i < n)
            tl.store(size + i, i * 0, mask=i < n)
            tl.store(held + i, i * 0, mask=i < n)
        tl.debug_barrier()
        changed = tl.full((), 1, dtype=tl.int32)
        while changed > 0:
            changed = tl.full((), 0, dtype=tl.int32)
            for first in range(0, n, BLOCK):
                i = first + lanes
                inside = i < n
                r = i // cols
                c = i % cols
                right = r * cols + (c + 1) % cols
                left = r * cols + (c + cols - 1) % cols
                down = ((r + 1) % rows) * cols + c
                up = ((r + rows - 1) % rows) * cols + c
                own = tl.load(state + i, mask=inside, other=0)
                before = tl.load(label + i, mask=inside, other=0)
                word = mix(bonds + i.to(tl.uint64))
                best = before
                tied = inside & (own == tl.load(state + right, mask=inside, other=0)) & (_low(word) < limit)
                best = tl.where(tied, tl.minimum(best, tl.load(label + right, mask=inside, other=0)), best)
                tied = inside & (own == tl.load(state + down, mask=inside, other=0)) & (_high(word) < limit)
                best = tl.where(tied, tl.minimum(best, tl.load(label + down, mask=inside, other=0)), best)
                other = _low(mix(bonds + left.to(tl.uint64)))
                tied = inside & (own == tl.load(state + left, mask=inside, other=0)) & (other < limit)
                best = tl.where(tied, tl.minimum(best, tl.load(label + left, mask=inside, other=0)), best)
                other = _high(mix(bonds + up.to(tl.uint64)))
                tied = inside & (own == tl.load(state + up, mask=inside, other=0)) & (other < limit)
                best = tl.where(tied, tl.minimum(best, tl.load(label + up, mask=inside, other=0)), best)
                best = tl.minimum(best, tl.load(label + best, mask=inside, other=0))
                changed += tl.sum(tl.where(inside & (best < before), 1, 0), axis=0)
                tl.store(label + i, best, mask=inside)
            tl.debug_barrier()
        for first in range(0, n, BLOCK):
            i = first + lanes
            inside = i < n
            root = tl.load(label + i, mask=inside, other=0)
            tl.atomic_add(size + root, 1, mask=inside)
            if GHOST:
                word = mix(ghosts + i.to(tl.uint64))
                own = tl.load(state + i, mask=inside, other=0)
                tied = inside & (own == ghost_state) & (_low(word) < tl.load(limits + 1))
                tl.store(held + root, root * 0 + 1, mask=tied)
        tl.debug_barrier()
        for first in range(0, n, BLOCK):
            i = first + lanes
            inside = i < n
            root = tl.load(label + i, mask=inside, other=0)
            of_root = tl.load(size + i, mask=inside, other=0).to(tl.int64)
            count += tl.sum((of_root > 0).to(tl.int64), axis=0)
            square += tl.sum(of_root * of_root, axis=0)
            drawn = (_high(mix(states + root.to(tl.uint64))) * q) >> 32
            if GHOST:
                drawn = tl.where(tl.load(held + root, mask=inside, other=0) > 0, ghost_state, drawn)
            tl.store(state + i, drawn.to(tl.int8), mask=inside)
        tl.debug_barrier()
    tl.store(clusters + b, count)
    tl.store(squares + b, square)
