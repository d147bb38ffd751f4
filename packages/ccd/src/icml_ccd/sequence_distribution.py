"""The exact distribution of a decoder's outputs, and how far it is from the true one.

At temperature 1 the decoder is a random map from a prompt to sequences. Written out token by token, the
chance of one sequence is the product of its tokens' probabilities under the rule's own order, because the
rule's choices are a function of the tokens so far. So every sequence is forced once, and nothing is sampled.
"""

from __future__ import annotations

import inspect
from itertools import product
from typing import Any

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from icml_ccd.decoding import decode, prepare
from icml_ccd.model_calls import Model

LIMIT = 1 << 20
"""Most sequences that are listed."""


def forced_logp(
    model: Model,
    input_ids: Int[Tensor, "batch prompt"],
    response: Int[Tensor, "batch N"],
    rule: Any = "ccd",
    **options: Any,
) -> Float[Tensor, " batch"]:
    """log-probability that ``decode`` with these options gives this response, for every row.

    Args:
        model: as for ``decode``.
        input_ids: prompts; with ``infill=True`` whole sequences with masks.
        response: tokens of the response; with ``infill=True`` of all positions.
        rule: as for ``decode``.
        options: as for ``decode``; the temperature is 1 by default, and at temperature 0 the result is 0 or
            -inf.

    Raises:
        ValueError: as ``decode``.
    """
    given = {"temperature": 1.0, **options, "model": model, "input_ids": input_ids, "rule": rule}
    if not given.get("infill"):
        given["gen_length"] = response.shape[1]
    bound = inspect.signature(decode).bind(**given)
    bound.apply_defaults()
    engine = prepare(**bound.arguments, forced=response.long()).engine
    engine.run()
    assert engine.logp is not None
    return engine.logp


def decoder_distribution(
    model: Model,
    length: int,
    vocab: int,
    rule: Any = "ccd",
    *,
    prompt: Int[Tensor, " prompt"] | None = None,
    batch: int = 4096,
    **options: Any,
) -> tuple[Int64[Tensor, "number length"], Float[Tensor, " number"]]:
    """All responses of a length over a vocabulary, and the probability of each under the decoder.

    Args:
        model: as for ``decode``.
        length: tokens of the response.
        vocab: tokens 0 to vocab - 1 are tried.
        rule: as for ``decode``.
        prompt: tokens before the response.
        batch: responses at a time.
        options: as for ``decode``.

    Raises:
        ValueError: more than a million responses.
    """
    if vocab**length > LIMIT:
        raise ValueError(f"{vocab}^{length} responses cannot be listed; {LIMIT} can")
    every = torch.tensor(list(product(range(vocab), repeat=length)), dtype=torch.int64)
    start = torch.empty(0, dtype=torch.int64) if prompt is None else prompt.long()
    parts = [
        forced_logp(model, start.expand(len(part), -1), part, rule, **options) for part in every.split(batch)
    ]
    return every, torch.cat(parts).exp()


def total_variation(p: Float[Tensor, " n"], q: Float[Tensor, " n"]) -> float:
    """Half the sum of |p - q|: the largest difference in the probability of any event."""
    return float(0.5 * (p.double() - q.double()).abs().sum())
