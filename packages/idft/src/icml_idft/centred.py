"""The centred log-likelihood: would this model have said that? Per token, and as a test of whole texts.

    φ(x | c) = log p(x | c) + H(c),    E[φ | c] = 0,    Var[φ | c] = Σ_v p_v (log p_v + H)²

under x ~ p, whatever the context. A text's z = Σ φ / √Σ Var is about standard normal if the model wrote it.
arXiv 2602.12222, "distribution discriminant theory".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import torch
from icml_lm import hidden_and_head, token_stats
from jaxtyping import Bool, Float, Int
from torch import Tensor

Alternative = Literal["two-sided", "less", "greater"]
_ROWS_AT_ONCE = 256  # rows of two vocabularies that the log-ratio holds at once


@dataclass(frozen=True)
class CLL:
    """Of every token, where it stands, and of every row; 0 at tokens that are not scored.

    Attributes:
        phi: log p + H, in nats: below 0 less probable than typical, above 0 more.
        logp: log-probability, in nats.
        entropy: of the distribution that the token is drawn from, in nats.
        varentropy: variance of φ under it, in nats².
        scored: which tokens count.
        sum: of φ, a row.
        mean: of φ, a row.
        z: sum / √(sum of varentropies).
        pvalue: of "the model wrote this".
        log_ratio: log p - log r of the reference model, in nats; None without one.
        ratio_z: its sum, less what p expects, in standard deviations under p.
        ratio_pvalue: of "the model wrote this, not the reference": small where the ratio is below p's own.
    """

    phi: Float[Tensor, "batch tokens"]
    logp: Float[Tensor, "batch tokens"]
    entropy: Float[Tensor, "batch tokens"]
    varentropy: Float[Tensor, "batch tokens"]
    scored: Bool[Tensor, "batch tokens"]
    sum: Float[Tensor, " batch"]
    mean: Float[Tensor, " batch"]
    z: Float[Tensor, " batch"]
    pvalue: Float[Tensor, " batch"]
    log_ratio: Float[Tensor, "batch tokens"] | None = None
    ratio_z: Float[Tensor, " batch"] | None = None
    ratio_pvalue: Float[Tensor, " batch"] | None = None


@torch.no_grad()
def cll(
    model: Any,
    input_ids: Int[Tensor, "batch tokens"],
    mask: Int[Tensor, "batch tokens"] | None = None,
    temperature: float = 1.0,
    reference_model: Any = None,
    *,
    attention_mask: Int[Tensor, "batch tokens"] | None = None,
    alternative: Alternative = "two-sided",
) -> CLL:
    """Score texts.

    Where the other source is known, the log-ratio against it is the far stronger test: ``reference_model``.

    Args:
        model: TinyLM, a transformers causal model, or PEFT's wrapper around either; used in evaluation.
        input_ids: whole texts, prompt and answer; tokenise the parts apart and join the ids, so that no token
            spans the border.
        mask: 1 for the tokens to score, such as the answer's; all real tokens but the first by default.
        temperature: of p, in log p and H alike.
        reference_model: the other source, over the same vocabulary.
        attention_mask: 0 for padding on either side.
        alternative: of the p-value: ``"less"`` asks only whether the text is less probable than the model's.

    Raises:
        ValueError: shapes that do not fit, a temperature that is not positive, a row without a scored token,
            vocabularies that differ, an unknown alternative.
    """
    if alternative not in ("two-sided", "less", "greater"):
        raise ValueError(f"alternative={alternative!r} is not 'two-sided', 'less' or 'greater'")
    if input_ids.dim() != 2 or input_ids.is_floating_point():
        raise ValueError(f"input_ids must be whole numbers [batch, tokens], not {list(input_ids.shape)}")
    for name, given in (("mask", mask), ("attention_mask", attention_mask)):
        if given is not None and given.shape != input_ids.shape:
            raise ValueError(f"{name} has shape {list(given.shape)}, input_ids have {list(input_ids.shape)}")
    scored = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.bool().clone()
    scored[:, 0] = False
    if attention_mask is not None:
        real = attention_mask.bool()
        scored &= real
        scored[:, 1:] &= real[:, :-1]
    empty = scored.sum(1) == 0
    if bool(empty.any()):
        raise ValueError(
            f"row {int(empty.nonzero()[0, 0])} has no scored token; a token needs one before it, and mask "
            "and attention_mask at 1"
        )
    with _evaluating(model):
        found = token_stats(model, input_ids, attention_mask, temperature, scored=scored.long())
    logp, entropy, varentropy = (_aligned(t) for t in found)
    phi = logp + entropy
    total, spread = phi.sum(1), varentropy.sum(1)
    z = _standardised(total, spread)
    ratio = None
    if reference_model is not None:
        ratio = _against(model, reference_model, input_ids, scored, attention_mask, temperature)
    return CLL(
        phi,
        logp,
        entropy,
        varentropy,
        scored,
        total,
        total / scored.sum(1),
        z,
        _pvalue(z, alternative),
        *(() if ratio is None else (ratio[0], ratio[1], _pvalue(ratio[1], "less"))),
    )


class CentredLogLikelihood:
    """``cll`` as an evaluator: named figures of a model on texts.

    Args:
        temperature, alternative: as for ``cll``.
        level: of the test whose share of refusals is reported.
    """

    def __init__(
        self, temperature: float = 1.0, alternative: Alternative = "two-sided", level: float = 0.05
    ) -> None:
        if not 0 < level < 1:
            raise ValueError(f"level={level} must lie between 0 and 1")
        self.temperature, self.alternative, self.level = temperature, alternative, level

    def evaluate(
        self,
        subject: Any,
        input_ids: Int[Tensor, "batch tokens"],
        mask: Int[Tensor, "batch tokens"] | None = None,
        *,
        attention_mask: Int[Tensor, "batch tokens"] | None = None,
        reference_model: Any = None,
    ) -> dict[str, float]:
        """Mean φ a token, negative log-likelihood, mean and spread of z, and the share of texts refused.

        Raises:
            ValueError: as ``cll``.
        """
        found = cll(
            subject,
            input_ids,
            mask,
            self.temperature,
            reference_model,
            attention_mask=attention_mask,
            alternative=self.alternative,
        )
        tokens = found.scored.sum()
        figures = {
            "phi": float(found.phi.sum() / tokens),
            "nll": -float(found.logp.sum() / tokens),
            "entropy": float(found.entropy.sum() / tokens),
            "z_mean": float(found.z.mean()),
            "z_sd": float(found.z.std()) if len(found.z) > 1 else 0.0,
            "refused": float((found.pvalue < self.level).double().mean()),
            "tokens": float(tokens),
        }
        if found.ratio_pvalue is not None and found.log_ratio is not None:
            figures["log_ratio"] = float(found.log_ratio.sum() / tokens)
            figures["refused_by_ratio"] = float((found.ratio_pvalue < self.level).double().mean())
        return figures


def _against(
    model: Any, reference: Any, ids: Tensor, scored: Tensor, mask: Tensor | None, temperature: float
) -> tuple[Tensor, Tensor]:
    """log p - log r of every token, and its sum's z under p: less KL(p || r), in standard deviations."""
    inputs: dict[str, Tensor] = {}
    if mask is not None:
        inputs = {"attention_mask": mask, "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    wanted = scored[:, 1:]
    rows = []
    for subject in (model, reference):
        with _evaluating(subject):
            hidden, head, out = hidden_and_head(subject, ids, **inputs)
        rows.append((out.logits if hidden is None else hidden)[:, :-1][wanted])
        rows.append(head)
    of_p, head_p, of_r, head_r = rows
    targets = ids[:, 1:][wanted]
    pieces = []
    for start in range(0, len(targets), _ROWS_AT_ONCE):
        part = slice(start, start + _ROWS_AT_ONCE)
        p, r = (
            torch.log_softmax((x[part] if head is None else head.logits(x[part])).float() / temperature, 1)
            for x, head in ((of_p, head_p), (of_r, head_r))
        )
        if p.shape != r.shape:
            raise ValueError(
                f"the model has {p.shape[1]} tokens and the reference {r.shape[1]}; they must share one "
                "vocabulary"
            )
        difference = torch.where(torch.isneginf(p), 0, p - r)
        weight = p.exp()
        expected = torch.where(weight > 0, weight * difference, 0).sum(1)
        square = (difference - expected[:, None]) ** 2
        variance = torch.where(weight > 0, weight * square, 0).sum(1)
        own = targets[part, None]
        pieces.append(torch.stack([(p - r).gather(1, own)[:, 0], expected, variance]))
    found = torch.cat(pieces, 1)
    ratio, expected, variance = (_aligned(_scattered(t, wanted)) for t in found)
    return ratio, _standardised((ratio - expected).sum(1), variance.sum(1))


def _standardised(total: Tensor, variance: Tensor) -> Tensor:
    """total / √variance; 0 where both are 0, for a text that could not have been another."""
    return torch.where(total == 0, 0, total / variance.sqrt())


def _pvalue(z: Tensor, alternative: Alternative) -> Tensor:
    wide = z.double()
    if alternative == "two-sided":
        found = torch.special.erfc(wide.abs() / math.sqrt(2))
    else:
        found = torch.special.ndtr(wide if alternative == "less" else -wide)
    return found.to(z.dtype)


def _aligned(values: Tensor) -> Tensor:
    """From what predicts a token to the token: a column of zeros for the first one."""
    return torch.cat((values.new_zeros(values.shape[0], 1), values), 1)


def _scattered(values: Tensor, wanted: Tensor) -> Tensor:
    return values.new_zeros(wanted.shape).masked_scatter(wanted, values)


class _evaluating:
    """A model without dropout while the body runs."""

    def __init__(self, model: Any) -> None:
        self.model, self.before = model, getattr(model, "training", False)

    def __enter__(self) -> None:
        if self.before:
            self.model.eval()

    def __exit__(self, *exception: object) -> None:
        if self.before:
            self.model.train()
