"""Metropolis chains of a restricted Boltzmann machine, a proposal at the cost of its hidden units.

log ψ(x) = Σ_j log cosh(θ_j) + a·x with θ = b + x W, and the chains sample π = ψ². A move flips one spin, or
exchanges two that differ; it changes θ by -2 x_i W_i, so that a proposal costs O(hidden) and not
O(spins · hidden). On a CPU not even a hyperbolic cosine is left in it: with E = exp(2θ) and R = 1/(1 + E),

    cosh(θ + δ) / cosh(θ) = (exp(-δ) + E exp(δ)) R,    E ← E exp(2δ)

where exp(±2W) are tables. Everything is positive, so that nothing cancels.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int, Int8, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.wavefunctions.checks import (
    chain_numbers,
    require_restricted_boltzmann_machine,
    require_spins,
    require_stream,
)
from icml_kernels.wavefunctions.rbm_metropolis import reference

_HERE = "icml_kernels.wavefunctions"
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
REACH = {torch.float32: 40.0, torch.float64: 340.0}
"""Largest |θ| for which exp(2θ) is a number of the arithmetic, with room for one move."""


def largest_hidden_angle(
    weight: Float[Tensor, "spins hidden"], hidden_bias: Float[Tensor, " hidden"]
) -> float:
    """The largest |θ_j| that any spins can give: max_j |b_j| + Σ_i |W_ij|."""
    if weight.numel() == 0:
        return float(hidden_bias.abs().amax()) if hidden_bias.numel() else 0.0
    return float((hidden_bias.detach().abs() + weight.detach().abs().sum(0)).amax())


def single_flips(n_spins: int, device: torch.device | str = "cpu") -> Int[Tensor, "spins 2"]:
    """The moves that flip one spin: rows (i, -1)."""
    sites = torch.arange(n_spins, dtype=torch.int32, device=device)
    return torch.stack((sites, torch.full_like(sites, -1)), 1)


def rbm_metropolis(
    weight: Float[Tensor, "spins hidden"],
    hidden_bias: Float[Tensor, " hidden"],
    visible_bias: Float[Tensor, " spins"],
    x: Int8[Tensor, "chains spins"],
    moves: Int[Tensor, "moves 2"],
    *,
    n_steps: int,
    seed: int,
    step: int = 0,
    chain: Int64[Tensor, " chains"] | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[Int8[Tensor, "chains spins"], Float64[Tensor, " chains"], Int64[Tensor, " chains"]]:
    """``n_steps`` proposals in every chain.

    The parameters are rounded to ``dtype``; angles and ratios are kept in float32, in float64 where ``dtype``
    is float64 or an angle can pass 40. θ is computed anew every few sweeps. Chains do not know of each other,
    and the random numbers are those of ``metropolis_draws``. Not differentiable.

    Args:
        weight: W; float32 or float64.
        hidden_bias: b.
        visible_bias: a.
        x: spins ±1.
        moves: rows (i, -1) flip spin i; rows (i, k) exchange spins i and k where they differ, and do nothing
            where they are equal. One row is drawn uniformly at each step.
        n_steps: proposals of each chain.
        seed: 0 <= seed < 2**63.
        step: number of the first proposal since the beginning, below 2**48.
        chain: numbers of the chains; 0, 1, 2, ... by default.
        dtype: bfloat16, float16, float32 or float64: the precision of the parameters.

    Returns:
        The spins; log ψ of the rounded parameters there, in float64; how many moves were made.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes or devices that do not fit together, moves outside the spins, numbers out of range,
            an angle that can pass 340.
    """
    require_restricted_boltzmann_machine(weight, hidden_bias, visible_bias)
    require_spins(x, weight.shape[0], weight.device)
    require_stream(seed, step, 0)
    if dtype not in DTYPES:
        raise TypeError(f"dtype={dtype}; expected one of {', '.join(map(str, DTYPES))}")
    if n_steps < 0:
        raise ValueError(f"n_steps={n_steps} is negative")
    moves = _checked_moves(moves, weight.shape[0], weight.device)
    chain = chain_numbers(chain, x.shape[0], weight.device)
    rounded = [t.detach().to(dtype) for t in (weight, hidden_bias, visible_bias)]
    reach = largest_hidden_angle(rounded[0].double(), rounded[1].double())
    if not reach < REACH[torch.float64]:
        raise ValueError(
            f"an angle of the hidden units can reach {reach:.3g}; above {REACH[torch.float64]:g} its "
            "exponential is no double: scale the weights down, or evaluate the network densely"
        )
    wide = dtype == torch.float64 or reach >= REACH[torch.float32]
    arithmetic = torch.float64 if wide else torch.float32
    w, b, a = (t.to(arithmetic).contiguous() for t in rounded)
    return _chains(w, b, a, x.contiguous(), moves, chain, step, n_steps, seed)


def _checked_moves(moves: Tensor, n_spins: int, device: torch.device) -> Tensor:
    if moves.dim() != 2 or moves.shape[1] != 2 or len(moves) == 0:
        raise ValueError(f"moves has shape {list(moves.shape)}; expected [moves, 2] with a move at least")
    moves = moves.to(device, torch.int32).contiguous()
    first, second = moves.unbind(1)
    if bool(
        ((first < 0) | (first >= n_spins) | (second < -1) | (second >= n_spins) | (first == second)).any()
    ):
        raise ValueError(f"moves must name two different spins below {n_spins}, or a spin and -1")
    return moves


def _fake(
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
    return torch.empty_like(x), chain.new_empty(len(x), dtype=torch.float64), torch.empty_like(chain)


_chains = raw_op(
    "rbm_metropolis",
    reference.chains,
    fake=_fake,
    cpu=f"{_HERE}.chains_cpu:rbm_chains",
    cuda=f"{_HERE}.rbm_metropolis.triton:chains",
)
