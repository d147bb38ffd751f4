"""Many fine-tunings of one base side by side: losses, rates and data sets as arms of one training."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from icml_lm import TinyLM, collate, train_many
from icml_lm.batching import IGNORE, Supervised
from torch import Tensor
from torch.nn import functional as F

from icml_idft.loss import IDFTLoss
from icml_idft.preferences import Pair, PreferenceLoss, answer_logp, reference_logp

FLOOR = 1e-3


@dataclass(frozen=True)
class Arm:
    """One fine-tuning.

    Attributes:
        data: name of its data set.
        loss: ``"sft"``, ``"dft"``, or an ``"idft"`` with its switches, other kinds are no arms; or DPO or
            SimPO, whose data are pairs.
        lr: learning rate.
    """

    data: str
    loss: IDFTLoss | PreferenceLoss
    lr: float


def fine_tuned(
    base: TinyLM,
    arms: Sequence[Arm],
    data: Mapping[str, Sequence[Supervised] | Sequence[Pair]],
    *,
    epochs: int,
    batch: int,
    seed: int,
    pad: int = 0,
) -> list[TinyLM]:
    """Train all arms from one base, with Adam at a constant rate; all see their rows in the same order.

    Args:
        base: stays as it is; the reference of DPO.
        arms: what to train.
        data: rows by name, as many in each; pairs for DPO and SimPO.
        epochs: passes.
        batch: rows, or pairs, of a step.
        seed: of the order.
        pad: id that fills up.

    Raises:
        ValueError: data sets of different sizes, data of the other form, or a kind that is no arm.
    """
    sizes = {len(rows) for rows in data.values()}
    if len(sizes) != 1:
        raise ValueError(f"the data sets have {sorted(sizes)} rows; arms need as many in each")
    for arm in arms:
        paired = isinstance(arm.loss, PreferenceLoss)
        if not paired and arm.loss.kind not in ("sft", "dft", "idft"):
            raise ValueError(f"kind={arm.loss.kind!r} is no arm; sft, dft, idft, dpo and simpo are")
        if paired != isinstance(data[arm.data][0], Pair):
            wanted = "pairs" if paired else "demonstrations"
            raise ValueError(f"{arm.loss!r} takes {wanted}, and {arm.data!r} holds others")
    n = sizes.pop()
    per_epoch = -(-n // batch)
    steps = per_epoch * epochs

    def chosen(step: int) -> Tensor:
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(n, generator=torch.Generator().manual_seed((seed << 10) + epoch))
        return order[place * batch : (place + 1) * batch]

    models = [copy.deepcopy(base) for _ in arms]
    feeds = (
        (IDFTLoss, arm_loss, lambda some: _tokens(some, data, steps, chosen, pad)),
        (PreferenceLoss, preference_arm_loss, lambda some: _pairs(some, data, base, chosen, pad)),
    )
    for kind, loss_fn, feed in feeds:
        places = [i for i, arm in enumerate(arms) if isinstance(arm.loss, kind)]
        if places:
            train_many(
                [models[i] for i in places],
                feed([arms[i] for i in places]),
                steps=steps,
                lr=[arms[i].lr for i in places],
                loss_fn=loss_fn,
                optimizer="adam",
                schedule="constant",
            )
    return [model.eval() for model in models]


def exponent(loss: IDFTLoss, step: int, total: int) -> tuple[float, float]:
    """(γ₀, λ) at a step: SFT is (0, 0), DFT (1, 0), IDFT (1 or 0, λ(s))."""
    if loss.kind == "sft":
        return 0.0, 0.0
    if loss.kind == "dft":
        return 1.0, 0.0
    return (1.0 if loss.warmup_kind == "dft" else 0.0), loss.share(step, total)


def arm_loss(model: object, batch: dict[str, Tensor]) -> Tensor:
    """The loss of one arm in operations that are batched over arms: ``IDFTLoss`` with w = p^γ."""
    logits = model(batch["input_ids"]).logits[:, :-1]  # type: ignore[operator]
    labels = batch["labels"][:, 1:]
    kept = labels != IGNORE
    every = torch.log_softmax(logits, -1)
    logp = every.gather(-1, torch.where(kept, labels, 0)[..., None])[..., 0]
    fixed = every.detach()
    p = fixed.exp()
    entropy = -(p * fixed).sum(-1)
    spread = ((p * (fixed + entropy[..., None]) ** 2).sum(-1) + FLOOR).sqrt()
    start, share, beta, low, high, standardized = batch["rule"].unbind(-1)
    phi = logp.detach() + entropy
    phi = phi / (beta * torch.where(standardized > 0, spread, 1.0))
    adaptive = torch.exp(-phi).clamp(low, high)
    gamma = start + share * (adaptive - start)
    w = torch.exp(gamma * logp.detach())
    return -(torch.where(kept, w * logp, 0)).sum() / kept.sum()


def preference_arm_loss(model: object, batch: dict[str, Tensor]) -> Tensor:
    """The mean of ``PreferenceLoss`` over one arm's pairs, in operations that are batched over arms."""
    logp, tokens = answer_logp(model(batch["input_ids"]).logits, batch["labels"])  # type: ignore[operator]
    beta, margin, referred = batch["rule"].unbind(-1)
    reward = torch.where(referred > 0, logp - batch["reference"], logp / tokens)
    chosen, rejected = reward.chunk(2)
    return -F.logsigmoid(beta * (chosen - rejected) - margin).mean()


