"""How well a statistic Σ (log p_t + a H_t) tells a model's texts from another source's, exactly.

Of one context, E_p[log p] = -H, so that the mean under p is (a - 1) H: contexts spread it by (1 - a)² Var(H),
while the shift between the sources does not depend on a. With a = 1 the spread between contexts is gone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def world(
    contexts: int = 200, vocab: int = 50, *, shift: float = 0.8, seed: int
) -> tuple[Float[Tensor, "contexts vocab"], Float[Tensor, "contexts vocab"]]:
    """Log-probabilities of a model in contexts of mixed entropy, and of a source whose logits are shifted.

    Args:
        contexts: how many, evenly frequent.
        vocab: tokens.
        shift: standard deviation of the shift of each logit.
        seed: of everything.
    """
    generator = torch.Generator().manual_seed(seed)
    options: Any = {"generator": generator, "dtype": torch.float64}
    scale = (math.log(0.2) + math.log(25.0) * torch.rand(contexts, 1, **options)).exp()
    logits = scale * torch.randn(contexts, vocab, **options)
    other = logits + shift * torch.randn(contexts, vocab, **options)
    return logits.log_softmax(1), other.log_softmax(1)


def discriminability(
    logp: Float[Tensor, "contexts vocab"],
    logq: Float[Tensor, "contexts vocab"],
    a: Sequence[float],
    length: int,
    *,
    pooled: bool = True,
) -> Float[Tensor, " a"]:
    """d' of Σ_t (log p_t + a H_t) over texts of ``length`` tokens in evenly drawn contexts, by enumeration.

    d' = √length |E_q s - E_p s| / sd, with s the term of one token.

    Args:
        logp, logq: log-probabilities of the model and of the other source.
        a: factors of the entropy.
        length: tokens of a text.
        pooled: sd is the root of the mean of both variances; else the model's alone.
    """
    p, q = logp.exp(), logq.exp()
    entropy = -(p * logp).sum(1, keepdim=True)
    found = []
    for factor in a:
        s = logp + factor * entropy
        means = [(weight * s).sum(1).mean() for weight in (p, q)]
        variances = [
            (weight * (s - mean) ** 2).sum(1).mean() for weight, mean in zip((p, q), means, strict=True)
        ]
        spread = sum(variances) / 2 if pooled else variances[0]
        found.append(math.sqrt(length) * (means[1] - means[0]).abs() / torch.as_tensor(spread).sqrt())
    return torch.stack(found)


def auc(of_model: Float[Tensor, " a"], of_other: Float[Tensor, " b"]) -> float:
    """Probability that a statistic of the model's texts exceeds that of another source's; ties count half."""
    both = torch.cat((of_model, of_other)).double()
    order = both.argsort(stable=True)
    ranks = torch.empty_like(both)
    ranks[order] = torch.arange(1, len(both) + 1, dtype=torch.float64)
    values, inverse, counts = both.unique(return_inverse=True, return_counts=True)
    sums = torch.zeros(len(values), dtype=torch.float64).scatter_add(0, inverse, ranks)
    ranks = (sums / counts)[inverse]
    n, m = len(of_model), len(of_other)
    return float((ranks[:n].sum() - n * (n + 1) / 2) / (n * m))
