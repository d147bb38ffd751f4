"""Selection by leave-one-out error (an extension): the layers whose ridge regression predicts unseen examples
best.

    Z_l = columns of X_l, standardised, over sqrt(D_l);   K_S = sum of Z_l Z_l^T
    s_l = min over lam of mean (r_i / (1 - h_ii))^2 on K_S + K_l

Neither the training error, which n <= D columns fit away, nor terms whose size depends on a layer's scale
occur. A candidate costs one decomposition of its columns' products, where these are fewer than the examples,
and one matrix inverse for each ridge elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from icml_kernels import batched_gram
from jaxtyping import Float
from torch import Tensor

from icml_loes.layer_grams import LayerGrams
from icml_loes.layers import Layers
from icml_loes.ridge import LeftOut, leave_one_out, leave_one_out_columns
from icml_loes.targets import Targets


def standardized_columns(x: Float[Tensor, "n dim"]) -> Float[Tensor, "n dim"]:
    """Columns of deviation 1 over sqrt(D), in float64; constant columns are 0."""
    value = x.double()
    value = value - value.mean(0)
    deviation = value.std(0, correction=0)
    return value / (torch.where(deviation > 0, deviation, 1.0) * x.shape[1] ** 0.5)


class LeaveOneOut:
    """Left-out errors of sets of layers, by columns where these are fewer than the rows, by Gram matrices
    elsewhere."""

    def __init__(self, layers: Layers, targets: Targets) -> None:
        assert targets.matrix is not None
        device = layers.values[0].device
        self.layers = layers
        self.targets = targets.matrix.to(device)
        self.weights = None if targets.weights is None else targets.weights.to(device)
        self._grams: dict[int, Tensor] = {}
        self._columns: dict[int, Tensor] = {}

    def error(self, chosen: Sequence[int]) -> LeftOut:
        """Ridge regression on these layers, at its best ridge."""
        if sum(self.layers.widths[i] for i in chosen) < self.layers.examples:
            columns = torch.cat([self.columns(i) for i in chosen], 1)
            return leave_one_out_columns(columns, self.targets, self.weights)
        total = (
            torch.stack([self.gram(i) for i in chosen]).sum(0) if len(chosen) > 1 else self.gram(chosen[0])
        )
        return leave_one_out(total, self.targets, self.weights)

    def columns(self, layer: int) -> Float[Tensor, "n dim"]:
        """Standardised columns of a layer."""
        if layer not in self._columns:
            self._columns[layer] = standardized_columns(self.layers.values[layer])
        return self._columns[layer]

    def gram(self, layer: int) -> Float[Tensor, "n n"]:
        """Gram matrix of a layer's standardised columns."""
        if layer not in self._grams:
            self._grams[layer] = batched_gram(standardized_columns(self.layers.values[layer])[:, None])[0]
        return self._grams[layer]


def leave_one_out_selection(
    layers: Layers,
    targets: Targets,
    usable: Sequence[int],
    k: int,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[int], list[dict[str, Any]], dict[str, Any]]:
    """Choose k of the usable layers by leave-one-out error; returns what ``greedy_selection`` returns."""
    errors = LeaveOneOut(layers, targets)
    moments = LayerGrams(layers, "dimension", wide=layers.examples <= max(layers.widths))
    chosen: list[int] = []
    trace: list[dict[str, Any]] = []
    for step in range(k):
        candidates = [i for i in usable if i not in chosen]
        found = [errors.error([*chosen, i]) for i in candidates]
        best = min(range(len(candidates)), key=lambda c: found[c].loss)
        losses = [f.loss for f in found]
        trace.append(
            {
                "step": step,
                "candidates": candidates,
                "loss": losses,
                "lam": [f.lam for f in found],
                "score": losses,
                "chosen": candidates[best],
                "exhausted": False,
                "notes": [],
            }
        )
        chosen.append(candidates[best])
        if progress is not None:
            progress(step + 1)
    first = dict(zip(trace[0]["candidates"], trace[0]["loss"], strict=True))
    profile = {
        "ridge_loss": [first.get(i) for i in range(len(layers))],
        "isotropy": moments.isotropies(),
        "redundancy": moments.redundancies().tolist() if moments.wide else None,
    }
    return chosen, trace, profile


def selection_metrics(layers: Layers, targets: Targets, chosen: Sequence[int]) -> dict[str, float]:
    """What ridge regression on the chosen layers makes of left-out examples.

    Classes: accuracy, balanced accuracy and Matthews correlation; other targets: mean squared error and R^2.
    """
    from icml_loes.scores import classification_scores

    errors = LeaveOneOut(layers, targets)
    if not any(bool(errors.columns(i).any()) for i in chosen):
        return {}
    found, y = errors.error(chosen), errors.targets
    if targets.labels is not None:
        return classification_scores(targets.labels.cpu().numpy(), found.prediction.argmax(1).cpu().numpy())
    error = float((found.prediction - y).square().mean())
    spread = float((y - y.mean(0)).square().mean())
    return {"mean_squared_error": error, "r2": 1 - error / spread if spread > 0 else float("-inf")}