Feed = Callable[[int], dict[str, Tensor]]


def _tokens(
    arms: Sequence[Arm], data: Mapping[str, Any], steps: int, chosen: Callable[[int], Tensor], pad: int
) -> Feed:
    """Batches of demonstrations, with every arm's rule at the step."""
    losses = [arm.loss for arm in arms if isinstance(arm.loss, IDFTLoss)]
    names = {arm.data for arm in arms}
    longest = max(len(row.input_ids) for name in names for row in data[name])
    whole = {name: collate(data[name], pad, length=longest) for name in names}
    constants = torch.tensor([[loss.beta, *loss.gamma, float(loss.standardized)] for loss in losses])

    def batches(step: int) -> dict[str, Tensor]:
        rows = chosen(step)
        found = {k: torch.stack([whole[arm.data][k][rows] for arm in arms]) for k in ("input_ids", "labels")}
        rule = torch.tensor([exponent(loss, step, steps) for loss in losses])
        return {**found, "rule": torch.cat((rule, constants), 1)}

    return batches


def _pairs(
    arms: Sequence[Arm], data: Mapping[str, Any], base: TinyLM, chosen: Callable[[int], Tensor], pad: int
) -> Feed:
    """Batches of pairs, the chosen answers first, with their log-probabilities under the base."""
    losses = [arm.loss for arm in arms if isinstance(arm.loss, PreferenceLoss)]
    names = {arm.data for arm in arms}
    both = {name: [[pair[i] for pair in data[name]] for i in (0, 1)] for name in names}
    longest = max(len(row.input_ids) for sides in both.values() for rows in sides for row in rows)
    whole: dict[str, list[dict[str, Tensor]]] = {}
    for name, sides in both.items():
        whole[name] = [collate(rows, pad, length=longest) for rows in sides]
        for part, rows in zip(whole[name], sides, strict=True):
            part["reference"] = reference_logp(base, rows, pad=pad)
    rule = torch.tensor([[loss.beta, loss.margin, float(loss.kind == "dpo")] for loss in losses])

    def batches(step: int) -> dict[str, Tensor]:
        rows = chosen(step)
        keys = ("input_ids", "labels", "reference")
        found = {
            k: torch.stack([torch.cat([part[k][rows] for part in whole[arm.data]]) for arm in arms])
            for k in keys
        }
        return {**found, "rule": rule}

    return batches
