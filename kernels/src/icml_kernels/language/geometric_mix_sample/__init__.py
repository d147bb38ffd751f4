"""One token a row from the geometric mixture of two next-token distributions, the share set by an entropy.

The step of hinted decoding (arXiv 2602.12222): p knows the answer, q does not. Where p is sure it is
followed; where it is not, q's own words are.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.language.checks import FLOATS, require_shape
from icml_kernels.language.geometric_mix_sample import reference
from icml_kernels.language.geometric_mix_sample.reference import MODES
from icml_kernels.language.head import arithmetic

_HERE = "icml_kernels.language.geometric_mix_sample"


class MixSample(NamedTuple):
    """Of every row: the token, lambda, log q of the token, and the entropies of q and p, in nats."""

    token: Int64[Tensor, " rows"]
    share: Float[Tensor, " rows"]
    draft_logp: Float[Tensor, " rows"]
    draft_entropy: Float[Tensor, " rows"]
    target_entropy: Float[Tensor, " rows"]


def geometric_mix_sample(
    logp: Float[Tensor, "rows vocabulary"],
    logq: Float[Tensor, "rows vocabulary"],
    uniform: Float[Tensor, " rows"],
    *,
    beta: float = 3.0,
    mode: str = "linear",
    top_p: float = 0.95,
    temperature: float = 0.3,
    share: Float[Tensor, " rows"] | None = None,
    log_vocabulary: float | None = None,
) -> MixSample:
    """x ~ m^(1/temperature) on the nucleus of m, where log m = (1 - lambda) log p + lambda log q + constant.

    With h = H(p) / log V the share of q is

    - ``"linear"``: lambda = clip(beta h, 0, 1);
    - ``"sigmoid"``: lambda = 1 / (1 + exp(-beta (h - 1/2)));
    - ``"piecewise"``: lambda rises linearly from 0 at h = 0.3 to 1 at h = 0.7.

    The nucleus, the smallest set of most probable tokens with at least ``top_p`` of m, comes before the
    temperature. The token is the first whose cumulated probability exceeds the uniform number: from the most
    probable down (equal ones in the vocabulary's order), or in the vocabulary's order where there is no cut.
    So lambda 0 and 1 draw from p and q bit for bit. Where p and q exclude each other, p is followed.
    A value, without derivatives; 16-bit inputs are computed with in float32.

    Args:
        logp, logq: logits or log-probabilities of p and q; -inf rules a token out.
        uniform: numbers in [0, 1).
        beta: how fast the share grows with the entropy; 0 follows p.
        mode: the rule.
        top_p: probability of the nucleus; 1 for no cut.
        temperature: of the draw; 0 takes the most probable token.
        share: lambda of rows where it is given; NaN where the entropy decides.
        log_vocabulary: log V in nats, where it is not that of the columns (a padded vocabulary).

    Returns:
        int64, and float32, or float64 for float64.

    Raises:
        TypeError: for a dtype that is no floating one.
        ValueError: for vocabularies, shapes or devices that differ, numbers out of range, an unknown mode, or
            rows that are no distribution.

    Example:
        >>> p, q = torch.tensor([[5.0, 0.0, 0.0]]), torch.tensor([[0.0, 5.0, 0.0]])
        >>> geometric_mix_sample(p, q, torch.tensor([0.5]), beta=0.0).token
        tensor([0])
    """
    rows, vocabulary = _require_pair(logp, logq)
    for name, given in (("uniform", uniform), ("share", share)):
        if given is None:
            continue
        if not given.is_floating_point():
            raise TypeError(f"{name} has dtype {given.dtype}; expected a floating one")
        require_shape(name, given, (rows,))
        if given.device != logp.device:
            raise ValueError(f"{name} lies on {given.device} but logp on {logp.device}; move one")
    _require_options(beta, mode, top_p, temperature)
    scale = math.log(max(vocabulary, 2)) if log_vocabulary is None else float(log_vocabulary)
    if not (scale > 0 and math.isfinite(scale)):
        raise ValueError(f"log_vocabulary={log_vocabulary} is not a positive number")
    dtype = arithmetic(logp.dtype)
    free = logp.new_full((rows,), math.nan, dtype=dtype) if share is None else share.detach().to(dtype)
    options = (float(beta), mode, scale, float(top_p), float(temperature))
    return MixSample(*_forward(logp.detach(), logq.detach(), uniform.detach().double(), free, *options))


def _require_pair(logp: Tensor, logq: Tensor) -> tuple[int, int]:
    for name, given in (("logp", logp), ("logq", logq)):
        if given.dtype not in FLOATS:
            raise TypeError(f"{name} has dtype {given.dtype}; expected one of {', '.join(map(str, FLOATS))}")
        require_shape(name, given, (None, None))
    if logp.shape[1] != logq.shape[1]:
        raise ValueError(
            f"p and q have vocabularies of {logp.shape[1]} and {logq.shape[1]} tokens; they must share one"
        )
    if logp.shape[1] == 0:
        raise ValueError("the vocabulary is empty; logp needs one column a token")
    require_shape("logq", logq, tuple(logp.shape))
    if logp.dtype != logq.dtype:
        raise TypeError(f"logp has dtype {logp.dtype} but logq has {logq.dtype}; convert one")
    if logp.device != logq.device:
        raise ValueError(f"logp lies on {logp.device} but logq on {logq.device}; move one")
    return logp.shape[0], logp.shape[1]


def _require_options(beta: float, mode: str, top_p: float, temperature: float) -> None:
    if not (beta >= 0 and math.isfinite(beta)):
        raise ValueError(f"beta={beta} is not a number of at least 0")
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(MODES)}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p={top_p} does not lie in (0, 1]")
    if not (temperature >= 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature={temperature} is not a number of at least 0")


def _fake_forward(logp: Tensor, *rest: object) -> tuple[Tensor, ...]:
    rows = (logp.shape[0],)
    dtype = arithmetic(logp.dtype)
    return logp.new_empty(rows, dtype=torch.int64), *(logp.new_empty(rows, dtype=dtype) for _ in range(4))


_forward = raw_op(
    "geometric_mix_sample",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
