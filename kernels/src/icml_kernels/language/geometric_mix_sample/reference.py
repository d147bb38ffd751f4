"""One token a row from the geometric mixture of two distributions: the definition."""

from __future__ import annotations

import torch
from torch import Tensor

MODES = ("linear", "sigmoid", "piecewise")
# Normalised entropies between which the piecewise rule rises from 0 to 1.
RISE = (0.3, 0.7)


def forward(
    logp: Tensor,
    logq: Tensor,
    uniform: Tensor,
    share: Tensor,
    beta: float,
    mode: str,
    log_vocabulary: float,
    top_p: float,
    temperature: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Token, share of q, log q of the token, entropies of q and of p.

    ``share`` holds NaN where the entropy of p decides. Sums of probabilities are taken in float64.
    """
    wide = torch.float64 if logp.dtype == torch.float64 else torch.float32
    p, q = (torch.log_softmax(t.to(wide), dim=1) for t in (logp, logq))
    of_p, of_q = entropy(p), entropy(q)
    require_numbers(of_p, of_q)
    given = share.to(wide)
    lam = torch.where(torch.isnan(given), shares(of_p / log_vocabulary, beta, mode), given)
    m = mixed(p, q, lam)
    apart = torch.isneginf(m.amax(1)) if m.shape[1] else torch.zeros_like(lam, dtype=torch.bool)
    lam = torch.where(apart, 0, lam)
    m = torch.where(apart[:, None], p, m)
    token = draw(m, uniform, top_p, temperature)
    return token, lam, q.gather(1, token[:, None])[:, 0], of_q, of_p


def entropy(logp: Tensor) -> Tensor:
    """-sum p log p of rows of log-probabilities, with 0 log 0 = 0."""
    p = torch.exp(logp)
    return -(p * torch.where(p > 0, logp, 0)).sum(1)


def shares(normalised: Tensor, beta: float, mode: str) -> Tensor:
    """Share of q from H(p) / log V: clip(beta h, 0, 1), sigmoid(beta (h - 1/2)), or a line between two h."""
    if mode == "linear":
        return (beta * normalised).clamp(0, 1)
    if mode == "sigmoid":
        return torch.sigmoid(beta * (normalised - 0.5))
    low, high = RISE
    return ((normalised - low) / (high - low)).clamp(0, 1)


def mixed(p: Tensor, q: Tensor, lam: Tensor) -> Tensor:
    """(1 - lam) p + lam q, where 0 times -inf is 0, so that lam 0 and 1 give p and q bit for bit."""
    part = lam[:, None]
    m = (1 - part) * p + part * q
    return torch.where(part == 0, p, torch.where(part == 1, q, m))


def draw(m: Tensor, uniform: Tensor, top_p: float, temperature: float) -> Tensor:
    """The nucleus of exp(m), then the temperature, then the inverse CDF.

    With a cut the tokens come from the most probable down, equal ones in the vocabulary's order; without one
    in the vocabulary's order.
    """
    if temperature == 0 or m.shape[0] == 0:
        return m.argmax(1)
    if top_p >= 1:
        weights = torch.softmax(m / temperature, dim=1)
        return inverse(weights, uniform)
    ordered, order = torch.sort(m, dim=1, descending=True, stable=True)
    probability = torch.softmax(ordered, dim=1).double()
    before = torch.cumsum(probability, 1) - probability
    kept = torch.where(before < top_p, ordered, -torch.inf)
    weights = torch.softmax(kept / temperature, dim=1)
    return order.gather(1, inverse(weights, uniform)[:, None])[:, 0]


def inverse(weights: Tensor, uniform: Tensor) -> Tensor:
    """The first place whose cumulated weight exceeds the uniform number's share of the whole."""
    cumulated = torch.cumsum(weights, 1, dtype=torch.float64)
    threshold = uniform[:, None].double() * cumulated[:, -1:]
    return torch.searchsorted(cumulated, threshold, right=True)[:, 0].clamp(max=weights.shape[1] - 1)


def require_numbers(*entropies: Tensor) -> None:
    """Refuse rows without a distribution.

    Raises:
        ValueError: an entropy is NaN: a row holds NaN, +inf, or nothing but -inf.
    """
    for name, found in zip(("logp", "logq"), entropies, strict=True):
        wrong = torch.isnan(found)
        if bool(wrong.any()):
            row = int(wrong.nonzero()[0, 0])
            raise ValueError(
                f"row {row} of {name} is no distribution: it holds NaN or +inf, or no finite number"
            )
