"""Kernels of Markov chains over discrete states: each keeps rho^beta, and counts the moves that changed a
state.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from icml_kernels import hamming_ball_mh, swendsen_wang
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers.checks import Energy, draw_seed, evaluate


class Moved(NamedTuple):
    """Chains after some steps, with their log density at beta = 1 and how many moves changed them."""

    x: Int64[Tensor, "n D"]
    log_density: Float64[Tensor, " n"]
    moved: Int64[Tensor, " n"]


class Kernel:
    """A transition that leaves rho^beta unchanged, with a beta for each chain; at beta = 0 all states that it
    reaches are alike, impossible ones too.
    """

    def log_reached(self, energy: Energy, x: Int64[Tensor, "n D"]) -> float | None:
        """log of how many states are reached from ``x``; None where that differs from chain to chain."""
        return energy.D * math.log(energy.V)

    def check(self, energy: Energy, x: Int64[Tensor, "n D"]) -> None:
        """Refuse an energy or states that the kernel cannot work on (ValueError)."""

    def advance(
        self,
        energy: Energy,
        x: Int64[Tensor, "n D"],
        log_density: Float64[Tensor, " n"],
        beta: Float64[Tensor, " n"],
        n_steps: int,
        generator: torch.Generator,
    ) -> Moved:
        """Take steps; inputs are left as they are."""
        moved = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for _ in range(n_steps):
            proposed = self.propose(energy, x, generator)
            other = evaluate(energy, proposed)
            accept = self._accepted(beta, log_density, other, generator)
            moved += accept & (proposed != x).any(1)
            x = torch.where(accept[:, None], proposed, x)
            log_density = torch.where(accept, other, log_density)
        return Moved(x, log_density, moved)

    def propose(self, energy: Energy, x: Int64[Tensor, "n D"], generator: torch.Generator) -> Tensor:
        """A symmetric proposal."""
        raise TypeError(f"{type(self).__name__} must define propose or advance")

    @staticmethod
    def _accepted(beta: Tensor, own: Tensor, other: Tensor, generator: torch.Generator) -> Tensor:
        # From an impossible state every possible one is taken; between two impossible ones the chain moves
        # freely.
        both = torch.isinf(own) & torch.isinf(other)
        ratio = torch.where(both, 0.0, beta * (other - torch.where(both, other, own)))
        ratio = torch.where(torch.isinf(own) & ~torch.isinf(other), torch.inf, ratio)
        ratio = torch.where(torch.isinf(other) & ~torch.isinf(own), -torch.inf, ratio)
        ratio = torch.where(beta == 0, 0.0, ratio)
        u = torch.rand(own.shape, generator=generator, device=own.device, dtype=torch.float64)
        return u < torch.exp(ratio.clamp(max=0.0))


@dataclass(frozen=True)
class HammingBall(Kernel):
    """``radius`` changes of random sites to other symbols, then accepted or not.

    An energy of sparse terms costs its changed sites alone. radius 1 is the single-site Metropolis chain.
    """

    radius: int = 5

    def __post_init__(self) -> None:
        if self.radius < 1:
            raise ValueError(f"radius={self.radius} must be positive")

    def advance(self, energy, x, log_density, beta, n_steps, generator) -> Moved:  # type: ignore[no-untyped-def]
        """See :meth:`Kernel.advance`."""
        terms = getattr(energy, "terms", None)
        if terms is None:
            return super().advance(energy, x, log_density, beta, n_steps, generator)
        seed = draw_seed(generator)
        found = hamming_ball_mh(x, beta, terms.to(x.device), self.radius, n_steps, seed)
        return Moved(found.x, log_density + found.gained, found.moved)

    def propose(self, energy, x, generator) -> Tensor:  # type: ignore[no-untyped-def]
        """Changes one after the other, sites with replacement."""
        x = x.clone()
        rows = torch.arange(len(x), device=x.device)
        for _ in range(self.radius):
            site = torch.randint(0, energy.D, (len(x),), generator=generator, device=x.device)
            shift = torch.randint(1, energy.V, (len(x),), generator=generator, device=x.device)
            x[rows, site] = (x[rows, site] + shift) % energy.V
        return x


@dataclass(frozen=True)
class Categorical(Kernel):
    """Each site changes to another symbol with probability ``rate``."""

    rate: float = 0.2

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate={self.rate} must lie in (0, 1]")

    def propose(self, energy, x, generator) -> Tensor:  # type: ignore[no-untyped-def]
        """Independent changes."""
        change = torch.rand(x.shape, generator=generator, device=x.device) < self.rate
        shift = torch.randint(1, energy.V, x.shape, generator=generator, device=x.device)
        return torch.where(change, (x + shift) % energy.V, x)


@dataclass(frozen=True)
class Gibbs(Kernel):
    """One random site a step, drawn anew from its conditional."""

    def advance(self, energy, x, log_density, beta, n_steps, generator) -> Moved:  # type: ignore[no-untyped-def]
        """See :meth:`Kernel.advance`."""
        n = len(x)
        rows = torch.arange(n, device=x.device)
        moved = torch.zeros(n, dtype=torch.int64, device=x.device)
        for _ in range(n_steps):
            site = torch.randint(0, energy.D, (n,), generator=generator, device=x.device)
            every = x[:, None].repeat(1, energy.V, 1)
            every[rows, :, site] = torch.arange(energy.V, device=x.device)
            values = evaluate(energy, every.view(-1, energy.D)).view(n, energy.V)
            stuck = torch.isinf(values).all(1, keepdim=True)
            level = stuck | (beta == 0)[:, None]
            law = torch.where(level, 0.0, beta[:, None] * values).softmax(1)
            symbol = torch.multinomial(law, 1, generator=generator)[:, 0]
            moved += symbol != x[rows, site]
            x = every[rows, symbol]
            log_density = values[rows, symbol]
        return Moved(x, log_density, moved)


@dataclass(frozen=True)
class SwendsenWang(Kernel):
    """Cluster updates of ferromagnetic Ising and Potts lattices; ``ghost_site`` allows a field."""

    ghost_site: bool = False

    def check(self, energy: Energy, x: Tensor) -> None:
        """Lattices with J > 0 and without a field (or with a ghost site)."""
        if not hasattr(energy, "bonds"):
            raise ValueError(
                f"Swendsen-Wang works on Ising2D and Potts2D, not on {type(energy).__name__}; take "
                "hamming_ball"
            )
        energy.bonds(1.0, self.ghost_site)

    def advance(self, energy, x, log_density, beta, n_steps, generator) -> Moved:  # type: ignore[no-untyped-def]
        """See :meth:`Kernel.advance`; a step is a sweep."""
        self.check(energy, x)
        result = x.clone()
        moved = torch.zeros(len(x), dtype=torch.int64, device=x.device)
        for value in beta.unique().tolist():
            rows = beta == value
            bonds = energy.bonds(value, self.ghost_site)
            spins = x[rows].view(-1, energy.L, energy.L).to(torch.int8)
            options = {"ghost": bonds.ghost, "ghost_state": bonds.ghost_state}
            # Sweep by sweep, since a sweep that leaves the state as it was is no move.
            for _ in range(n_steps):
                found = swendsen_wang(spins, bonds.p, bonds.q, 1, draw_seed(generator), **options).spins
                moved[rows] += (found != spins).flatten(1).any(1).long()
                spins = found
            result[rows] = spins.flatten(1).long()
        return Moved(result, evaluate(energy, result), moved)


@dataclass(frozen=True)
class Swap(Kernel):
    """Two sites of unequal symbols exchange them: the composition stays, and no move is empty."""

    def log_reached(self, energy: Energy, x: Tensor) -> float | None:
        """log of the multinomial coefficient of the composition, where all chains have the same."""
        counts = torch.nn.functional.one_hot(x, energy.V).sum(1).double()
        if not len(x) or not bool((counts == counts[0]).all()):
            return None
        return float(torch.lgamma(counts.new_tensor(energy.D + 1.0)) - torch.lgamma(counts[0] + 1).sum())

    def check(self, energy: Energy, x: Tensor) -> None:
        """Every state has two unequal symbols."""
        level = (x == x[:, :1]).all(1)
        if bool(level.any()):
            row = int(level.nonzero()[0])
            raise ValueError(
                f"state {row} has equal symbols everywhere, so that swap has no pair; give init="
            )

    def propose(self, energy, x, generator) -> Tensor:  # type: ignore[no-untyped-def]
        """An unequal pair, all alike: a site by how many differ from it, then one of these."""
        counts = torch.zeros(len(x), energy.V, dtype=torch.float64, device=x.device)
        counts.scatter_add_(1, x, torch.ones_like(x, dtype=torch.float64))
        first = torch.multinomial(energy.D - counts.gather(1, x), 1, generator=generator)
        differs = (x != x.gather(1, first)).double()
        second = torch.multinomial(differs, 1, generator=generator)
        pair = torch.cat([first, second], 1)
        return x.scatter(1, pair, x.gather(1, pair.flip(1)))


@dataclass(frozen=True)
class OneHot(Kernel):
    """In each group of sites exactly one is 1: the 1 of a random group moves to another site of it."""

    groups: tuple[tuple[int, ...], ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        sites = [i for group in self.groups for i in group]
        if not self.groups or any(len(group) < 2 for group in self.groups) or len(set(sites)) != len(sites):
            raise ValueError(f"groups={self.groups} must be disjoint and of two sites or more")

    def check(self, energy: Energy, x: Tensor) -> None:
        """One 1 in each group."""
        if energy.V != 2:
            raise ValueError(f"one_hot works on two symbols, and V={energy.V}")
        for group in self.groups:
            if max(group) >= energy.D or min(group) < 0:
                raise ValueError(f"group {group} has sites outside 0..{energy.D - 1}")
            wrong = x[:, list(group)].sum(1) != 1
            if bool(wrong.any()):
                row = int(wrong.nonzero()[0])
                raise ValueError(
                    f"state {row} has {int(x[row, list(group)].sum())} ones in group {group}; give init="
                )

    def log_reached(self, energy: Energy, x: Tensor) -> float | None:
        """sum of the logs of the groups' sizes, where the sites in no group are the same in all chains."""
        fixed = torch.ones(energy.D, dtype=torch.bool, device=x.device)
        fixed[[i for group in self.groups for i in group]] = False
        if not len(x) or not bool((x[:, fixed] == x[0, fixed]).all()):
            return None
        return sum(math.log(len(group)) for group in self.groups)

    def propose(self, energy, x, generator) -> Tensor:  # type: ignore[no-untyped-def]
        """A group, then another site of it."""
        device = x.device
        widest = max(len(group) for group in self.groups)
        padded = torch.tensor([[*g, *[g[0]] * (widest - len(g))] for g in self.groups], device=device)
        lengths = torch.tensor([len(g) for g in self.groups], device=device)
        chosen = torch.randint(0, len(self.groups), (len(x),), generator=generator, device=device)
        sites, length = padded[chosen], lengths[chosen]
        inside = torch.arange(widest, device=device) < length[:, None]
        at = (x.gather(1, sites) * inside).argmax(1)
        u = torch.rand(len(x), generator=generator, device=device, dtype=torch.float64)
        to = (at + 1 + (u * (length - 1)).long()) % length
        places = torch.arange(len(x), device=device)
        x = x.clone()
        x[places, sites[places, at]] = 0
        x[places, sites[places, to]] = 1
        return x


KERNELS: dict[str, Any] = {
    "hamming_ball": HammingBall,
    "categorical": Categorical,
    "swendsen_wang": SwendsenWang,
    "single_site_mh": lambda: HammingBall(1),
    "gibbs": Gibbs,
    "swap": Swap,
}


def kernel_of(kernel: str | Kernel) -> Kernel:
    """A kernel by name, or itself.

    Raises:
        ValueError: an unknown name.
        TypeError: something else.
    """
    if isinstance(kernel, str):
        if kernel == "one_hot":
            raise ValueError("one_hot needs its groups of sites; pass moves.OneHot(((0, 1, 2), (3, 4)))")
        if kernel not in KERNELS:
            raise ValueError(f"unknown kernel {kernel!r}; there are {', '.join(KERNELS)}, and OneHot(groups)")
        return KERNELS[kernel]()
    if not isinstance(kernel, Kernel):
        raise TypeError(f"kernel is a {type(kernel).__name__}; expected a name or a Kernel")
    return kernel
