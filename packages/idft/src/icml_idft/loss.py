"""The IDFT loss: each token's negative log-likelihood, trusted as far as the model would have said it.

arXiv 2602.12222 and its published trainer; SFT, DFT (arXiv 2508.05629) and relatives are kinds of the same
loss. The weights come from the token's own log-probability and entropy, and have no gradient.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from icml_kernels import weighted_nll
from icml_lm import Head, hidden_and_head
from jaxtyping import Float, Int
from torch import Tensor

if TYPE_CHECKING:
    from icml_idft.trainer import LossCallback, TrainerLoss

KINDS = ("sft", "dft", "idft", "indomain", "eaft", "reverse")
SUPPRESSED = 0.1
"""A token with less weight than this counts as suppressed in the statistics."""
FOREIGN = 1e-3
"""A mean weight below this says that the model would have said next to nothing of the data."""


@dataclass(frozen=True)
class TokenFigures:
    """Of every label, where it stands; 0 where it is not supervised.

    Attributes:
        logp: log-probability in nats.
        entropy: of the distribution that it was predicted from, in nats.
        weight: w.
    """

    logp: Float[Tensor, "batch tokens"]
    entropy: Float[Tensor, "batch tokens"]
    weight: Float[Tensor, "batch tokens"]

    @property
    def phi(self) -> Float[Tensor, "batch tokens"]:
        """The centred log-likelihood, log p + H."""
        return self.logp + self.entropy


class IDFTLoss:
    """L = -(1 / N) Σ_t w_t log p_t over the N supervised tokens of the whole batch, w without a gradient.

    With φ = log p + H and γ = clip(exp(-φ / beta), gamma[0], gamma[1]):

    - ``"sft"``: w = 1; ``"dft"``: w = p; ``"idft"``: w = p^γ, with γ replaced by γ₀ + λ(s) (γ - γ₀);
    - ``"reverse"``: w = (1 - p)^γ; ``"eaft"``: w = H / log V;
    - ``"indomain"``: w = w_min + (w_max - w_min) σ(-(φ - threshold) / width).

    λ(s) is 0 for the first ``warmup`` of the steps, rises linearly over ``transition``, then stays 1.

    Args:
        kind: one of ``KINDS``.
        beta: width of the exponent's rule, in nats; in standard deviations where ``standardized``.
        gamma: bounds of the exponent.
        warmup, transition: shares of the training, of λ(s); where they are not 0, calls say ``step`` and
            ``total``.
        warmup_kind: what λ = 0 stands for: ``"dft"``, γ₀ = 1 (the published trainer's), or ``"sft"``, γ₀ = 0.
        standardized: divide φ by √(Var + 0.001), its standard deviation under the model.
        weight_range, threshold, width: of ``"indomain"``.
        temperature: divides the logits, in p and H alike.
        shift: labels stand where the tokens do, and each is predicted from the position before (the
            convention of transformers); False where they have been moved already.
        ignore_index: label of what is not supervised.

    Raises:
        ValueError: an unknown kind or warm-up, or constants out of range.

    Example:
        >>> logits = torch.zeros(1, 3, 4)
        >>> IDFTLoss("dft")(logits, torch.tensor([[0, 1, 2]]))  # log(4) / 4
        tensor(0.3466)
    """

    def __init__(
        self,
        kind: str = "idft",
        beta: float = 1.0,
        gamma: tuple[float, float] = (0.1, 2.0),
        warmup: float = 0.0,
        transition: float = 0.0,
        *,
        warmup_kind: Literal["dft", "sft"] = "dft",
        standardized: bool = False,
        weight_range: tuple[float, float] = (0.1, 1.0),
        threshold: float = 0.0,
        width: float = 1.0,
        temperature: float = 1.0,
        shift: bool = True,
        ignore_index: int = -100,
    ) -> None:
        if kind not in KINDS:
            raise ValueError(f"kind={kind!r} is not one of {', '.join(KINDS)}")
        if not (beta > 0 and math.isfinite(beta)):
            raise ValueError(f"beta={beta} must be a positive number")
        if not 0 <= gamma[0] <= gamma[1] < math.inf:
            raise ValueError(f"gamma={tuple(gamma)} must be bounds with 0 <= lower <= upper")
        if not (warmup >= 0 and transition >= 0 and warmup + transition <= 1):
            raise ValueError(
                f"warmup={warmup} and transition={transition} are shares of the training: neither negative, "
                "and at most 1 together"
            )
        if warmup_kind not in ("dft", "sft"):
            raise ValueError(f"warmup_kind={warmup_kind!r} is neither 'dft' nor 'sft'")
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature={temperature} must be a positive number")
        if not (width > 0 and math.isfinite(width)):
            raise ValueError(f"width={width} must be a positive number")
        if not 0 <= weight_range[0] <= weight_range[1] < math.inf:
            raise ValueError(f"weight_range={tuple(weight_range)} must be bounds with 0 <= lower <= upper")
        self.kind, self.beta, self.gamma = kind, float(beta), (float(gamma[0]), float(gamma[1]))
        self.warmup, self.transition, self.warmup_kind = float(warmup), float(transition), warmup_kind
        self.standardized, self.weight_range = standardized, (float(weight_range[0]), float(weight_range[1]))
        self.threshold, self.width, self.temperature = float(threshold), float(width), float(temperature)
        self.shift, self.ignore_index = shift, ignore_index
        self.tokens: TokenFigures | None = None
        self._kept: Tensor | None = None
        self._value: Tensor | None = None
        self._share = 1.0
        self._warned = False

    def __repr__(self) -> str:
        shown = {"beta": self.beta, "gamma": self.gamma} if self.kind in ("idft", "reverse") else {}
        if self.warmup or self.transition:
            shown |= {"warmup": self.warmup, "transition": self.transition, "warmup_kind": self.warmup_kind}
        if self.standardized:
            shown["standardized"] = True
        return f"IDFTLoss({', '.join([repr(self.kind), *(f'{k}={v!r}' for k, v in shown.items())])})"

    def __call__(
        self,
        logits: Float[Tensor, "batch tokens vocab"] | None,
        labels: Int[Tensor, "batch tokens"],
        step: int | None = None,
        total: int | None = None,
        num_items: float | Tensor | None = None,
        *,
        hidden: Float[Tensor, "batch tokens d"] | None = None,
        head: Head | Float[Tensor, "vocab d"] | None = None,
        token_weight: Float[Tensor, "batch tokens"] | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of logits, or of hidden states and a head, in which case logits are never stored.

        Args:
            logits: at every position; None where ``hidden`` and ``head`` are given.
            labels: tokens, or ``ignore_index``.
            step, total: of the training, counted from 0; for λ(s).
            num_items: supervised tokens of the whole batch, over its micro-batches and devices; those of
                ``labels`` by default. Without any the loss is 0, attached to the graph.
            hidden: last hidden states, instead.
            head: ``icml_lm.head_of(model)``, with its scale and cap, or a weight.
            token_weight: a factor of each label's term; it has no gradient.

        Raises:
            ValueError: neither or both of logits and hidden states; shapes that do not fit; a label that is
                no token; a warm-up without ``step`` and ``total``.
        """
        source, weight, bias, scale, softcap = _source(logits, hidden, head)
        if labels.dim() != 2 or source.shape[:2] != labels.shape:
            raise ValueError(
                f"labels of shape {list(labels.shape)} do not fit {'logits' if hidden is None else 'hidden'} "
                f"of {list(source.shape)}; expected [batch, tokens] and [batch, tokens, ...]"
            )
        if token_weight is not None and token_weight.shape != labels.shape:
            raise ValueError(
                f"token_weight has shape {list(token_weight.shape)}, labels have {list(labels.shape)}"
            )
        targets = self._moved(labels.to(source.device), self.ignore_index)
        factors = None if token_weight is None else self._moved(token_weight.detach(), 0).flatten()
        kept = targets != self.ignore_index
        self._share = self.share(step, total)
        found = weighted_nll(
            source.flatten(0, 1),
            weight,
            targets.flatten(),
            kind=self.kind,
            beta=self.beta,
            gamma=self.gamma,
            mix=self._share,
            gamma_start=1.0 if self.warmup_kind == "dft" else 0.0,
            standardized=self.standardized,
            weight_range=self.weight_range,
            threshold=self.threshold,
            width=self.width,
            token_weight=factors,
            normalizer=_normalizer(num_items, kept),
            bias=bias,
            temperature=self.temperature,
            logit_scale=scale,
            softcap=softcap,
            ignore_index=self.ignore_index,
        )
        figures = (self._back(t.view(targets.shape)) for t in (found.logp, found.entropy, found.weight))
        self.tokens = TokenFigures(*figures)
        self._kept, self._value = self._back(kept), found.loss.detach()
        return found.loss

    def of_model(self, model: Any, batch: dict[str, Tensor], **options: Any) -> Float[Tensor, ""]:
        """The loss of a batch, from hidden states where the model's head is a plain linear map.

        Args:
            model: TinyLM, a transformers causal model, or PEFT's wrapper around either.
            batch: ``input_ids``, ``labels``, and what else the model takes.
            options: ``step``, ``total``, ``num_items`` and ``token_weight``.
        """
        inputs = {k: v for k, v in batch.items() if k not in ("input_ids", "labels")}
        hidden, head, out = hidden_and_head(model, batch["input_ids"], **inputs)
        if hidden is None or head is None:
            return self(out.logits, batch["labels"], **options)
        return self(None, batch["labels"], hidden=hidden, head=head, **options)

    def share(self, step: int | None = None, total: int | None = None) -> float:
        """λ(s): how much of the adaptive exponent is in force at a step.

        Raises:
            ValueError: there is a warm-up, and no ``step`` and ``total``.
        """
        if not (self.warmup or self.transition):
            return 1.0
        if step is None or total is None:
            raise ValueError(
                f"warmup={self.warmup}, transition={self.transition} need step= and total= at every call; in "
                "a Trainer, callbacks=[loss.callback()]"
            )
        done = step / max(total, 1)
        if done < self.warmup:
            return 0.0
        return min(1.0, (done - self.warmup) / self.transition) if self.transition else 1.0

    @property
    def stats(self) -> dict[str, float]:
        """Figures of the last call; reading them waits for the device.

        ``loss``; ``nll``, the plain negative log-likelihood a token; ``mean_weight`` and ``weight_sum``;
        ``phi``, its mean; ``suppressed``, the share of tokens with a weight below 0.1; ``tokens``, how many
        were supervised; ``impossible``, how many had log p = -inf; ``share``, λ(s).

        Raises:
            ValueError: before the first call.
        """
        if self.tokens is None or self._kept is None or self._value is None:
            raise ValueError("there are no statistics before the first call of the loss")
        kept = self._kept
        n = kept.sum()
        logp, w = self.tokens.logp[kept].double(), self.tokens.weight[kept].double()
        phi = self.tokens.phi[kept].double()
        count = n.clamp(min=1)
        sums = torch.stack(
            [-logp.sum(), w.sum(), phi.sum(), (w < SUPPRESSED).sum(), torch.isneginf(logp).sum()]
        )
        nll, weight_sum, phi_sum, suppressed, impossible = sums.tolist()
        tokens = int(count)
        found = {
            "loss": float(self._value),
            "nll": nll / tokens,
            "mean_weight": weight_sum / tokens,
            "weight_sum": weight_sum,
            "phi": phi_sum / tokens,
            "suppressed": suppressed / tokens,
            "tokens": float(n),
            "impossible": impossible,
            "share": self._share,
        }
        if n and self.kind != "sft" and found["mean_weight"] < FOREIGN and not self._warned:
            self._warned = True
            warnings.warn(
                f"the mean weight is {found['mean_weight']:.1e}: the model would have said next to nothing "
                "of this data, and learns next to nothing from it; rewrite it with icml_idft.realign, or "
                "use kind='sft'",
                stacklevel=2,
            )
        return found

    def as_hf(self, model: Any = None) -> TrainerLoss:
        """A ``compute_loss_func`` for ``transformers.Trainer`` and ``trl.SFTTrainer``.

        Args:
            model: where given, the loss is taken from its hidden states, and its forward pass in training
                makes logits of the last position only. ``.remove()`` takes that back.

        Raises:
            TypeError: the model's head is no plain linear map.
        """
        from icml_idft.trainer import TrainerLoss

        return TrainerLoss(self, model)

    def callback(self) -> LossCallback:
        """A ``TrainerCallback`` that tells the loss its step, and logs its statistics."""
        from icml_idft.trainer import LossCallback

        return LossCallback(self)

    def _moved(self, values: Tensor, filling: Any) -> Tensor:
        """Each label to the position that it is predicted from. The last position predicts nothing."""
        if not self.shift:
            return values
        return torch.cat((values[:, 1:], torch.full_like(values[:, :1], filling)), 1)

    def _back(self, values: Tensor) -> Tensor:
        if not self.shift:
            return values
        return torch.cat((torch.zeros_like(values[:, :1]), values[:, :-1]), 1)


def _source(
    logits: Tensor | None, hidden: Tensor | None, head: Head | Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None, float, float | None]:
    """Logits, or hidden states with weight, bias, scale and cap of the head."""
    if (logits is None) == (hidden is None):
        what = "both logits and hidden=" if logits is not None else "neither logits nor hidden="
        raise ValueError(f"{what} were given; pass hidden= and head= where the model made no logits")
    source = logits if hidden is None else hidden
    assert source is not None
    if source.dim() != 3:
        raise ValueError(f"expected [batch, tokens, ...], got a tensor of shape {list(source.shape)}")
    if hidden is None:
        return source, None, None, 1.0, None
    if head is None:
        raise ValueError("hidden= needs head=, such as icml_lm.head_of(model)")
    if isinstance(head, Tensor):
        return source, head, None, 1.0, None
    return source, head.weight, head.bias, head.logit_scale, head.softcap


def _normalizer(num_items: float | Tensor | None, kept: Tensor) -> Tensor:
    if num_items is None:
        return kept.sum().clamp(min=1)
    if not isinstance(num_items, Tensor):
        if not (num_items >= 0 and math.isfinite(num_items)):
            raise ValueError(f"num_items={num_items} is no number of tokens")
        return torch.tensor(max(float(num_items), 1.0), device=kept.device)
    if num_items.numel() != 1:
        raise ValueError(f"num_items has shape {list(num_items.shape)}; expected one number")
    return num_items.to(kept.device).reshape(()).clamp(min=1)
