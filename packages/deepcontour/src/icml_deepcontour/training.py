"""Training of the ENO: Adam, cosine, the best epoch by validation; it stops and continues bit for bit."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_core.checkpoint import load_state, save_state
from icml_core.optimizers import torch_optimizer
from jaxtyping import Int
from torch import Tensor

from icml_deepcontour.eno import ENO, eno_loss

KIND = "icml-deepcontour-eno"


@dataclass(frozen=True)
class FitOptions:
    """The schedule, and the size of the network.

    Attributes:
        width, modes, layers: of the ENO.
        epochs, batch, lr: Adam from `lr` down a cosine.
        optimizer: adam, another of torch's, or plugin.component.
        validation: share held out, of which one half chooses the epoch and the other calibrates.
        test: share that is only reported.
        confidence: of the calibrated error quantiles.
    """

    width: int = 32
    modes: int = 12
    layers: int = 4
    epochs: int = 300
    batch: int = 16
    lr: float = 1e-3
    optimizer: str = "adam"
    validation: float = 0.1
    test: float = 0.1
    confidence: float = 0.95

    def __post_init__(self) -> None:
        fine = min(self.width, self.modes, self.layers, self.epochs, self.batch) >= 1 and self.lr > 0
        fine = fine and self.validation > 0 and self.test >= 0 and self.validation + self.test < 1
        if not (fine and 0 < self.confidence < 1):
            raise ValueError(f"{self}: sizes from 1 on, lr above 0, shares in (0, 1) with less than 1 in sum")


@dataclass(frozen=True)
class Split:
    """Places of the instances: for training, for the choice of the epoch, for the report, for calibration."""

    train: Int[np.ndarray, " a"]
    validation: Int[np.ndarray, " b"]
    test: Int[np.ndarray, " c"]
    calibration: Int[np.ndarray, " d"]

    @staticmethod
    def of(n: int, options: FitOptions, seed: int, groups: Any = None) -> Split:
        """80/10/10 at random; instances of one group (a path of parameters, a cell) stay together.

        Raises:
            ValueError: too few instances or groups for all parts.
        """
        labels = np.arange(n) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
        if labels.shape != (n,):
            raise ValueError(f"groups has shape {list(labels.shape)}; expected one for each of {n} instances")
        cells = int(labels.max()) + 1
        order = np.random.default_rng(seed).permutation(cells)
        held = max(2, round(options.validation * cells))
        tested = max(1, round(options.test * cells)) if options.test else 0
        if cells < held + tested + 1:
            raise ValueError(f"{cells} instances or groups are too few for training, validation and test")
        # What chooses the epoch must not calibrate: its errors are the least of many.
        parts = np.split(order, [held // 2, held, held + tested])
        chooses, calibrates, test, train = (np.flatnonzero(np.isin(labels, part)) for part in parts)
        return Split(train, chooses, test, calibrates)


class EnoTraining:
    """Fits an `ENO` to solved instances.

    Args:
        fields: [n, c, H, W], or features [n, f].
        eigenvalues: [n, M], rising.
        options: schedule and sizes.
        groups: [n], instances that belong together.
        seed: of weights, split and order.
        device: where.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, eigenvalues that do not rise.
    """

    def __init__(
        self,
        fields: Any,
        eigenvalues: Any,
        options: FitOptions | None = None,
        *,
        groups: Any = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.options, self.seed, self.device = options or FitOptions(), seed, device
        x = torch.as_tensor(np.asarray(fields, dtype=np.float32))
        y = torch.as_tensor(np.asarray(eigenvalues, dtype=np.float64))
        if x.dim() not in (2, 4) or y.dim() != 2 or len(x) != len(y) or y.shape[1] == 0:
            raise ValueError(
                f"fields {list(x.shape)} and eigenvalues {list(y.shape)}; expected [n, c, H, W] or [n, "
                f"features], "
                "and [n, M]"
            )
        if not (bool(x.isfinite().all()) and bool(y.isfinite().all())):
            raise ValueError("fields and eigenvalues must be finite; leave failed instances out")
        if bool((y.diff(dim=1) < 0).any()):
            raise ValueError("eigenvalues must rise along each row; sort them")
        self.split = Split.of(len(x), self.options, seed, groups)
        o = self.options
        self.model = ENO(
            x.shape[1],
            y.shape[1],
            width=o.width,
            modes=o.modes,
            layers=o.layers,
            features=x.dim() == 2,
            seed=seed,
        )
        self.model.set_trend(x[self.split.train], y[self.split.train])
        self.model.to(device)
        self._x, self._y = x.to(device), y.float().to(device)

    def fit(
        self,
        *,
        until: int | None = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        progress: Callable[[dict[str, float]], None] | None = None,
    ) -> list[dict[str, float]]:
        """Train to the end, or until an epoch; the model is then that of the best epoch.

        Args:
            until: stop after so many epochs; the schedule stays that of all.
            checkpoint: file that is written every tenth epoch and at the end.
            resume: go on from it.
            progress: called with the row of every epoch.

        Returns:
            A row for each epoch: loss, and the validation's median relative error.

        Raises:
            FileNotFoundError, ValueError: a checkpoint that is missing or of another training.
            FloatingPointError: the loss is not finite.
        """
        o = self.options
        optimizer = torch_optimizer(o.optimizer)(list(self.model.named_parameters()), lr=o.lr)
        rows: list[dict[str, float]] = []
        best: tuple[float, dict[str, Tensor]] = (math.inf, copy.deepcopy(self.model.state_dict()))
        identity = {
            "options": asdict(o),
            "seed": self.seed,
            "fields": list(self._x.shape),
            "M": self._y.shape[1],
        }
        if resume:
            if checkpoint is None:
                raise ValueError("resume=True needs checkpoint=")
            state = load_state(checkpoint, kind=KIND, identity=identity, device=self.device)
            self.model.load_state_dict(state["model"])
            optimizer.load_state_dict(state["optimizer"])
            rows, best = state["rows"], (state["best"], state["best_model"])
        last = o.epochs if until is None else min(until, o.epochs)
        for epoch in range(len(rows), last):
            rate = 0.5 * o.lr * (1 + math.cos(math.pi * epoch / o.epochs))
            for group in optimizer.param_groups:
                group["lr"] = rate
            row = {
                "epoch": float(epoch),
                "loss": self._epoch(epoch, optimizer),
                "validation": self._validate(),
            }
            if row["validation"] < best[0]:
                best = row["validation"], copy.deepcopy(self.model.state_dict())
            rows.append(row)
            if checkpoint is not None and (epoch % 10 == 9 or epoch + 1 == last):
                state = {
                    "model": self.model.state_dict(), "optimizer": optimizer.state_dict(), "rows": rows,
                    "best": best[0], "best_model": best[1],
                }  # fmt: skip
                save_state(checkpoint, state, kind=KIND, identity=identity)
            if progress is not None:
                progress(row)
        if last == o.epochs and math.isinf(best[0]):
            raise FloatingPointError(
                f"the validation loss was finite in none of {last} epochs; lower lr={o.lr}, or look for "
                "eigenvalues that are far from those of the training part"
            )
        if last == o.epochs:
            self.model.load_state_dict(best[1])
        self.model.eval()
        return rows

    def _epoch(self, epoch: int, optimizer: torch.optim.Optimizer) -> float:
        places = torch.from_numpy(self.split.train)
        generator = torch.Generator().manual_seed(1_000_003 * self.seed + epoch)
        order = places[torch.randperm(len(places), generator=generator)]
        self.model.train()
        total = 0.0
        for rows in order.split(self.options.batch):
            loss = eno_loss(self.model(self._x[rows]), self._y[rows], self.model.offset)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(rows)
        if not math.isfinite(total):
            raise FloatingPointError(f"the loss of epoch {epoch} is not finite; lower lr={self.options.lr}")
        return total / len(order)

    @torch.no_grad()
    def _validate(self) -> float:
        """Loss of the validation part."""
        self.model.eval()
        rows = torch.from_numpy(self.split.validation)
        return float(eno_loss(self.model(self._x[rows]), self._y[rows], self.model.offset))
