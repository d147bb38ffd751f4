"""Log-likelihood of an answer under a masked diffusion language model: a bound, with its standard error.

    log p(x | s) >= E_l E_{|m| = l} [ N / l  sum_{i in m} log p(x_i | x without m, s) ],   l uniform on 1 .. N

(Nie et al., arXiv 2502.09992, eq. 14: the number of masks is fixed, which varies less than masking each token
at a rate t and dividing by t.) It is also the mean over random orders of the answer's log-probability token
by token.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import torch
from icml_kernels import token_stats
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_ccd.model_calls import Model, ModelCalls
from icml_ccd.settings import from_model


class Bound(NamedTuple):
    """A lower bound of log p(answer | prompt).

    Attributes:
        value: nats.
        standard_error: of the estimate; 0 where everything was enumerated.
        n_forward: sequences that the model has seen.
        perplexity: exp(-value / tokens).
    """

    value: float
    standard_error: float
    n_forward: int
    perplexity: float


@torch.no_grad()
def loglik(
    model: Model,
    prompt: Int[Tensor, " prompt"],
    answer: Int[Tensor, " N"],
    n_mc: int = 128,
    stratified: bool = True,
    *,
    n_orders: int | None = None,
    mask_id: int | None = None,
    shift_logits: bool | None = None,
    batch: int = 64,
    generator: torch.Generator | int | None = None,
) -> Bound:
    """Estimate the bound of log p(answer | prompt) that the model was trained on.

    Args:
        model: callable from ids to logits.
        prompt: tokens that stay visible.
        answer: tokens that are scored.
        n_mc: masked copies of the answer that are scored.
        stratified: spread the copies evenly over the numbers of masks, which varies less than drawing them.
        n_orders: score so many random orders token by token instead, N forwards each: for short answers.
        mask_id: the mask token; the model's own where it says one.
        shift_logits: alignment of logits (``decode``); the model's word by default.
        batch: copies at a time.
        generator: of the masks; an integer is a seed, None the seed 0.

    Raises:
        ValueError: an empty answer, masks in it, too few copies for a standard error, or an alignment that
            neither was given nor does the model say.
    """
    copies = _Copies(model, prompt, answer, mask_id, shift_logits, batch)
    n = len(answer)
    if not isinstance(generator, torch.Generator):
        generator = torch.Generator().manual_seed(0 if generator is None else int(generator))
    if n_orders is not None:
        if n_orders < 1:
            raise ValueError(f"n_orders={n_orders}; at least 1 is needed")
        orders = torch.stack([torch.randperm(n, generator=generator) for _ in range(n_orders)])
        rank = orders.argsort(1)
        masks = torch.stack([rank >= step for step in range(n)], 1)
        logp = copies.logp(masks.flatten(0, 1)).view(n_orders, n, n)
        totals = logp.gather(2, orders[:, :, None])[..., 0].sum(1)
        error = float(totals.std() / n_orders**0.5) if n_orders > 1 else float("nan")
        return _bound(float(totals.mean()), error, n_orders * n, n)
    if n_mc < 2:
        raise ValueError(f"n_mc={n_mc}; at least 2 copies are needed for a standard error")
    return _estimated(copies, n, n_mc, stratified, generator)


def _estimated(copies: _Copies, n: int, n_mc: int, stratified: bool, generator: torch.Generator) -> Bound:
    if stratified:
        # As many copies of every number of masks as go, the rest spread evenly from a random start.
        start = torch.rand((), generator=generator, dtype=torch.float64)
        places = (torch.arange(n_mc, dtype=torch.float64) + start) / n_mc
        counts = (places * n).long().clamp(max=n - 1) + 1
    else:
        counts = torch.randint(1, n + 1, (n_mc,), generator=generator)
    rank = torch.rand(n_mc, n, generator=generator, dtype=torch.float64).argsort(1).argsort(1)
    masks = rank < counts[:, None]
    values = torch.where(masks, copies.logp(masks), 0).sum(1) * n / counts
    per_count = torch.bincount(counts, minlength=n + 1)[1:]
    if stratified and int(per_count.min()) >= 2:
        means = torch.stack([values[counts == c].mean() for c in range(1, n + 1)])
        variances = torch.stack([values[counts == c].var() / per_count[c - 1] for c in range(1, n + 1)])
        return _bound(float(means.mean()), float(variances.sum().sqrt() / n), n_mc, n)
    # With fewer, the spread over numbers of masks is left in: the error is then an upper bound.
    return _bound(float(values.mean()), float(values.std() / n_mc**0.5), n_mc, n)


@torch.no_grad()
def exact_bound(
    model: Model,
    prompt: Int[Tensor, " prompt"],
    answer: Int[Tensor, " N"],
    *,
    mask_id: int | None = None,
    shift_logits: bool | None = None,
    batch: int = 1024,
) -> Bound:
    """The same bound over all 2^N - 1 sets of masks.

    Raises:
        ValueError: as ``loglik``; an answer of more than 16 tokens.
    """
    n = len(answer)
    if n > 16:
        raise ValueError(f"an answer of {n} tokens has 2^{n} sets of masks; up to 16 tokens are enumerated")
    copies = _Copies(model, prompt, answer, mask_id, shift_logits, batch)
    total, forwards = 0.0, 0
    for count in range(1, n + 1):
        sets = torch.tensor(list(combinations(range(n), count)))
        masks = torch.zeros(len(sets), n, dtype=torch.bool).scatter_(1, sets, True)
        values = torch.where(masks, copies.logp(masks), 0).sum(1) / count
        total += float(values.mean())
        forwards += len(sets)
    return _bound(total, 0.0, forwards, n)


def _bound(value: float, error: float, forwards: int, tokens: int) -> Bound:
    return Bound(value, error, forwards, float(torch.tensor(-value / tokens, dtype=torch.float64).exp()))


class _Copies:
    """Masked copies of an answer, scored."""

    def __init__(
        self,
        model: Model,
        prompt: Tensor,
        answer: Tensor,
        mask_id: int | None,
        shift_logits: bool | None,
        batch: int,
    ) -> None:
        mask_id = from_model(model, "mask_id", "mask_token_id") if mask_id is None else mask_id
        if mask_id is None:
            raise ValueError(
                "there is no mask token id: neither mask_id was given nor does the model say one"
            )
        said = getattr(model, "shift_logits", None) if shift_logits is None else shift_logits
        if said is None:
            raise ValueError("say shift_logits=True (Dream) or False (LLaDA); the model says neither")
        if answer.dim() != 1 or prompt.dim() != 1 or not len(answer):
            raise ValueError(
                f"prompt and answer have shapes {list(prompt.shape)} and {list(answer.shape)}; expected "
                "two rows of tokens, the answer not empty"
            )
        if bool((answer == mask_id).any()):
            raise ValueError(f"the answer holds the mask id {mask_id}, which has no likelihood")
        self.calls, self.mask_id, self.shift = ModelCalls(model, None), mask_id, int(bool(said))
        self.prompt, self.answer, self.batch = prompt.long(), answer.long(), batch

    def logp(self, masks: Bool[Tensor, "k N"]) -> Float[Tensor, "k N"]:
        """log p of every token of the answer in copies with these masks; of use where it is masked."""
        n, start = len(self.answer), len(self.prompt)
        length = start + n
        device = self.answer.device
        parts = []
        for part in masks.to(device).split(self.batch):
            response = torch.where(part, self.mask_id, self.answer)
            ids = torch.cat((self.prompt.to(device).expand(len(part), -1), response), 1)
            places = (torch.arange(start, length, device=device) - self.shift).clamp(min=0)
            rows = (torch.arange(len(part), device=device)[:, None] * length + places).flatten()
            logits, where = self.calls.rows(ids, None, rows)
            targets = self.answer.repeat(len(part))
            parts.append(token_stats(logits[where], targets).logp.view(len(part), n).double().cpu())
        return torch.cat(parts)
