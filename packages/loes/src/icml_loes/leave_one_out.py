"""Selection by leave-one-out error (an extension): the layers whose ridge regression predicts unseen examples
best.

    Z_l = columns of X_l, standardised, over sqrt(D_l);   K_S = sum of Z_l Z_l^T
    s_l = min over lam of mean (r_i / (1 - h_ii))^2 on K_S + K_l

Neither the training error, which n <= D columns fit away, nor terms whose size depends on a layer's scale
occur. It costs one matrix inverse a candidate and ridge.
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
from icml_loes.ridge import leave_one_out
from icml_loes.targets import Targets


def standardized_gram(x: Float[Tensor, "n dim"]) -> Float[Tensor, "n n"]:
    """Gram matrix of standardised columns over D; constant columns are 0."""
    value = x.double()
    deviation = value.std(0, correction=0)
    scale = torch.where(deviation > 0, deviation, 1.0) * x.shape[1] ** 0.5
    return batched_gram((value / scale)[:, None])[0]


def leave_one_out_selection(
    layers: Layers,
    targets: Targets,
    usable: Sequence[int],
    k: int,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[int], list[dict[str, Any]], dict[str, Any]]:
    """Choose k of the usable layers by leave-one-out error; returns what ``greedy_selection`` returns."""
    n, device = layers.examples, layers.values[0].device
    assert targets.matrix is not None
    y = targets.matrix.to(device)
    w = None if targets.weights is None else targets.weights.to(device)
    grams = {i: standardized_gram(layers.values[i]) for i in usable}
    moments = LayerGrams(layers, "dimension", wide=n <= max(layers.widths))
    total = next(iter(grams.values())).new_zeros(n, n)
    chosen: list[int] = []
    trace: list[dict[str, Any]] = []
    for step in range(k):
        candidates = [i for i in usable if i not in chosen]
        found = [leave_one_out(total + grams[i], y, w) for i in candidates]
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
        total = total + grams[candidates[best]]
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

    assert targets.matrix is not None
    y = targets.matrix.to(layers.values[0].device)
    total = sum(standardized_gram(layers.values[i]) for i in chosen)
    assert isinstance(total, Tensor)
    if not float(total.diagonal().sum()) > 0:
        return {}
    found = leave_one_out(total, y, targets.weights)
    if targets.labels is not None:
        return classification_scores(targets.labels.cpu().numpy(), found.prediction.argmax(1).cpu().numpy())
    error = float((found.prediction - y).square().mean())
    spread = float((y - y.mean(0)).square().mean())
    return {"mean_squared_error": error, "r2": 1 - error / spread if spread > 0 else float("-inf")}
