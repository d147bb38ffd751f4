"""The k most probable tokens of every row, without logits of all rows: what a teacher's cache holds."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.language.checks import require_head
from icml_kernels.language.head import arithmetic
from icml_kernels.language.topk_logprobs import reference

_HERE = "icml_kernels.language.topk_logprobs"


class TopK(NamedTuple):
    """Tokens by falling probability, their log-probabilities in nats, and the others' total probability."""

    idx: Int64[Tensor, "rows k"]
    logp: Float[Tensor, "rows k"]
    tail: Float[Tensor, " rows"]


def topk_logprobs(
    hidden: Float[Tensor, "rows features"] | Float[Tensor, "rows vocabulary"],
    weight: Float[Tensor, "vocabulary features"] | None,
    k: int,
    *,
    temperature: float = 1.0,
    bias: Float[Tensor, " vocabulary"] | None = None,
    logit_scale: float = 1.0,
    softcap: float | None = None,
) -> TopK:
    """The k largest log p_v of p = softmax(x), and tail = 1 - sum_k p, with x as in ``token_stats``.

    Of equal logits any may be chosen. The tail is summed over the other tokens and not taken from 1, so
    that a small one keeps its digits. A value, without derivatives.

    Args:
        hidden: last hidden states; or logits, where ``weight`` is None.
        weight, bias: the head.
        k: how many tokens a row.
        temperature, logit_scale, softcap: as in ``token_stats``; a student is compared at the same ones.

    Returns:
        idx in int64; logp and tail in float32, or float64 for float64.

    Raises:
        TypeError: for dtypes that differ or do not fit.
        ValueError: for shapes or devices that do not fit together, or k outside 1..vocabulary.

    Example:
        >>> topk_logprobs(torch.tensor([[0.0, 2.0, 1.0]]), None, 1).idx
        tensor([[1]])
    """
    vocabulary = require_head(hidden, weight, bias, temperature, logit_scale, softcap)
    if not 1 <= k <= vocabulary:
        raise ValueError(f"k={k} is not one of 1 to {vocabulary}, the size of the vocabulary")
    head = [None if t is None else t.detach() for t in (hidden, weight, bias)]
    cap = None if softcap is None else float(softcap)
    return TopK(*_forward(*head, k, float(temperature), float(logit_scale), cap))


def _fake_forward(hidden: Tensor, weight: Any, bias: Any, k: int, *rest: Any) -> tuple[Tensor, ...]:
    n, dtype = hidden.shape[0], arithmetic(hidden.dtype)
    idx = hidden.new_empty(n, k, dtype=torch.int64)
    return idx, hidden.new_empty(n, k, dtype=dtype), hidden.new_empty(n, dtype=dtype)


_forward = raw_op(
    "topk_logprobs",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
