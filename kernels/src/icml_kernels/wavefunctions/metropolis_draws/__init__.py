"""What a Metropolis step draws: which move is proposed, and the logarithm of the uniform that decides."""

from __future__ import annotations

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.wavefunctions.checks import require_stream
from icml_kernels.wavefunctions.metropolis_draws import reference

_HERE = "icml_kernels.wavefunctions"


def metropolis_draws(
    chain: Int64[Tensor, " chains"],
    *,
    seed: int,
    step: int,
    n_steps: int,
    n_moves: int,
    stream: int = 0,
) -> tuple[Int64[Tensor, "steps chains"], Float64[Tensor, "steps chains"]]:
    """Moves and log-uniforms of the steps ``step``, ``step`` + 1, ... of each chain.

    Philox-4x32-10 under the key ``seed``, with the counter (step // 2, chain, stream): a function of these
    numbers alone, the same on every device and however a run is cut. A move is ``word · n_moves // 2**32``,
    a uniform ``(word + 1/2) / 2**32``. Not differentiable.

    Args:
        chain: numbers of the chains, below 2**32; they select the stream.
        seed: 0 <= seed < 2**63.
        step: number of the first step since the beginning, below 2**48.
        n_steps: how many steps.
        n_moves: how many moves there are to choose from.
        stream: 0 <= stream < 2**16; stream 0 is that of ``rbm_metropolis``.

    Raises:
        TypeError: ``chain`` is not int64.
        ValueError: a number out of range.
    """
    require_stream(seed, step, stream)
    if chain.dtype != torch.int64 or chain.dim() != 1:
        raise TypeError(f"chain is {chain.dtype} {list(chain.shape)}; expected int64 [chains]")
    if n_steps < 0 or not 1 <= n_moves < 2**31:
        raise ValueError(
            f"n_steps={n_steps}, n_moves={n_moves}; expected n_steps >= 0 and 1 <= n_moves < 2**31"
        )
    return _draws(chain, seed, step, n_steps, n_moves, stream)


def _fake(
    chain: Tensor, seed: int, step: int, n_steps: int, n_moves: int, stream: int
) -> tuple[Tensor, Tensor]:
    move = chain.new_empty(n_steps, chain.shape[0])
    return move, torch.empty_like(move, dtype=torch.float64)


_draws = raw_op(
    "metropolis_draws",
    reference.draws,
    fake=_fake,
    cpu=f"{_HERE}.chains_cpu:draws",
    cuda=f"{_HERE}.metropolis_draws.triton:draws",
)
