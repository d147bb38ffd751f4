"""Swendsen-Wang sweeps of many Ising or Potts lattices at once.

R. H. Swendsen and J.-S. Wang, Nonuniversal critical dynamics in Monte Carlo simulations, Phys. Rev. Lett. 58
(1987) 86-88; the ghost spin for a field is that of Fortuin and Kasteleyn.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Int8, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.lattices.swendsen_wang import reference
from icml_kernels.molecules.checks import require_shape

_HERE = "icml_kernels.lattices.swendsen_wang"
MAX_STATES = 127


class Swept(NamedTuple):
    """The lattices after the sweeps, and for each the sums over its sweeps of two cluster counts.

    Attributes:
        spins: new states.
        clusters: how many clusters there were.
        squared_sizes: sum over clusters of size²; with Ising spins (sum of spins)² has this mean.
    """

    spins: Int8[Tensor, "chains rows cols"]
    clusters: Int64[Tensor, " chains"]
    squared_sizes: Int64[Tensor, " chains"]


def swendsen_wang(
    spins: Int8[Tensor, "chains rows cols"],
    p: float,
    q: int,
    n_sweeps: int,
    seed: int,
    *,
    ghost: float = 0.0,
    ghost_state: int = 1,
) -> Swept:
    """Bind equal neighbours on the torus with probability p, and give each cluster one of q states at random.

    For the Ising model with spins ±1 (q = 2) p = 1 - exp(-2 beta J); for the Potts model p = 1 - exp(-beta
    J). On a side of length 2 both bonds between two neighbours count. A field on one state is a ghost site
    in that
    state: sites in it are bound to it with probability ``ghost`` (1 - exp(-2 beta h) for Ising, h > 0 along
    state 1), and what is bound to it stays. Random words are functions of seed, chain, sweep and site, so
    that all routes give the same states.

    Args:
        spins: states 0 to q - 1.
        p: probability of a bond between equal neighbours.
        q: number of states.
        n_sweeps: how often all clusters are drawn anew.
        seed: any integer.
        ghost: probability of a bond to the ghost site.
        ghost_state: the ghost's state.

    Raises:
        TypeError: spins that are not int8.
        ValueError: shapes, states, probabilities or counts out of range.

    Example:
        >>> swendsen_wang(torch.zeros(1, 4, 4, dtype=torch.int8), 1.0, 2, 1, seed=0).clusters
        tensor([1])
    """
    if spins.dtype != torch.int8:
        raise TypeError(f"spins has dtype {spins.dtype}; expected torch.int8")
    require_shape("spins", spins, (None, None, None))
    if spins.shape[1] < 2 or spins.shape[2] < 2:
        raise ValueError(
            f"a lattice of {spins.shape[1]} x {spins.shape[2]} has no torus; give sides of 2 or more"
        )
    if spins.shape[1] * spins.shape[2] >= 2**31:
        raise ValueError(f"{spins.shape[1]} x {spins.shape[2]} sites are too many; give fewer than 2^31")
    if not 2 <= q <= MAX_STATES:
        raise ValueError(f"q={q} must lie in 2 to {MAX_STATES}")
    for name, value in (("p", p), ("ghost", ghost)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value} is no probability; give 0 to 1")
    if n_sweeps < 0:
        raise ValueError(f"n_sweeps={n_sweeps} must not be negative")
    if not 0 <= ghost_state < q:
        raise ValueError(f"ghost_state={ghost_state} must lie in 0 to {q - 1}")
    if spins.numel() and not 0 <= int(spins.min()) <= int(spins.max()) < q:
        raise ValueError(f"spins has states {int(spins.min())} to {int(spins.max())}; expected 0 to {q - 1}")
    key = (int(seed) + 2**63) % 2**64 - 2**63
    return Swept(*_sweeps(spins, float(p), int(q), int(n_sweeps), key, float(ghost), int(ghost_state)))


def _fake(spins: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    counts = [spins.new_empty((spins.shape[0],), dtype=torch.int64) for _ in range(2)]
    return torch.empty_like(spins, memory_format=torch.contiguous_format), counts[0], counts[1]


_sweeps = raw_op(
    "swendsen_wang",
    reference.sweeps,
    fake=_fake,
    cpu=f"{_HERE}.cpu:sweeps",
    cuda=f"{_HERE}.triton:sweeps",
)
