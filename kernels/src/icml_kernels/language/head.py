"""The head of a language model, from hidden states to logits: the definition that this family shares."""

from __future__ import annotations

import torch
from torch import Tensor


def arithmetic(dtype: torch.dtype) -> torch.dtype:
    """The precision of sums and results: float64 for float64, float32 for everything else."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def logits(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
) -> Tensor:
    """x = cap(logit_scale (hidden weight^T + bias)) / temperature, cap(z) = softcap tanh(z / softcap).

    The soft cap is Gemma 2's (arXiv 2408.00118, section 2), and None stands for none. Without a weight
    ``hidden`` holds the head's products already.
    """
    dtype = arithmetic(hidden.dtype)
    z = hidden.to(dtype)
    if weight is not None:
        z = z @ weight.to(dtype).T
    if bias is not None:
        z = z + bias.to(dtype)
    z = z * logit_scale
    if softcap is not None:
        z = softcap * torch.tanh(z / softcap)
    return z / temperature


def slope(x: Tensor, temperature: float, logit_scale: float, softcap: float | None) -> Tensor | float:
    """dx/dz of ``logits``, z being the head's products, from its result."""
    if softcap is None:
        return logit_scale / temperature
    return logit_scale / temperature * (1 - (x * (temperature / softcap)) ** 2)


def pull_back(
    by_logits: Tensor,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    by_hidden: bool,
    by_head: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by hidden, weight and bias from that by the head's products; empty where not asked for."""
    dtype = by_logits.dtype
    none = by_logits.new_empty(0)
    gh = by_logits if weight is None else by_logits @ weight.to(dtype)
    gw = none if weight is None or not by_head else by_logits.T @ hidden.to(dtype)
    gb = by_logits.sum(0) if bias is not None and by_head else none.clone()
    return gh.clone() if by_hidden else none.clone(), gw.clone(), gb


def empty_gradients(
    hidden: Tensor, weight: Tensor | None, bias: Tensor | None, by_hidden: bool, by_head: bool
) -> tuple[Tensor, ...]:
    """Room for the gradients by hidden, weight and bias; empty where one is not wanted."""
    wanted = (by_hidden, by_head and weight is not None, by_head and bias is not None)
    shapes = [t.shape if w else (0,) for t, w in zip((hidden, weight, bias), wanted, strict=True)]
    return tuple(hidden.new_empty(shape, dtype=arithmetic(hidden.dtype)) for shape in shapes)
