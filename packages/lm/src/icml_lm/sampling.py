"""One token a row: the most probable one, or a draw by inverse CDF from given uniform numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

Generators = torch.Generator | Sequence[torch.Generator]
"""One generator for all rows, one after the other, or one for each row."""


class Choice(NamedTuple):
    """How a token is chosen: temperature (0 for the most probable), nucleus, number of tokens."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0


def draw(
    logits: Float[Tensor, "rows vocab"], choice: Choice, uniform: Float[Tensor, " rows"] | None = None
) -> tuple[Int[Tensor, " rows"], Float[Tensor, " rows"]]:
    """A token a row, and its log-probability before the cuts of ``top_k`` and ``top_p``.

    The token is the first whose cumulated probability exceeds the uniform number: in the order of the
    vocabulary, or from the most probable down where there is a cut. The cuts are transformers' (``top_k``
    first, then the smallest set with at least ``top_p`` of what is left). arXiv 1904.09751.

    Args:
        logits: unnormalised log-probabilities.
        choice: temperature and cuts.
        uniform: in [0, 1), float64; needed where the temperature is above 0.
    """
    wide = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
    if not choice.temperature:
        tokens = wide.argmax(-1)
        picked = wide.gather(1, tokens[:, None])[:, 0]
        return tokens, picked - wide.logsumexp(-1)
    assert uniform is not None
    wide = wide / choice.temperature
    logp = wide.log_softmax(-1)
    vocab = wide.shape[1]
    if choice.top_k in (0, vocab) and choice.top_p >= 1.0:
        tokens = _inverse(logp.exp(), uniform)
    else:
        kept = min(choice.top_k, vocab) if choice.top_k else vocab
        best, order = logp.topk(kept, -1) if kept < vocab else logp.sort(-1, descending=True)
        probability = best.softmax(-1)
        if choice.top_p < 1.0:
            before = probability.cumsum(-1) - probability
            probability = torch.where(before < choice.top_p, probability, 0.0)
        tokens = order.gather(1, _inverse(probability, uniform)[:, None])[:, 0]
    return tokens, logp.gather(1, tokens[:, None])[:, 0]


def uniforms(
    rows: int, steps: int, generator: Generators | None, device: torch.device
) -> Float[Tensor, "rows steps"]:
    """Uniform numbers in [0, 1), row after row, so that a batch draws what its rows draw one by one.

    Raises:
        ValueError: no generator, or a list with another number than one for each row.
    """
    if generator is None:
        raise ValueError("sampling needs generator=torch.Generator().manual_seed(...)")
    of_rows = [generator] * rows if isinstance(generator, torch.Generator) else list(generator)
    if len(of_rows) != rows:
        raise ValueError(f"{len(of_rows)} generators for {rows} rows; give one, or one for each row")
    # float32 draws in float64: the largest is well below 1, so that no product with a sum rounds up to it.
    drawn = [torch.rand(steps, generator=g, device=g.device) for g in of_rows]
    return torch.stack(drawn).double().to(device)


def check_sampling(temperature: float, top_p: float, top_k: int, generator: Generators | None = None) -> None:
    """Refuse impossible settings.

    Raises:
        ValueError: a negative temperature, ``top_p`` outside (0, 1], a negative ``top_k``, or sampling
            without a generator.
    """
    if not 0.0 <= temperature < float("inf"):
        raise ValueError(f"temperature={temperature} must be 0 or a positive number")
    if not 0.0 < top_p <= 1.0:
        raise ValueError(f"top_p={top_p} must lie in (0, 1]")
    if not isinstance(top_k, int) or top_k < 0:
        raise ValueError(f"top_k={top_k} must be 0 (all tokens) or a positive whole number")
    if temperature and generator is None:
        raise ValueError(
            f"temperature={temperature} draws at random: pass generator=torch.Generator().manual_seed(...), "
            "or temperature=0"
        )


def _inverse(probability: Tensor, uniform: Tensor) -> Tensor:
    cumulated = probability.cumsum(-1, dtype=torch.float64)
    threshold = uniform[:, None].to(cumulated.dtype) * cumulated[:, -1:]
    return torch.searchsorted(cumulated, threshold, right=True)[:, 0]
