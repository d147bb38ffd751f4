"""What a proposal is: one or several flips, exchanges within a sector, or a function of the user's."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from icml_kernels import metropolis_draws, single_flips
from jaxtyping import Float, Int, Int8
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from icml_mpvmc.hamiltonian import Sector, in_sectors, pairs_within

PROBES = 1000
"""Proposals by which a function is tried before it is used."""
PROBE_ROWS = 20
"""Of one call: a function may draw once for all its rows."""
_COUNT_STREAM = 15

CustomRule = Callable[[Tensor, torch.Generator], Tensor | tuple[Tensor, Tensor]]


class Rule:
    """Proposals from a table of moves, which are symmetric, or from a function.

    Args:
        rule: ``"flip"``, ``"exchange"``; ``"flip:k"``, ``"exchange:k"``: from 1 to k of them one after the
            other, drawn with replacement, the number as well (always k would keep the parity of a chain where
            k is even); or a function ``(x, generator) -> x'`` that proposes x' from x as often as x from x'.
            One that does not gives ``(x', log q(x|x') - log q(x'|x))`` with q(x'|x) the probability of x'
            from x.
        n_spins: how many spins.
        sectors: sums that are conserved; flips are refused where there are any.
        pairs: pairs [P, 2] for exchanges; all pairs within the sectors by default. Spins of no sector are
            flipped.
        device: where the chains lie.

    Raises:
        ValueError: an unknown rule, flips where a sum is conserved, exchanges where none is, pairs that do
            not connect the spins of every sector or that join two sectors, or a function that leaves the
            sectors, the spins ±1 or the shape in one of 1000 proposals.
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
        self.name = rule if isinstance(rule, str) else getattr(rule, "__qualname__", type(rule).__name__)
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
        if not self.sectors:
            raise ValueError(
                f"rule={rule!r} keeps the magnetisation that a chain starts with; give total_sz (or "
                "sectors), or use rule='flip'"
            )
        given = pairs is not None and len(pairs) > 0
        chosen = np.asarray(pairs) if given else pairs_within(self.sectors)
        if len(chosen) == 0:
            raise ValueError("rule='exchange' has no pairs: no sector has two spins")
        self._check_pairs(chosen)
        held = {i for sector in self.sectors for i in sector.sites}
        free = [(i, -1) for i in range(n_spins) if i not in held]
        table = np.concatenate([chosen, np.array(free, dtype=np.int64).reshape(-1, 2)])
        self.moves = torch.as_tensor(table, dtype=torch.int32, device=device)

    def _check_pairs(self, pairs: np.ndarray) -> None:
        """Every pair within one sector, and the spins of a sector connected: else chains miss states."""
        owner = np.full(self.n_spins, -1)
        for number, sector in enumerate(self.sectors):
            owner[list(sector.sites)] = number
        wrong = (owner[pairs[:, 0]] != owner[pairs[:, 1]]) | (owner[pairs[:, 0]] < 0)
        if wrong.any():
            i, k = (int(s) for s in pairs[wrong][0])
            raise ValueError(
                f"the pair ({i}, {k}) lies in no sector as a whole; exchanging it would leave it"
            )
        graph = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(self.n_spins,) * 2)
        part = connected_components(graph, directed=False)[1]
        for sector in self.sectors:
            fixed = abs(sector.total) == len(sector.sites)
            if not fixed and len(set(part[list(sector.sites)])) > 1:
                raise ValueError(
                    "the exchange pairs do not connect the spins of a sector, so that chains cannot reach "
                    "all states; give more pairs, or none for all"
                )

    @property
    def from_table(self) -> bool:
        """Whether one row of the table is a whole proposal, as compiled chains need it."""
        return self.function is None and self.repeats == 1

    def draws(
        self, chain: Tensor, seed: int, step: int, n_steps: int
    ) -> tuple[Int[Tensor, "repeats steps chains"], Float[Tensor, "steps chains"]]:
        """Rows of the table for each step, -1 where fewer than k moves are made, and the logarithm of the
        uniform that decides.

        The k-th of several moves has a stream of its own, and their number has one.
        """
        options = {"seed": seed, "step": step, "n_steps": n_steps}
        first, log_uniform = metropolis_draws(chain, **options, n_moves=len(self.moves))
        drawn = [first]
        if self.repeats > 1:
            more = metropolis_draws(chain, **options, n_moves=self.repeats, stream=_COUNT_STREAM)[0]
            for k in range(1, self.repeats):
                move = metropolis_draws(chain, **options, n_moves=len(self.moves), stream=16 + k)[0]
                drawn.append(torch.where(k <= more, move, -1))
        return torch.stack(drawn), log_uniform

    def propose(
        self, x: Int8[Tensor, "chains spins"], drawn: Int[Tensor, "repeats chains"], seed: int, step: int
    ) -> tuple[Int8[Tensor, "chains spins"], Float[Tensor, " chains"] | None]:
        """x' of every chain, and log q(x|x')/q(x'|x) where a function gives it.

        Raises:
            ValueError: what a function gives has another shape or dtype.
        """
        if self.function is not None:
            return self._custom(x, seed, step)
        new = x.clone()
        rows = torch.arange(len(x), device=x.device)
        for number in drawn:
            first, second = self.moves[number.clamp(min=0).to(self.moves.device)].long().unbind(1)
            other = second.clamp(min=0)
            takes = (second < 0) | (new[rows, first] != new[rows, other])
            takes &= number.to(x.device) >= 0
            sign = torch.where(takes, -1, 1).to(x.dtype)
            new[rows, first] *= sign
            new[rows, other] *= torch.where(second < 0, torch.ones_like(sign), sign)
        return new, None

    def _custom(self, x: Tensor, seed: int, step: int) -> tuple[Tensor, Tensor | None]:
        assert self.function is not None
        generator = torch.Generator(device=x.device)
        generator.manual_seed((seed * 0x9E3779B1 + step * 0x85EBCA77) % 2**63)
        found = self.function(x.clone(), generator)  # a clone: a function may flip in place
        new, correction = found if isinstance(found, tuple) else (found, None)
        if not isinstance(new, Tensor) or new.shape != x.shape or new.dtype != x.dtype:
            raise ValueError(f"the rule gives {getattr(new, 'shape', new)!r} for spins int8 {list(x.shape)}")
        if correction is not None and (not isinstance(correction, Tensor) or correction.shape != x.shape[:1]):
            raise ValueError(f"the rule's correction must have one number a chain, [{len(x)}]")
        return new, correction

    def probe(self, start: Int8[Tensor, "chains spins"], seed: int) -> None:
        """Try a function on 1000 proposals, 20 a call.

        Raises:
            ValueError: where one is not a state of the sectors.
        """
        if self.function is None:
            return
        outside = 0
        for step in range(PROBES // PROBE_ROWS):
            rows = torch.arange(PROBE_ROWS, device=start.device) + step * PROBE_ROWS
            x = start[rows % len(start)]
            new, correction = self._custom(x, seed, step)
            if not bool((new.abs() == 1).all()):
                raise ValueError("the rule proposes spins other than ±1")
            if correction is not None and bool(torch.isnan(correction).any()):
                raise ValueError("the rule's correction log q(x|x')/q(x'|x) is NaN")
            outside += int((~in_sectors(new, self.sectors)).sum())
        if outside:
            raise ValueError(
                f"the rule leaves the sector in {outside} of {PROBES} proposals; a rule must keep total_sz, "
                f"as "
                "'exchange' does"
            )
