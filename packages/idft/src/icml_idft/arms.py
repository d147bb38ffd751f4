"""Many fine-tunings of one base side by side: losses, rates and data sets as arms of one training."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from icml_lm import TinyLM, collate, train_many
from icml_lm.batching import IGNORE, Supervised
from torch import Tensor

from icml_idft.loss import IDFTLoss

FLOOR = 1e-3


@dataclass(frozen=True)
class Arm:
    """One fine-tuning.

    Attributes:
        data: name of its data set.
        loss: ``"sft"``, ``"dft"``, or an ``"idft"`` with its switches; other kinds are no arms.
        lr: learning rate.
    """

    data: str
    loss: IDFTLoss
    lr: float


def fine_tuned(
    base: TinyLM,
    arms: Sequence[Arm],
    data: Mapping[str, Sequence[Supervised]],
    *,
    epochs: int,
    batch: int,
    seed: int,
    pad: int = 0,
) -> list[TinyLM]:
    """Train all arms from one base, with Adam at a constant rate; all see their rows in the same order.

    Args:
        base: stays as it is.
        arms: what to train.
        data: rows by name, as many in each.
        epochs: passes.
        batch: rows of a step.
        seed: of the order.
        pad: id that fills up.

    Raises:
        ValueError: data sets of different sizes, or a kind that is no arm.
    """
    sizes = {len(rows) for rows in data.values()}
    if len(sizes) != 1:
        raise ValueError(f"the data sets have {sorted(sizes)} rows; arms need as many in each")
    for arm in arms:
        if arm.loss.kind not in ("sft", "dft", "idft"):
            raise ValueError(f"kind={arm.loss.kind!r} is no arm; sft, dft and idft are")
    n = sizes.pop()
    longest = max(len(row.input_ids) for rows in data.values() for row in rows)
    whole = {name: collate(rows, pad, length=longest) for name, rows in data.items()}
    per_epoch = -(-n // batch)
    steps = per_epoch * epochs
    constants = torch.tensor([[a.loss.beta, *a.loss.gamma, float(a.loss.standardized)] for a in arms])

    def batches(step: int) -> dict[str, Tensor]:
        epoch, place = divmod(step, per_epoch)
        order = torch.randperm(n, generator=torch.Generator().manual_seed((seed << 10) + epoch))
        rows = order[place * batch : (place + 1) * batch]
        found = {k: torch.stack([whole[arm.data][k][rows] for arm in arms]) for k in ("input_ids", "labels")}
        rule = torch.tensor([exponent(arm.loss, step, steps) for arm in arms])
        return {**found, "rule": torch.cat((rule, constants), 1)}

    models = [copy.deepcopy(base) for _ in arms]
    rates = [arm.lr for arm in arms]
    train_many(
        models, batches, steps=steps, lr=rates, loss_fn=arm_loss, optimizer="adam", schedule="constant"
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
