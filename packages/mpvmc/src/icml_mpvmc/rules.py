"""What a proposal is: one or several flips, exchanges within a sector, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from icml_kernels import metropolis_draws, single_flips
from jaxtyping import Float, Int, Int8
from torch import Tensor

from icml_mpvmc.hamiltonian import Sector, in_sectors, pairs_within

PROBES = 1000
"""Proposals by which a function is tried before it is used."""

CustomRule = Callable[[Tensor, torch.Generator], Tensor]


class Rule:
    """Symmetric proposals from a table of moves, or from a function.

    Args:
        rule: ``"flip"``, ``"flip:k"`` (k spins, drawn with replacement), ``"exchange"``, ``"exchange:k"`` (k
            exchanges one after the other), or a function ``(x, generator) -> x'`` that proposes x' from x as
            often as x from x'.
        n_spins: how many spins.
        sectors: sums that are conserved; flips are refused where there are any.
        pairs: pairs [P, 2] for exchanges; all pairs within the sectors by default.
        device: where the chains lie.

    Raises:
        ValueError: an unknown rule, flips where a sum is conserved, an exchange without pairs, or a function
            that leaves the sectors, the spins ±1 or the shape in one of 1000 proposals.
    """

    def __init__(
        self,
        rule: str | CustomRule,
        n_spins: int,
        sectors: Sequence[Sector] = (),
        pairs: np.ndarray | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.n_spins, self.sectors = n_spins, tuple(sectors)
        self.function: CustomRule | None = None
        self.repeats = 1
        self.moves: Tensor = single_flips(n_spins, device)
        if callable(rule):
            self.function = rule
            return
        kind, _, count = rule.partition(":")
        if kind not in ("flip", "exchange") or (count and not (count.isdigit() and int(count) > 0)):
            raise ValueError(
                f"rule={rule!r}; expected 'flip', 'flip:k', 'exchange', 'exchange:k' or a function"
            )
        self.repeats = int(count or 1)
        if kind == "flip":
            if self.sectors:
                raise ValueError(
                    f"rule={rule!r} leaves the sector (total_sz is fixed) without a word; use rule='exchange'"
                )
            return
        if pairs is None or len(pairs) == 0:
            sectors = self.sectors or (Sector(tuple(range(n_spins)), -(n_spins % 2)),)
            pairs = pairs_within(sectors)
        if len(pairs) == 0:
            raise ValueError("rule='exchange' has no pairs: no sector has two spins")
        self.moves = torch.as_tensor(np.asarray(pairs), dtype=torch.int32, device=device)

    @property
    def from_table(self) -> bool:
        """Whether one row of the table is a whole proposal, as compiled chains need it."""
        return self.function is None and self.repeats == 1

    def draws(
        self, chain: Tensor, seed: int, step: int, n_steps: int
    ) -> tuple[Int[Tensor, "repeats steps chains"], Float[Tensor, "steps chains"]]:
        """Rows of the table for each step, and the logarithm of the uniform that decides.

        The k-th of several moves has a stream of its own.
        """
        options = {"seed": seed, "step": step, "n_steps": n_steps, "n_moves": len(self.moves)}
        first, log_uniform = metropolis_draws(chain, **options)
        others = [metropolis_draws(chain, **options, stream=16 + k)[0] for k in range(1, self.repeats)]
        return torch.stack([first, *others]), log_uniform

    def propose(
        self, x: Int8[Tensor, "chains spins"], drawn: Int[Tensor, "repeats chains"], seed: int, step: int
    ) -> Int8[Tensor, "chains spins"]:
        """x' of every chain."""
        if self.function is not None:
            generator = torch.Generator(device=x.device)
            generator.manual_seed((seed * 0x9E3779B1 + step * 0x85EBCA77) % 2**63)
            return self.function(x, generator)
        new = x.clone()
        rows = torch.arange(len(x), device=x.device)
        for move in self.moves[drawn.to(self.moves.device)].long():
            first, second = move.unbind(1)
            other = second.clamp(min=0)
            takes = (second < 0) | (new[rows, first] != new[rows, other])
            sign = torch.where(takes, -1, 1).to(x.dtype)
            new[rows, first] *= sign
            new[rows, other] *= torch.where(second < 0, torch.ones_like(sign), sign)
        return new

    def probe(self, start: Int8[Tensor, "chains spins"], seed: int) -> None:
        """Try a function on 1000 proposals.

        Raises:
            ValueError: where one is not a state of the sectors.
        """
        if self.function is None:
            return
        x = start[torch.arange(PROBES, device=start.device) % len(start)]
        nothing = torch.zeros(1, PROBES, dtype=torch.int64, device=x.device)
        new = self.propose(x.clone(), nothing, seed, 0)
        if not isinstance(new, Tensor) or new.shape != x.shape or new.dtype != x.dtype:
            raise ValueError(f"the rule gives {getattr(new, 'shape', new)!r} for spins int8 {list(x.shape)}")
        if not bool((new.abs() == 1).all()):
            raise ValueError("the rule proposes spins other than ±1")
        outside = int((~in_sectors(new, self.sectors)).sum())
        if outside:
            raise ValueError(
                f"the rule leaves the sector in {outside} of {PROBES} proposals; a rule must keep total_sz, "
                "as "
                "'exchange' does"
            )


def random_start(
    n_chains: int, n_spins: int, sectors: Sequence[Sector], generator: torch.Generator
) -> Int8[Tensor, "chains spins"]:
    """Independent states, uniform within the sectors."""
    x = (2 * torch.randint(0, 2, (n_chains, n_spins), generator=generator) - 1).to(torch.int8)
    for sector in sectors:
        count = len(sector.sites)
        up = (count + sector.total) // 2
        order = torch.rand(n_chains, count, generator=generator).argsort(1)
        x[:, list(sector.sites)] = torch.where(order < up, 1, -1).to(torch.int8)
    return x
