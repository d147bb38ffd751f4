"""Metropolis-Hastings by Hamming balls on the GPU: a lane takes a chain.

A change is a shift of the symbol by a random number, which is drawn again to be taken back; so a rejected
move needs no memory. A move that changes nothing in the end is told by comparing the sites with what they
were.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.lattices.words_triton import mix

CHAINS = 32


def chains(
    x: Tensor,
    beta: Tensor,
    term_ptr: Tensor,
    term_sites: Tensor,
    coefficients: Tensor,
    site_ptr: Tensor,
    site_terms: Tensor,
    values: Tensor,
    equal: bool,
    radius: int,
    n_steps: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.chains``."""
    out = x.clone(memory_format=torch.contiguous_format)
    n = out.shape[0]
    gained = torch.zeros(n, dtype=torch.float64, device=x.device)
    moved = torch.zeros(n, dtype=torch.int64, device=x.device)
    if out.numel():
        before = out.clone()
        key = torch.tensor([(seed + 2**63) % 2**64 - 2**63], device=x.device)
        lists = (term_ptr, term_sites, coefficients, site_ptr, site_terms, values)
        arrays = [t.contiguous() for t in (beta, *lists)]
        shapes = (n, x.shape[1], values.shape[0], radius, n_steps)
        _walk[(triton.cdiv(n, CHAINS),)](
            out, before, *arrays, gained, moved, key, *shapes,
            BLOCK=CHAINS, EQUAL=equal, num_warps=1, enable_fp_fusion=False,
        )  # fmt: skip
    return out, gained, moved


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    types = dict.fromkeys(("beta", "coefficients", "values", "gained"), "*fp64")
    integers = ("state", "before", "term_ptr", "term_sites", "site_ptr", "site_terms", "moved", "seed")
    types |= dict.fromkeys(integers, "*i64")
    types |= dict.fromkeys(("n", "sites", "symbols", "radius", "n_steps"), "i32")
    signature = {name: types[name] for name in _walk.arg_names if name in types}
    return [Specialization(_walk, signature, {"BLOCK": CHAINS, "EQUAL": e}, 1) for e in (False, True)]


@triton.jit
def _difference(
    row, site, old, new, live, term_ptr, term_sites, coefficients, site_ptr, site_terms, values,
    EQUAL: tl.constexpr,
):  # fmt: skip
    begin = tl.load(site_ptr + site, mask=live, other=0)
    end = tl.load(site_ptr + site + 1, mask=live, other=0)
    step = tl.load(values + new, mask=live, other=0.0) - tl.load(values + old, mask=live, other=0.0)
    total = step * 0.0
    longest = tl.max(end - begin, axis=0)
    for k in range(0, longest):
        here = live & (begin + k < end)
        t = tl.load(site_terms + begin + k, mask=here, other=0)
        first = tl.load(term_ptr + t, mask=here, other=0)
        last = tl.load(term_ptr + t + 1, mask=here, other=0)
        product = tl.load(coefficients + t, mask=here, other=0.0)
        common = site * 0 - 1
        agree = here
        widest = tl.max(last - first, axis=0)
        for j in range(0, widest):
            inside = here & (first + j < last)
            s = tl.load(term_sites + first + j, mask=inside, other=0)
            inside = inside & (s != site)
            symbol = tl.load(row + s, mask=inside, other=0)
            if EQUAL:
                agree = agree & ((inside == 0) | (common < 0) | (symbol == common))
                common = tl.where(inside, symbol, common)
            else:
                product *= tl.where(inside, tl.load(values + symbol, mask=inside, other=1.0), 1.0)
        if EQUAL:
            sign = tl.where(common == new, 1.0, 0.0) - tl.where(common == old, 1.0, 0.0)
            total += tl.where(agree, product * sign, 0.0)
        else:
            total += tl.where(here, product * step, 0.0)
    return total


@triton.jit
def _walk(
    state, before, beta, term_ptr, term_sites, coefficients, site_ptr, site_terms, values, gained, moved,
    seed,
    n, sites, symbols, radius, n_steps, BLOCK: tl.constexpr, EQUAL: tl.constexpr,
):  # fmt: skip
    b = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)).to(tl.int64)
    live = b < n
    row = state + b * sites
    old_row = before + b * sites
    inverse = tl.load(beta + b, mask=live, other=0.0)
    chain = mix(mix(tl.load(seed).to(tl.uint64)) + b.to(tl.uint64))
    gain = inverse * 0.0
    count = b * 0
    for step in range(0, n_steps):
        key = mix(chain + tl.cast(step, tl.uint64))
        delta = inverse * 0.0
        for j in range(0, radius):
            word = mix(key + tl.cast(j, tl.uint64))
            site = ((word >> 32).to(tl.int64) * sites) >> 32
            by = 1 + (((word & 0xFFFFFFFF).to(tl.int64) * (symbols - 1)) >> 32)
            old = tl.load(row + site, mask=live, other=0)
            new = (old + by) % symbols
            delta += _difference(
                row,
                site,
                old,
                new,
                live,
                term_ptr,
                term_sites,
                coefficients,
                site_ptr,
                site_terms,
                values,
                EQUAL,
            )
            tl.store(row + site, new, mask=live)
            tl.debug_barrier()
        draw = (mix(key + tl.cast(radius, tl.uint64)) >> 11).to(tl.float64) * 1.1102230246251565e-16
        accept = live & (draw < tl.exp(tl.minimum(inverse * delta, 0.0)))
        real = live & (b < 0)
        for j in range(0, radius):
            word = mix(key + tl.cast(j, tl.uint64))
            site = ((word >> 32).to(tl.int64) * sites) >> 32
            by = 1 + (((word & 0xFFFFFFFF).to(tl.int64) * (symbols - 1)) >> 32)
            now = tl.load(row + site, mask=live, other=0)
            was = tl.load(old_row + site, mask=live, other=0)
            real = real | (accept & (now != was))
        tl.debug_barrier()
        for j in range(0, radius):
            word = mix(key + tl.cast(j, tl.uint64))
            site = ((word >> 32).to(tl.int64) * sites) >> 32
            by = 1 + (((word & 0xFFFFFFFF).to(tl.int64) * (symbols - 1)) >> 32)
            now = tl.load(row + site, mask=live, other=0)
            tl.store(row + site, (now + symbols - by) % symbols, mask=live & (accept == 0))
            tl.debug_barrier()
        for j in range(0, radius):
            word = mix(key + tl.cast(j, tl.uint64))
            site = ((word >> 32).to(tl.int64) * sites) >> 32
            tl.store(old_row + site, tl.load(row + site, mask=live, other=0), mask=live)
        tl.debug_barrier()
        gain += tl.where(accept, delta, 0.0)
        count += tl.where(real, 1, 0)
    tl.store(gained + b, gain, mask=live)
    tl.store(moved + b, count, mask=live)
