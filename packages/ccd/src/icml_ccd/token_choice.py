"""Which token: the most probable one, or one drawn at a temperature and from a nucleus.

Every position has one uniform number, drawn from its row's own generator before decoding begins, so that a
row's tokens depend neither on other rows nor on the order in which positions are filled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int64
from torch import Tensor


def check_temperature(temperature: float, top_p: float | None) -> None:
    """Refuse what is no temperature or no nucleus.

    Raises:
        ValueError: says which.
    """
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature={temperature} is no number from 0 on")
    if top_p is not None and not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} lies outside (0, 1]; None takes all tokens")


def row_generators(generator: torch.Generator | int | None, rows: int) -> Sequence[torch.Generator]:
    """One generator a row, seeded from the given one; None stands for the seed 0."""
    source = generator
    if not isinstance(source, torch.Generator):
        source = torch.Generator().manual_seed(0 if generator is None else int(generator))
    seeds = torch.randint(2**62, (rows,), generator=source, device=source.device).tolist()
    return [torch.Generator().manual_seed(seed) for seed in seeds]


def uniforms(
    generators: Sequence[torch.Generator], length: int, device: torch.device
) -> tuple[Float[Tensor, "B N"], Float[Tensor, "B N"]]:
    """Two uniform numbers a position: for its token, and for rules that draw an order."""
    drawn = torch.stack([torch.rand(2, length, generator=g, dtype=torch.float64) for g in generators])
    drawn = drawn.to(device) if device.type != "mps" else drawn.float().to(device)
    return drawn[:, 0], drawn[:, 1]


def sharpened(logp: Float[Tensor, "k X"], temperature: float, top_p: float | None) -> Float[Tensor, "k X"]:
    """Probabilities p^(1/temperature), cut to the smallest set of tokens that holds ``top_p``, normalised."""
    p = torch.softmax(logp.double() / temperature, dim=1)
    if top_p is None or top_p == 1:
        return p
    ordered, where = p.sort(dim=1, descending=True, stable=True)
    before = ordered.cumsum(1) - ordered
    kept = torch.zeros_like(p).scatter_(1, where, torch.where(before < top_p, ordered, 0))
    return kept / kept.sum(1, keepdim=True)


def drawn_tokens(
    logp: Float[Tensor, "k X"], uniform: Float[Tensor, " k"], temperature: float, top_p: float | None
) -> Int64[Tensor, " k"]:
    """The token at which the distribution function passes the uniform number."""
    p = sharpened(logp, temperature, top_p)
    cumulated = p.cumsum(1)
    target = uniform.to(p.dtype)[:, None] * cumulated[:, -1:]
    token = (cumulated <= target).sum(1).clamp(max=p.shape[1] - 1)
    # Rounding may end on a token without probability: the last one with any is meant then.
    last = p.shape[1] - 1 - (p > 0).flip(1).long().argmax(1)
    return torch.minimum(token, last)
