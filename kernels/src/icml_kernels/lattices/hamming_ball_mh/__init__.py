"""Metropolis-Hastings by balls of Hamming's distance on an energy of sparse terms, many chains at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.lattices.hamming_ball_mh import reference
from icml_kernels.molecules.checks import require_shape

_HERE = "icml_kernels.lattices.hamming_ball_mh"


class SparseTerms(NamedTuple):
    """log rho(x) = sum_t c_t prod_{i in t} value(x_i), or sum_t c_t [all x_i in t are equal].

    Attributes:
        term_ptr, term_sites: the sites of each term, as a ragged list.
        coefficients: c_t.
        site_ptr, site_terms: the terms of each site, as a ragged list.
        values: what a symbol counts for in a product: 0 and 1, or -1 and 1.
        equal: whether a term asks for equal symbols instead.
    """

    term_ptr: Int64[Tensor, " terms_1"]
    term_sites: Int64[Tensor, " entries"]
    coefficients: Float64[Tensor, " terms"]
    site_ptr: Int64[Tensor, " sites_1"]
    site_terms: Int64[Tensor, " entries"]
    values: Float64[Tensor, " symbols"]
    equal: bool

    def to(self, device: str | torch.device) -> SparseTerms:
        """The same on another device."""
        return SparseTerms(*(t.to(device) for t in self[:6]), self.equal)

    def log_density(self, x: Int64[Tensor, "n sites"]) -> Float64[Tensor, " n"]:
        """The sum over all terms, term by term (slow, exact): what the chains sample at beta = 1."""
        return reference.log_density(x, *self[:3], self.values, self.equal)


def sparse_terms(
    sites: int,
    terms: Sequence[Sequence[int]],
    coefficients: Float64[Tensor, " terms"],
    values: Float64[Tensor, " symbols"],
    *,
    equal: bool = False,
) -> SparseTerms:
    """Both ragged lists of an energy.

    Args:
        sites: how many there are.
        terms: the sites of each term, none of them twice.
        coefficients: one a term.
        values: one a symbol.
        equal: a term counts where its symbols are equal, instead of their product.

    Raises:
        ValueError: sites out of range or twice in a term, an empty term, lengths that do not match, numbers
            that are not finite, fewer than two symbols.
    """
    if len(terms) != len(coefficients):
        raise ValueError(f"{len(terms)} terms but {len(coefficients)} coefficients; there must be as many")
    if len(values) < 2:
        raise ValueError(f"{len(values)} values; there must be two symbols or more")
    if not (torch.isfinite(coefficients).all() and torch.isfinite(values).all()):
        raise ValueError("a coefficient or value is not finite")
    least = 2 if equal else 1
    for term in terms:
        if len(term) < least or len(set(term)) != len(term) or min(term) < 0 or max(term) >= sites:
            raise ValueError(
                f"term {list(term)} must have {least} or more different sites from 0 to {sites - 1}"
            )
    counts = torch.tensor([len(term) for term in terms], dtype=torch.int64)
    flat = torch.tensor([site for term in terms for site in term], dtype=torch.int64)
    owner = torch.repeat_interleave(torch.arange(len(terms)), counts)
    by_site = torch.argsort(flat, stable=True)
    degree = torch.bincount(flat, minlength=sites)
    zero = torch.zeros(1, dtype=torch.int64)
    return SparseTerms(
        torch.cat([zero, counts.cumsum(0)]),
        flat,
        coefficients.double(),
        torch.cat([zero, degree.cumsum(0)]),
        owner[by_site],
        values.double(),
        bool(equal),
    )


class Walked(NamedTuple):
    """Chains after their steps.

    Attributes:
        x: states.
        gained: log density now minus log density before, at beta = 1.
        moved: accepted steps that changed the state.
    """

    x: Int64[Tensor, "chains sites"]
    gained: Float64[Tensor, " chains"]
    moved: Int64[Tensor, " chains"]


def hamming_ball_mh(
    x: Int64[Tensor, "chains sites"],
    beta: Float64[Tensor, " chains"],
    terms: SparseTerms,
    radius: int,
    n_steps: int,
    seed: int,
) -> Walked:
    """``radius`` changes of random sites, one after the other, then accepted with min(1, exp(beta
    difference)).

    Sites are drawn with replacement, each change goes to one of the other symbols at random: the proposal is
    symmetric, so that each chain has the stationary law rho^beta. A difference costs the terms of the changed
    sites, whatever the size of the system. Random words are functions of seed, chain and step, so that all
    routes take the same steps.

    Args:
        x: states, left as they are.
        beta: inverse temperature of each chain, relative to the energy's own.
        terms: the energy, on the device of x.
        radius: changes a step.
        n_steps: steps.
        seed: any integer.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes, symbols or counts out of range, devices that differ.

    Example:
        >>> field = sparse_terms(3, [[0], [1], [2]], torch.full((3,), 50.0), torch.tensor([0.0, 1.0]))
        >>> ones = torch.ones(1, dtype=torch.float64)
        >>> hamming_ball_mh(torch.zeros(1, 3, dtype=torch.int64), ones, field, 1, 200, seed=0).x
        tensor([[1, 1, 1]])
    """
    if x.dtype != torch.int64:
        raise TypeError(f"x has dtype {x.dtype}; expected torch.int64")
    sites, symbols = terms.site_ptr.shape[0] - 1, terms.values.shape[0]
    require_shape("x", x, (None, sites))
    if beta.dtype != torch.float64:
        raise TypeError(f"beta has dtype {beta.dtype}; expected torch.float64")
    require_shape("beta", beta, (x.shape[0],))
    if beta.numel() and not bool((torch.isfinite(beta) & (beta >= 0)).all()):
        raise ValueError("beta must be finite and not negative")
    for name, given in (("beta", beta), ("terms", terms.values)):
        if given.device != x.device:
            raise ValueError(f"{name} lies on {given.device} but x on {x.device}; move one")
    if radius < 1 or n_steps < 0:
        raise ValueError(f"radius={radius} must be positive and n_steps={n_steps} not negative")
    if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < symbols:
        raise ValueError(f"x has symbols {int(x.min())} to {int(x.max())}; expected 0 to {symbols - 1}")
    key = (int(seed) + 2**63) % 2**64 - 2**63
    return Walked(*_chains(x, beta, *terms[:6], terms.equal, int(radius), int(n_steps), key))


def _fake(x: Tensor, *rest: object) -> tuple[Tensor, Tensor, Tensor]:
    n = (x.shape[0],)
    state = torch.empty_like(x, memory_format=torch.contiguous_format)
    return state, x.new_empty(n, dtype=torch.float64), x.new_empty(n)


_chains = raw_op(
    "hamming_ball_mh",
    reference.chains,
    fake=_fake,
    cpu=f"{_HERE}.cpu:chains",
    cuda=f"{_HERE}.triton:chains",
)
