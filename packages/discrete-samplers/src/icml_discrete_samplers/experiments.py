"""The small trainings that claims and benchmarks share: one budget of updates for all methods."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers.exact import ExactLaw, sampler_law, states_of
from icml_discrete_samplers.metrics import total_variation
from icml_discrete_samplers.off_policy import OffPolicyOptions, OffPolicyTrainer
from icml_discrete_samplers.sampler import MaskedSampler
from icml_discrete_samplers.targets import Target

ON_POLICY = {"buffer": None, "mcmc": None}
BUFFER = {"buffer": "iw", "mcmc": None}
# Updates between two explorations of a run of 1000: ten, where the paper's 20,000 have forty, 500 apart.
EVERY = 100


@dataclass(frozen=True)
class Modes:
    """A sampler beside an enumerated target of several modes.

    Attributes:
        smallest: least mass of a mode; the target has about 1 / modes each.
        covered: modes of more than 0.03.
        tv: exact total variation.
        elbo: mean log_rnd of its own paths.
    """

    smallest: float
    covered: int
    tv: float
    elbo: float


def train(
    target: Target, seed: int, steps: int, hidden: int = 256, layers: int = 2, **options: Any
) -> MaskedSampler:
    """A sampler of a target's energy, after so many updates; as long as the paper's it explores as seldom."""
    every = EVERY if steps < 10_000 else OffPolicyOptions.mcmc_every
    chosen: dict[str, Any] = {"k": 1, "mcmc_every": every, "steps": steps, "seed": seed} | options
    network = {"hidden": hidden, "layers": layers}
    return OffPolicyTrainer(target.energy, network=network, **chosen).fit()


def mode_masses(target: Target, law: Float64[Tensor, " states"]) -> Float64[Tensor, " modes"]:
    """Probability of the states nearest to each centre."""
    assert target.mixture is not None
    states = states_of(torch.arange(len(law)), target.energy.D, 2)
    owner = target.mixture.nearest(target.energy.decode(states))
    masses = torch.zeros(len(target.mixture.centres), dtype=torch.float64)
    return masses.index_add_(0, owner, law)


def modes(target: Target, law: ExactLaw, sampler: MaskedSampler, seed: int) -> Modes:
    """Masses of modes and total variation, both exact."""
    found = sampler_law(sampler.model)
    masses = mode_masses(target, found)
    elbo = sampler.log_z(2000, seed).elbo
    return Modes(
        float(masses.min()), int((masses > 0.03).sum()), total_variation(found, law.log_prob.exp()), elbo
    )


@dataclass(frozen=True)
class Lattice:
    """A sampler beside exact samples of a lattice: EUBO - ELBO, and |mean magnetisation|."""

    gap: float
    magnetisation: float


def lattice(target: Target, sampler: MaskedSampler, seed: int, n: int = 4000) -> Lattice:
    """Bounds of log Z from true samples, and the magnetisation, which is 0 without a field."""
    bounds = sampler.log_z(n, seed, target.sample(n, seed + 1))
    x = sampler.sample(n, seed=seed + 2)
    return Lattice(bounds.eubo - bounds.elbo, abs(float(target.energy.order_parameter(x).mean())))


def seeds_of(seed: int, count: int) -> list[int]:
    """Seeds of the trainings within one call of a measure."""
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 2**31 - 1, (count,), generator=g).tolist()


def median(values: list[float]) -> float:
    """The middle one, of an odd number."""
    return sorted(values)[len(values) // 2]


def mean(values: list[float]) -> float:
    """The mean."""
    return math.fsum(values) / len(values)


def spread(values: list[float]) -> float:
    """Standard deviation over seeds."""
    middle = mean(values)
    return math.sqrt(math.fsum((v - middle) ** 2 for v in values) / max(1, len(values) - 1))


def pair_law(law: Float64[Tensor, " states"], D: int, V: int) -> Float64[Tensor, "pairs V V"]:
    """Marginal laws of all pairs of sites."""
    grid = law.view(*[V] * D)
    found = []
    for i in range(D):
        for j in range(i + 1, D):
            others = [s for s in range(D) if s not in (i, j)]
            found.append(grid.sum(others) if others else grid)
    return torch.stack(found)


def accuracy(classes: Int64[Tensor, " states"], wanted: list[int], law: Float64[Tensor, " states"]) -> float:
    """Probability that the classifier finds one of the wanted classes."""
    hit = torch.zeros(len(classes), dtype=torch.bool)
    for c in wanted:
        hit |= classes == c
    return float(law[hit].sum())


def coverage(sampler: MaskedSampler, seed: int, n_steps: int = 2000) -> float:
    """The share that the check after training finds, without its warning."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return sampler.coverage(n_steps=n_steps, seed=seed).share
