"""The operators of this family, each with every input on which its routes are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

import icml_kernels
from icml_kernels.language.buffer_mix import cases as buffer
from icml_kernels.language.geometric_mix_sample import cases as mix
from icml_kernels.language.masked_entropy_argmax import cases as scores
from icml_kernels.language.token_stats import cases as stats
from icml_kernels.language.topk_kl import cases as kl
from icml_kernels.language.topk_logprobs import cases as topk
from icml_kernels.language.weighted_nll import cases as nll
from icml_kernels.testing import Case


def statistics(
    hidden: Tensor, targets: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, **options: Any
) -> tuple[Tensor, ...]:
    """``token_stats`` with everything in a row, as the cases give it."""
    return tuple(icml_kernels.token_stats(hidden, targets, weight=weight, bias=bias, **options))


def weighted(
    hidden: Tensor,
    weight: Tensor | None,
    targets: Tensor,
    token_weight: Tensor,
    bias: Tensor | None,
    **options: Any,
) -> tuple[Tensor, ...]:
    """``weighted_nll``: the loss, which alone has a derivative, and the rest as finite numbers."""
    found = icml_kernels.weighted_nll(
        hidden, weight, targets, token_weight=token_weight.detach(), bias=bias, **options
    )
    return found.loss, found.logp.exp(), found.entropy, found.weight


def listed(hidden: Tensor, weight: Tensor | None, bias: Tensor | None, **options: Any) -> tuple[Tensor, ...]:
    """The floating results of ``topk_logprobs``."""
    return tuple(icml_kernels.topk_logprobs(hidden, weight, bias=bias, **options))[1:]


def divergence(
    hidden: Tensor,
    weight: Tensor | None,
    idx: Tensor,
    logp: Tensor,
    tail: Tensor,
    bias: Tensor | None,
    **options: Any,
) -> Tensor:
    """``topk_kl``, differentiable by hidden, weight and bias alone."""
    return icml_kernels.topk_kl(hidden, weight, idx, logp.detach(), tail.detach(), bias=bias, **options)


def mixed(
    logp: Tensor, logq: Tensor, uniform: Tensor, share: Tensor | None = None, **options: Any
) -> tuple[Tensor, ...]:
    """The floating results of ``geometric_mix_sample``; log q of the token as a finite number."""
    found = icml_kernels.geometric_mix_sample(logp, logq, uniform, share=share, **options)
    return found.share, found.draft_logp.exp(), found.draft_entropy, found.target_entropy


def scored(logits: Tensor, rows: Tensor, **options: Any) -> tuple[Tensor, ...]:
    """The floating results of ``masked_entropy_argmax``."""
    found = icml_kernels.masked_entropy_argmax(logits, rows, **options)
    return found.neg_entropy, found.maxprob, found.lse


def averaged(rows_logp: Tensor, weights: Tensor, index: Tensor) -> tuple[Tensor, ...]:
    """The floating results of ``buffer_mix``."""
    found = icml_kernels.buffer_mix(rows_logp, weights, index)
    return found.entropy, found.jsd, found.maxprob


def every_case() -> list[tuple[Callable[..., Any], Case]]:
    """Each operator with each of its cases."""
    modules = (
        (statistics, stats),
        (weighted, nll),
        (listed, topk),
        (divergence, kl),
        (mixed, mix),
        (scored, scores),
        (averaged, buffer),
    )
    return [(function, case) for function, module in modules for case in module.CASES]
