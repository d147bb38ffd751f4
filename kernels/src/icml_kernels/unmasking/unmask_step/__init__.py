"""One step of an unmasking sampler: a symbol for each site, and the log-probability of all of them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.molecules.checks import FLOATS, require_shape
from icml_kernels.unmasking.unmask_step import reference

_HERE = "icml_kernels.unmasking.unmask_step"


class Unmasked(NamedTuple):
    """The symbols of a step, and for each row the sum of their log-probabilities."""

    symbol: Int64[Tensor, "rows sites"]
    logp: Float64[Tensor, " rows"]


def unmask_step(
    logits: Float[Tensor, "rows sites symbols"],
    uniform: Float64[Tensor, "rows sites"],
    *,
    trusted: bool = False,
) -> Unmasked:
    """symbol = first v with P(0) + ... + P(v) > uniform, P = softmax(logits); logp = sum over sites of log
    P(symbol).

    By inverse cumulated probabilities in double precision, so that with 53-bit uniform numbers a symbol of
    probability 1e-9 is drawn as often as it should be; noise of Gumbel's or the exponential law in single
    precision never reaches it. A value, without derivatives.

    Args:
        logits: float32 or float64, -inf where a symbol is ruled out; one row serves all draws if there is
            one only.
        uniform: numbers in [0, 1).
        trusted: do not look whether the arguments are right.

    Returns:
        A row without any possible symbol, or with a NaN, has logp NaN.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes that do not match, no symbols, devices that differ.

    Example:
        >>> unmask_step(torch.zeros(1, 1, 4), torch.tensor([[0.3]], dtype=torch.float64)).symbol
        tensor([[1]])
    """
    if trusted:
        return Unmasked(*_forward(logits.detach(), uniform.detach()))
    if logits.dtype not in FLOATS:
        raise TypeError(f"logits has dtype {logits.dtype}; expected torch.float32 or torch.float64")
    if uniform.dtype != torch.float64:
        raise TypeError(
            f"uniform has dtype {uniform.dtype}; expected torch.float64, whose 53 bits reach rare symbols"
        )
    require_shape("uniform", uniform, (None, None))
    rows = uniform.shape[0]
    require_shape("logits", logits, (1 if logits.shape[:1] == (1,) else rows, uniform.shape[1], None))
    if logits.shape[2] == 0:
        raise ValueError("there are no symbols; logits needs one column a symbol")
    if logits.device != uniform.device:
        raise ValueError(f"uniform lies on {uniform.device} but logits on {logits.device}; move one")
    return Unmasked(*_forward(logits.detach(), uniform.detach()))


def _fake(logits: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    rows, sites = uniform.shape
    symbol = uniform.new_empty((rows, sites), dtype=torch.int64)
    return symbol, uniform.new_empty((rows,), dtype=torch.float64)


_forward = raw_op(
    "unmask_step",
    reference.forward,
    fake=_fake,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
