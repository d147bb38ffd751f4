"""Random moves and uniforms with Triton: one lane a chain and step."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization

BLOCK = 128
_UNIT = tl.constexpr(2.0**-32)


def draws(
    chain: Tensor, seed: int, step: int, n_steps: int, n_moves: int, stream: int
) -> tuple[Tensor, Tensor]:
    """See ``reference.draws``."""
    move = chain.new_empty(n_steps, len(chain))
    log_uniform = torch.empty_like(move, dtype=torch.float64)
    total = move.numel()
    if total:
        draws_kernel[(triton.cdiv(total, BLOCK),)](
            chain.contiguous(), move, log_uniform, seed, step, n_moves, stream, len(chain), total, BLOCK=BLOCK
        )
    return move, log_uniform


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    signature = {"chain_ptr": "*i64", "move_ptr": "*i64", "log_uniform_ptr": "*fp64", "seed": "i64"}
    signature |= {"first": "i64", "n_moves": "i32", "stream": "i32", "n_chains": "i32", "total": "i32"}
    return [Specialization(draws_kernel, signature, {"BLOCK": BLOCK})]


@triton.jit
def words_of_step(step, chain, stream, seed):
    """The two words of a step; ``step`` int64, ``chain`` and ``stream`` of its shape."""
    pair = step >> 1
    low = (pair & 0xFFFFFFFF).to(tl.uint32)
    high = (pair >> 32).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, low, high, chain.to(tl.uint32), stream.to(tl.uint32))
    odd = (step & 1) == 1
    return tl.where(odd, w2, w0), tl.where(odd, w3, w1)


@triton.jit(do_not_specialize=["seed", "first", "stream"])
def draws_kernel(
    chain_ptr, move_ptr, log_uniform_ptr, seed, first, n_moves, stream, n_chains, total, BLOCK: tl.constexpr
):
    """Moves and log-uniforms [steps, chains]."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    chain = tl.load(chain_ptr + at % n_chains, mask=inside, other=0)
    step = tl.to_tensor(first).to(tl.int64) + (at // n_chains).to(tl.int64)
    a, b = words_of_step(step, chain, (at * 0 + stream), seed)
    move = (a.to(tl.uint64) * tl.to_tensor(n_moves).to(tl.uint64)) >> 32
    tl.store(move_ptr + at, move.to(tl.int64), mask=inside)
    uniform = b.to(tl.float64) * _UNIT + 0.5 * _UNIT
    tl.store(log_uniform_ptr + at, tl.log(uniform), mask=inside)
