"""Training a head, or head and backbone, with cross-entropy and GeoReg: the paper's schedule.

AdamW, cosine decay after 10 % warm-up, gradients clipped to norm 1, the epoch of best validation accuracy is
kept (arXiv 2605.23033 and its configurations). Stopped after any epoch and resumed, it is the same training.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_core.checkpoint import load_state, save_state
from icml_core.optimizers import torch_optimizer
from icml_core.randomness import seeded
from jaxtyping import Float
from torch import Tensor, nn

from icml_loes.georeg import GeoRegLoss
from icml_loes.head import LoesHead
from icml_loes.layered_model import LoesModel
from icml_loes.scores import classification_scores

KIND = "icml-loes-finetuning"
Inputs = Tensor | Sequence[Tensor] | Mapping[str, Tensor]
"""Of n examples: for a head [n, k, D] or a list of k tensors; for a model what its backbone takes."""


@dataclass(frozen=True)
class FineTuningOptions:
    """How to train; the defaults are those of text.

    Attributes:
        epochs: passes over the training examples.
        batch: examples a step.
        lr: of the head.
        backbone_lr: of the backbone, where it is not frozen.
        weight_decay: of all.
        warmup: share of the steps.
        clip: norm of the gradients; 0 for none.
        georeg: weight of GeoReg; 0 without it.
        triangles: of GeoReg, ``"one"`` or ``"all"``.
        isotropy, spread: which terms of GeoReg are used.
        optimizer: as ``torch_optimizer`` knows it.
        balanced: weigh classes inversely to their frequency.
    """

    epochs: int = 15
    batch: int = 128
    lr: float = 1e-4
    backbone_lr: float = 2e-5
    weight_decay: float = 0.01
    warmup: float = 0.1
    clip: float = 1.0
    georeg: float = 0.1
    triangles: str = "one"
    isotropy: bool = True
    spread: bool = True
    optimizer: str = "adamw"
    balanced: bool = False

    @classmethod
    def preset(cls, modality: str, **changes: Any) -> FineTuningOptions:
        """The paper's settings of ``"text"``, ``"vision"`` or ``"audio"``, with changes.

        Raises:
            ValueError: another modality.
        """
        known: dict[str, dict[str, Any]] = {
            "text": {},
            "vision": {"epochs": 20, "weight_decay": 1e-4, "backbone_lr": 1e-5},
            "audio": {"batch": 64},
        }
        if modality not in known:
            raise ValueError(f"modality={modality!r} is not one of {', '.join(known)}")
        return replace(cls(), **{**known[modality], **changes})


@dataclass(frozen=True)
class FineTuned:
    """What a training returns.

    Attributes:
        rows: of each epoch: ``epoch``, mean ``loss`` and ``georeg``, and of the validation examples
            ``accuracy``, ``balanced_accuracy`` and ``mcc``, or ``exact_match`` of multi-label targets.
        best_epoch: the one whose weights the model has now.
        state: these weights.
    """

    rows: list[dict[str, float]]
    best_epoch: int
    state: dict[str, Tensor]


class FineTuning:
    """A training; the model is changed in place.

    Args:
        model: ``LoesHead`` on features, or ``LoesModel``.
        inputs: of the training examples.
        labels: [n] classes, or [n, C] of 0 and 1 for several labels an example (a loss a label then).
        validation: inputs and labels by which the best epoch is chosen; without them it is the last.
        options: how to train.
        seed: of order, dropout and triangles.

    Raises:
        ValueError: lengths that differ, labels that the head has no output for, no example, options out of
            range.
    """

    def __init__(
        self,
        model: LoesHead | LoesModel,
        inputs: Inputs,
        labels: Any,
        validation: tuple[Inputs, Any] | None = None,
        options: FineTuningOptions | None = None,
        *,
        seed: int = 0,
    ) -> None:
        self.model, self.options, self.seed = model, options or FineTuningOptions(), seed
        self.device = next(model.parameters()).device
        self._head = model.head if isinstance(model, LoesModel) else model
        o = self.options
        if o.epochs < 1 or o.batch < 1 or not o.lr > 0 or not 0 <= o.warmup < 1 or o.georeg < 0 or o.clip < 0:
            raise ValueError(
                f"{o}: epochs and batch from 1 on, lr above 0, warmup below 1, georeg and clip from 0 on"
            )
        outputs = self._head.classifier[-1].out_features
        self._inputs, self._labels = inputs, _labels(labels, inputs, outputs, self.device)
        self._validation = None
        if validation is not None:
            self._validation = validation[0], _labels(validation[1], validation[0], outputs, self.device)
        self._loss = _loss(self._labels, o.balanced, outputs)
        self._georeg = GeoRegLoss(o.georeg, o.triangles, isotropy=o.isotropy, spread=o.spread)

    def fit(
        self,
        *,
        until: int | None = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        progress: Callable[[dict[str, float]], None] | None = None,
    ) -> FineTuned:
        """Train to the end, or until an epoch.

        Args:
            until: stop after so many epochs; the schedule stays that of all.
            checkpoint: file that is written after every epoch.
            resume: go on from it.
            progress: called with the row of every epoch.

        Raises:
            FileNotFoundError, ValueError: a checkpoint that is missing or of another training.
            FloatingPointError: the loss is not finite.
        """
        o = self.options
        optimizer = self._optimizer()
        base = [group["lr"] for group in optimizer.param_groups]
        rows: list[dict[str, float]] = []
        best: tuple[float, int, dict[str, Tensor]] | None = None
        identity = {"options": asdict(o), "seed": self.seed, "n": len(self._labels)}
        if resume:
            if checkpoint is None:
                raise ValueError("resume=True needs checkpoint=")
            state = load_state(checkpoint, kind=KIND, identity=identity, device=str(self.device))
            self.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            rows, best = state["rows"], (state["best"], state["best_epoch"], state["best_model"])
        last = o.epochs if until is None else min(until, o.epochs)
        for epoch in range(len(rows), last):
            row = self._epoch(epoch, optimizer, base)
            value = row.get("accuracy", row.get("exact_match", float(epoch)))
            if best is None or value > best[0]:
                best = value, epoch, copy.deepcopy(self.model.state_dict())
            rows.append(row)
            if checkpoint is not None:
                state = {
                    "model": self.model.state_dict(), "optimizer": optimizer.state_dict(), "rows": rows,
                    "best": best[0], "best_epoch": best[1], "best_model": best[2],
                }  # fmt: skip
                save_state(checkpoint, state, kind=KIND, identity=identity)
            if progress is not None:
                progress(row)
        assert best is not None
        if last == o.epochs:
            self.model.load_state_dict(best[2])
        self.model.eval()
        return FineTuned(rows, best[1], best[2])

    def predict(self, inputs: Inputs) -> Float[Tensor, "n n_out"]:
        """Logits, without gradients and dropout."""
        self.model.eval()
        n = _count(inputs)
        with torch.no_grad():
            parts = [self._forward(inputs, torch.arange(s, min(s + 512, n)))[1] for s in range(0, n, 512)]
        return torch.cat(parts)

    def features(self, inputs: Inputs) -> Float[Tensor, "n fused"]:
        """Fused representations, without gradients and dropout."""
        self.model.eval()
        with torch.no_grad():
            return self._forward(inputs, torch.arange(_count(inputs)))[0]

    def _epoch(self, epoch: int, optimizer: torch.optim.Optimizer, base: list[float]) -> dict[str, float]:
        o, n = self.options, len(self._labels)
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        order = torch.randperm(n, generator=generator)
        steps = math.ceil(n / o.batch)
        losses, penalties = [], []
        self.model.train()
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        with seeded(int(torch.randint(2**31, (), generator=generator))):
            for step in range(steps):
                rows = order[step * o.batch : (step + 1) * o.batch]
                factor = _schedule(epoch * steps + step, o.epochs * steps, o.warmup)
                for group, lr in zip(optimizer.param_groups, base, strict=True):
                    group["lr"] = lr * factor
                z, logits = self._forward(self._inputs, rows)
                labels = self._labels[rows]
                loss = self._loss(logits, labels)
                penalty = loss.new_zeros(())
                if o.georeg and labels.dim() == 1 and len(rows) > 1:
                    penalty = self._georeg(z, labels, generator)
                optimizer.zero_grad()
                (loss + penalty).backward()
                if o.clip:
                    nn.utils.clip_grad_norm_(parameters, o.clip)
                optimizer.step()
                losses.append(float(loss.detach()))
                penalties.append(float(penalty.detach()))
        if not math.isfinite(sum(losses) + sum(penalties)):
            raise FloatingPointError(f"the loss of epoch {epoch} is not finite; lower lr={o.lr}")
        row = {
            "epoch": float(epoch),
            "loss": sum(losses) / len(losses),
            "georeg": sum(penalties) / len(penalties),
        }
        return {**row, **self._validate()}

    def _validate(self) -> dict[str, float]:
        if self._validation is None:
            return {}
        inputs, labels = self._validation
        logits = self.predict(inputs)
        if labels.dim() == 2:
            return {"exact_match": float(((logits > 0) == (labels > 0.5)).all(1).double().mean())}
        return classification_scores(labels.cpu().numpy(), logits.argmax(1).cpu().numpy())

    def _forward(self, inputs: Inputs, rows: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(inputs, Mapping):
            chosen: Any = {k: v[rows].to(self.device) for k, v in inputs.items()}
        elif isinstance(inputs, Tensor):
            chosen = inputs[rows].to(self.device)
        else:
            chosen = [v[rows].to(self.device) for v in inputs]
        if isinstance(self.model, LoesModel):
            layers: Any = (
                self.model.layers(**chosen) if isinstance(chosen, dict) else self.model.layers(chosen)
            )
        else:
            layers = chosen
        z = self._head.features(layers)
        return z, self._head.classifier(z)

    def _optimizer(self) -> torch.optim.Optimizer:
        o = self.options
        make = torch_optimizer(o.optimizer)
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        inside = [(n, p) for n, p in named if isinstance(self.model, LoesModel) and n.startswith("backbone.")]
        if not inside:
            return make(named, lr=o.lr, weight_decay=o.weight_decay)
        rest = [(n, p) for n, p in named if not n.startswith("backbone.")]
        groups = [{"params": rest}, {"params": inside, "lr": o.backbone_lr}]
        return make(groups, lr=o.lr, weight_decay=o.weight_decay)


def _schedule(step: int, steps: int, warmup: float) -> float:
    """Linear warm-up, then a cosine to 0."""
    rising = max(1, round(warmup * steps)) if warmup else 0
    if step < rising:
        return (step + 1) / rising
    return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))


def _count(inputs: Inputs) -> int:
    if isinstance(inputs, Mapping):
        return len(next(iter(inputs.values())))
    return len(inputs) if isinstance(inputs, Tensor) else len(inputs[0])


def _labels(labels: Any, inputs: Inputs, outputs: int, device: torch.device) -> Tensor:
    found = torch.as_tensor(np.asarray(labels) if not isinstance(labels, Tensor) else labels)
    n = _count(inputs)
    if n == 0 or len(found) != n:
        raise ValueError(f"{len(found)} labels for {n} examples; expected as many, and at least one")
    if found.dim() == 2:
        if found.shape[1] != outputs or not bool(((found == 0) | (found == 1)).all()):
            raise ValueError(
                f"labels of shape {list(found.shape)} must be 0 and 1 for each of {outputs} outputs"
            )
        return found.to(device, torch.float32)
    if found.dim() != 1 or found.is_floating_point():
        raise ValueError(
            f"labels are {list(found.shape)} of {found.dtype}; expected whole numbers [n], or [n, C]"
        )
    if int(found.min()) < 0 or int(found.max()) >= outputs:
        raise ValueError(
            f"labels reach from {int(found.min())} to {int(found.max())} but the head has {outputs} outputs"
        )
    return found.to(device, torch.int64)


def _loss(labels: Tensor, balanced: bool, outputs: int) -> Callable[[Tensor, Tensor], Tensor]:
    if labels.dim() == 2:
        return lambda logits, wanted: nn.functional.binary_cross_entropy_with_logits(
            logits, wanted.to(logits)
        )
    weight: Tensor | None = None
    if balanced:
        counts = torch.bincount(labels, minlength=outputs).double()
        weight = torch.where(counts > 0, len(labels) / (outputs * counts.clamp_min(1)), 0.0)

    def loss(logits: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(logits, wanted, None if weight is None else weight.to(logits))

    return loss
