"""A selection computed again by columns and eigenvalues, without Gram matrices or any of the
reformulations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from icml_loes.direct import isotropy_by_eigenvalues, mean_triangle_area, redundancy_by_products
from icml_loes.greedy import Weights, prepared_layer
from icml_loes.layers import Layers
from icml_loes.targets import Targets

if TYPE_CHECKING:
    from icml_loes.result import LoesResult

TOLERANCE = 1e-5
"""Relative to a term's largest value; sums of many products in another order differ by less."""


def verify_selection(result: LoesResult, embeddings: Any, targets: Any) -> None:
    """Compare every recorded term with a direct computation, and the choice with the scores.

    Raises:
        ValueError: a term or score that differs, a choice that is not the least, layers chosen twice.
    """
    from icml_loes.selection import SelectionProblem, problem_targets

    layers, wanted = problem_targets(SelectionProblem(embeddings, targets), result.options)
    if len(set(result.selected)) != len(result.selected) or len(result.trace) != len(result.selected):
        raise ValueError(
            f"selected layers {result.selected} and a trace of {len(result.trace)} steps do not agree"
        )
    for step, row in enumerate(result.trace):
        if row["chosen"] != result.selected[step]:
            raise ValueError(
                f"step {step} chose layer {row['chosen']}, and {result.selected[step]} is returned"
            )
        best = min(row["score"])
        scale = max(abs(s) for s in row["score"])
        at = row["score"][row["candidates"].index(row["chosen"])]
        if at > best + TOLERANCE * scale or abs(at - result.scores[step]) > TOLERANCE * scale:
            raise ValueError(
                f"layer {row['chosen']} has score {at} at step {step}, where the least is {best}"
            )
    if result.options["mode"] == "loo":
        _verify_left_out(result, layers, wanted)
    else:
        _verify_greedy(result, layers, wanted)


def _verify_greedy(result: LoesResult, layers: Layers, wanted: Targets) -> None:
    options = result.options
    weights = Weights(**{name: options[name] for name in Weights.__dataclass_fields__})
    n = layers.examples
    w = torch.ones(n, dtype=torch.float64) if wanted.weights is None else wanted.weights.cpu()
    pca = max(1, n // (2 * options["k"])) if weights.pca == "auto" else weights.pca
    raw = [v.double().cpu() for v in layers.values]
    prepared = [
        prepared_layer(v, w, normalize=weights.normalize_terms, pca=None if pca is None else int(pca))
        for v in raw
    ]
    left = None
    if wanted.matrix is not None:
        y = wanted.matrix.cpu()
        left = (y - (w @ y) / w.sum()) * w.sqrt()[:, None]
    definition = "dimension" if weights.normalize_terms else "paper"
    labels = None if wanted.labels is None else wanted.labels.cpu()
    for step, row in enumerate(result.trace):
        before = result.selected[:step]
        found: dict[str, list[float]] = {"loss": [], "isotropy": [], "redundancy": [], "area": []}
        fits: dict[int, Tensor] = {}
        for i in row["candidates"]:
            x = prepared[i]
            if before and left is not None:
                s = torch.cat([prepared[j] for j in before], 1)
                inner = s.T @ s + row["orth_reg"] * torch.eye(s.shape[1], dtype=s.dtype)
                x = x - s @ torch.linalg.solve(inner, s.T @ x)
            found["isotropy"].append(isotropy_by_eigenvalues(raw[i], definition))
            found["redundancy"].append(redundancy_by_products(raw[i], [raw[j] for j in before]))
            if left is not None:
                inner = x.T @ x + weights.reg * torch.eye(x.shape[1], dtype=x.dtype)
                fits[i] = x @ torch.linalg.solve(inner, x.T @ left)
                found["loss"].append(float((left - fits[i]).square().mean()))
            triples = torch.tensor(row["triples"], dtype=torch.int64).reshape(-1, 3)
            area = 0.0
            if before and labels is not None and left is not None:
                area = mean_triangle_area(x / w.sqrt()[:, None], labels, triples)
            found["area"].append(area)
        for name, values in found.items():
            if values:
                _compare(name, step, row[name], values)
        if left is not None:
            left = left - fits[row["chosen"]]


def _verify_left_out(result: LoesResult, layers: Layers, wanted: Targets) -> None:
    assert wanted.matrix is not None
    assert wanted.weights is not None
    y, w = wanted.matrix.cpu(), wanted.weights.cpu()
    n, root = len(y), w.sqrt()[:, None]
    columns = []
    for value in layers.values:
        x = value.double().cpu()
        x = x - x.mean(0)
        deviation = x.std(0, correction=0)
        columns.append(x / torch.where(deviation > 0, deviation, 1.0) / x.shape[1] ** 0.5)
    for step, row in enumerate(result.trace):
        losses = []
        for i, relative in zip(row["candidates"], row["lam"], strict=True):
            z = torch.cat([columns[j] for j in (*result.selected[:step], i)], 1)
            z = (z - (w @ z) / w.sum()) * root
            design = torch.cat([z, root], 1)  # the intercept is a column without penalty
            lam = relative * float(z.square().sum()) / (n - 1)
            penalty = lam * torch.eye(design.shape[1], dtype=z.dtype)
            penalty[-1, -1] = 0.0
            hat = design @ torch.linalg.solve(design.T @ design + penalty, design.T)
            gap = (root * y - hat @ (root * y)) / (1 - hat.diagonal())[:, None]
            losses.append(float(gap.square().mean()))
        _compare("loss", step, row["loss"], losses)


def _compare(name: str, step: int, recorded: list[float], found: list[float]) -> None:
    scale = max(abs(v) for v in found)
    gap = max(abs(a - b) for a, b in zip(recorded, found, strict=True))
    # Below the rounding of sums of squares a loss or area is 0 in both computations.
    if gap > TOLERANCE * scale + (1e-7 if name == "area" else 1e-9):
        raise ValueError(
            f"{name} differs by {gap:.3g} of {scale:.3g} at step {step} from a direct computation"
        )
