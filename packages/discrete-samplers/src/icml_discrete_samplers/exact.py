"""Exact answers for small and special systems: enumeration, Kaufman's formula, transfer matrices, exact
samplers' laws.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers.checks import Energy, evaluate
from icml_discrete_samplers.networks import MaskedModel, UniformMLP

LIMIT = 50_000_000  # most states that are enumerated
_CHUNK = 1 << 16


class ExactLaw(NamedTuple):
    """log Z and log-probabilities of all V^D states, site 0 the most significant digit."""

    log_z: float
    log_prob: Float64[Tensor, " states"]
    D: int
    V: int

    def sample(self, n: int, seed: int) -> Int64[Tensor, "n D"]:
        """Independent draws, by inverse cumulated probabilities."""
        g = torch.Generator().manual_seed(seed)
        cumulated = self.log_prob.exp().cumsum(0)
        u = torch.rand(n, generator=g, dtype=torch.float64) * cumulated[-1]
        return states_of(
            torch.searchsorted(cumulated, u, right=True).clamp(max=len(cumulated) - 1), self.D, self.V
        )


def states_of(index: Int64[Tensor, " n"], D: int, V: int) -> Int64[Tensor, "n D"]:
    """The states with these numbers."""
    places = V ** torch.arange(D - 1, -1, -1, dtype=torch.int64)
    return (index[:, None] // places) % V


def index_of(x: Int64[Tensor, "n D"], V: int) -> Int64[Tensor, " n"]:
    """The numbers of these states."""
    places = V ** torch.arange(x.shape[1] - 1, -1, -1, dtype=torch.int64, device=x.device)
    return (x * places).sum(1)


def enumerate_law(energy: Energy, limit: int = LIMIT, device: str | torch.device = "cpu") -> ExactLaw:
    """Every state's probability.

    Args:
        energy: whose.
        limit: most states.
        device: where the energy wants its states; the law lies on the CPU.

    Raises:
        ValueError: more than ``limit`` states.
    """
    count = energy.V**energy.D
    if count > limit:
        raise ValueError(
            f"{energy.V}^{energy.D} = {count} states are more than {limit}; enumeration is too large"
        )
    parts = [
        evaluate(
            energy, states_of(torch.arange(first, min(first + _CHUNK, count)), energy.D, energy.V).to(device)
        ).cpu()
        for first in range(0, count, _CHUNK)
    ]
    log_rho = torch.cat(parts)
    log_z = float(log_rho.logsumexp(0))
    return ExactLaw(log_z, log_rho - log_z, energy.D, energy.V)


def kaufman_log_z(L: int, beta: float, J: float = 1.0) -> float:
    """log Z of the Ising model on the L x L torus without a field.

    B. Kaufman, Crystal statistics II, Phys. Rev. 76 (1949) 1232: with K = beta J and cosh g_l = cosh 2K coth
    2K - cos(pi l / L), g_0 = 2K + log tanh K,
    Z = 1/2 (2 sinh 2K)^(L^2 / 2) [prod 2 cosh(L g_odd / 2) + prod 2 sinh(L g_odd / 2) + prod 2 cosh(L g_even
    / 2) + prod 2 sinh(L g_even / 2)].

    Raises:
        ValueError: K <= 0 or L < 2.
    """
    K = beta * J
    if K <= 0 or L < 2:
        raise ValueError(f"the formula wants beta J > 0 and L >= 2; got {K} and {L}")
    base = math.cosh(2 * K) / math.tanh(2 * K)
    gamma = [math.acosh(max(1.0, base - math.cos(math.pi * l / L))) for l in range(2 * L)]
    gamma[0] = 2 * K + math.log(math.tanh(K))
    logs, signs = [], []
    for parity in (1, 0):
        angles = [L * g / 2 for g in gamma[parity::2]]
        logs.append(sum(_log_2cosh(a) for a in angles))
        signs.append(1.0)
        logs.append(sum(_log_2sinh(abs(a)) for a in angles))
        signs.append(math.prod(math.copysign(1.0, a) for a in angles))
    top = max(logs)
    total = sum(s * math.exp(v - top) for s, v in zip(signs, logs, strict=True))
    return top + math.log(total) - math.log(2) + L * L / 2 * math.log(2 * math.sinh(2 * K))


def _log_2cosh(a: float) -> float:
    return abs(a) + math.log1p(math.exp(-2 * abs(a)))


def _log_2sinh(a: float) -> float:
    return a + math.log1p(-math.exp(-2 * a)) if a > 0 else -math.inf


def transfer_matrix_log_z(L: int, q: int, beta: float, J: float = 1.0) -> float:
    """log Z of the q-state Potts model on the L x L torus: the trace of the L-th power of a matrix of q^L
    rows.

    Raises:
        ValueError: q^L > 10^4.
    """
    count = q**L
    if count > 10_000:
        raise ValueError(f"q^L = {count} rows are more than 10000; the transfer matrix is too large")
    row = states_of(torch.arange(count), L, q)
    within = (row == row.roll(-1, 1)).sum(1).double()
    between = torch.zeros(count, count, dtype=torch.float64)
    for i in range(L):
        between += row[:, None, i] == row[None, :, i]
    matrix = torch.exp(beta * J * (between + 0.5 * within[:, None] + 0.5 * within[None]) - beta * J * 2 * L)
    eigenvalues = torch.linalg.eigvalsh(matrix)
    top = eigenvalues.abs().max()
    return float((eigenvalues / top).pow(L).sum().log() + L * top.log()) + beta * J * 2 * L * L


@torch.no_grad()
def sampler_law(model: MaskedModel, limit: int = 2_000_000) -> Float64[Tensor, " states"]:
    """Exact probabilities of all states under a masked sampler that reveals one site a step.

    Masses flow over the (V + 1)^D partly masked states, level by level: no sampling noise is left.

    Raises:
        ValueError: more than ``limit`` partly masked states.
    """
    D, V = model.D, model.V
    count = (V + 1) ** D
    if count > limit:
        raise ValueError(f"{V + 1}^{D} = {count} partly masked states are more than {limit}")
    state = states_of(torch.arange(count), D, V + 1)
    places = (V + 1) ** torch.arange(D - 1, -1, -1, dtype=torch.int64)
    shown = (state != V).sum(1)
    mass = torch.zeros(count, dtype=torch.float64)
    mass[count - 1] = 1.0
    for level in range(D):
        for index in (shown == level).nonzero()[:, 0].split(_CHUNK):
            here = state[index]
            law = model(here.to(model.device)).exp().cpu().double()
            flow = (mass[index, None, None] / (D - level)) * law * (here == V)[..., None]
            symbols = torch.arange(V) - V
            target = index[:, None, None] + symbols * places[None, :, None]
            hidden = (here == V)[..., None].expand_as(flow)
            mass.index_add_(0, target[hidden], flow[hidden])
    full = (state != V).all(1)
    return mass[full]


@torch.no_grad()
def bridge_kernel(
    model: UniformMLP, steps: int, *, backward: bool = False, limit: int = 4096
) -> Float64[Tensor, "states states"]:
    """P(x_N = y | x_0 = x) of a chain that redraws all sites at each of its steps, exactly.

    Args:
        model: its network.
        steps: N.
        backward: the network runs from the end to the start, at times N / N to 1 / N.
        limit: most states.

    Raises:
        ValueError: more states than ``limit``.
    """
    count = model.V**model.D
    if count > limit:
        raise ValueError(f"{model.V}^{model.D} = {count} states are more than {limit}")
    state = states_of(torch.arange(count), model.D, model.V)
    hot = torch.nn.functional.one_hot(state, model.V).double().flatten(1)
    total = torch.eye(count, dtype=torch.float64)
    for n in range(steps):
        time = (steps - n) / steps if backward else n / steps
        logits = model(state, torch.full((count, 1), time))
        total = total @ (logits.double().log_softmax(-1).flatten(1) @ hot.T).exp()
    return total


def schroedinger_coupling(
    kernel: Float64[Tensor, "S S"],
    p0: Float64[Tensor, " S"],
    p1: Float64[Tensor, " S"],
    iterations: int = 20_000,
    tolerance: float = 1e-10,
) -> Float64[Tensor, "S S"]:
    """diag(a) K diag(b) with the marginals p0 and p1: the static Schrödinger bridge, by Sinkhorn scaling.

    Raises:
        RuntimeError: the marginals are not met within the tolerance.
    """
    b = torch.ones_like(p1)
    for _ in range(iterations):
        a = p0 / (kernel @ b).clamp(min=1e-300)
        b_new = p1 / (kernel.T @ a).clamp(min=1e-300)
        done = float((a * (kernel @ b_new) - p0).abs().sum())
        b = b_new
        if done < tolerance:
            return a[:, None] * kernel * b
    raise RuntimeError(f"Sinkhorn scaling missed the marginal by {done:.2g} after {iterations} iterations")
