"""The greedy construction of the paper: which layer next, given those that are chosen.

    1. s_l = mse(X_l, Y) + alpha (1 - iso(X_l));                              the least is j_1
    2. s_l = mse(Xt_l, R) + alpha (1 - iso(X_l)) + gamma red(X_l, S) - eta tri(Xt_l),   until k are chosen

R is what the ridge predictions of the chosen layers leave of Y; Xt_l is the part of X_l orthogonal to them
(arXiv 2605.23033, algorithm of the official library). Where the complement is empty (the chosen span n - 1
directions, fewer where examples repeat) mse and tri are the same for all, and only iso and red choose: the
trace says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_loes.complement_dual import DualComplements
from icml_loes.complement_primal import PrimalComplements
from icml_loes.layer_grams import LayerGrams
from icml_loes.layers import Layers
from icml_loes.ridge import weighted_gram
from icml_loes.targets import Targets
from icml_loes.triangles import class_means, draw_triples

NOTHING_LEFT = 1e-6
"""The complement is empty where no candidate keeps this part of its variance. With duplicates among the
examples that happens below rank n - 1."""
NEGLIGIBLE_SPREAD = 1e-9
"""A term whose spread over layers is below this part of its size is equal for all but for rounding."""


@dataclass(frozen=True)
class Weights:
    """Weights and ridges of the terms; the defaults are the official ones.

    Attributes:
        reg: lam of the ridge.
        alpha: of isotropy.
        gamma: of redundancy.
        eta: of the triangles.
        orth_reg: eps of the orthogonal complement, or ``"auto"``.
        triangles: see ``draw_triples``.
        normalize_terms: divide each term by its standard deviation over the candidates, and each layer by its
            norm.
        pca: keep so many principal columns of each layer for ridge and complement; ``"auto"`` for n / (2 k).
    """

    reg: float = 1e-3
    alpha: float = 1.0
    gamma: float = 0.5
    eta: float = 0.1
    orth_reg: float | str = 1e-6
    triangles: str = "sample:200"
    normalize_terms: bool = False
    pca: int | str | None = None


def prepared_layer(
    value: Tensor, weights: Tensor, *, normalize: bool, pca: int | None
) -> Float[Tensor, "n dim"]:
    """X_l in float64: centred by the weighted mean, rows times sqrt(w), and if asked cut to principal columns
    and scaled to a mean squared row norm of 1."""
    x = value.double()
    x = x - x.mean(0)
    x = (x - (weights @ x) / weights.sum()) * weights.sqrt()[:, None]
    if pca is not None and pca < min(x.shape):
        u, s, _ = torch.linalg.svd(x, full_matrices=False)
        x = u[:, :pca] * s[:pca]
    if normalize:
        x = x * (len(x) ** 0.5 / x.norm())
    return x


def prepared_gram(k: Tensor, weights: Tensor, *, normalize: bool, pca: int | None) -> Float[Tensor, "n n"]:
    """The Gram matrix of ``prepared_layer``, from that of the centred layer."""
    if not bool((weights == 1).all()):
        k = weighted_gram(k, weights)
    if pca is not None and pca < len(k):
        values, vectors = torch.linalg.eigh(k)
        top = vectors[:, -pca:] * values[-pca:].clamp_min(0).sqrt()
        k = top @ top.mT
    if normalize:
        k = k * (len(k) / k.diagonal().sum())
    return k


def greedy_selection(
    layers: Layers,
    targets: Targets,
    usable: Sequence[int],
    k: int,
    weights: Weights,
    generator: torch.Generator,
    progress: Callable[[int], None] | None = None,
) -> tuple[list[int], list[dict[str, Any]], dict[str, Any]]:
    """Choose k of the usable layers.

    Returns:
        The chosen layers in order; a record of each step with every term of every candidate; and the profile:
        ridge loss and isotropy of each layer, and redundancies where they are known.
    """
    n = layers.examples
    pca = _principal_columns(weights.pca, n, k)
    widths = [d if pca is None else min(d, pca, n) for d in layers.widths]
    dual = n <= min(widths[i] for i in usable) or weights.orth_reg == "auto"
    definition = "dimension" if weights.normalize_terms else "paper"
    grams = LayerGrams(layers, definition, wide=dual or n <= max(layers.widths))
    device = layers.values[0].device
    w = torch.ones(n, dtype=torch.float64, device=device) if targets.weights is None else targets.weights
    # sqrt(w) (Y - weighted mean), by which ridge regression is an unweighted one without an intercept
    y = None if targets.matrix is None else targets.matrix.to(device)
    residual = None if y is None else (y - (w @ y) / w.sum()) * w.sqrt()[:, None]
    state = _complements(dual, layers, grams, targets, weights, w, pca, residual, ())
    isotropies = grams.isotropies()
    redundancy = grams.redundancies() if grams.wide else None
    chosen: list[int] = []
    trace: list[dict[str, Any]] = []
    known = torch.zeros(0, len(layers), dtype=torch.float64, device=device)
    classes = 0 if targets.labels is None else len(targets.classes)
    for step in range(k):
        candidates = [i for i in usable if i not in chosen]
        triples = draw_triples(classes, weights.triangles, generator) if step else draw_triples(0, "all")
        losses, areas = state.losses(candidates, residual, triples)
        near = known[:, candidates].amax(0) if step else losses.new_zeros(len(candidates))
        exhausted = step > 0 and state.left_over < NOTHING_LEFT and residual is not None
        terms = {
            "loss": losses.tolist(),
            "isotropy": [isotropies[i] for i in candidates],
            "redundancy": near.tolist(),
            "area": areas.tolist(),
        }
        scores, notes = _scores(terms, weights, exhausted, residual is not None, step)
        best = min(range(len(candidates)), key=lambda c: scores[c])
        layer = candidates[best]
        if step and classes == 2:
            notes.append("two classes span no triangle: the term is 0")
        elif step and residual is not None and not classes:
            notes.append(f"{targets.kind} targets have no class centroids: the term is 0")
        if exhausted:
            notes.append(
                "rank exhausted: the complement is empty, only isotropy and redundancy tell layers apart"
            )
        trace.append(
            {
                "step": step,
                "candidates": candidates,
                **terms,
                "score": scores,
                "chosen": layer,
                "rank": state.rank,
                "exhausted": exhausted,
                "orth_reg": _shrinkage(state, weights),
                "triples": triples.tolist(),
                "notes": notes,
            }
        )
        chosen.append(layer)
        if residual is not None and step + 1 < k:
            residual = residual - state.prediction(layer, residual)
        row = redundancy[layer] if redundancy is not None else grams.redundancy_with(layer)
        known = torch.cat([known, row[None].to(known)])
        if progress is not None:
            progress(step + 1)
        if step + 1 == k:
            break
        if residual is None:
            continue
        if isinstance(state, PrimalComplements) and n <= sum(widths[i] for i in chosen):
            if not grams.wide:
                grams = LayerGrams(layers, definition, wide=True)
            state = _complements(True, layers, grams, targets, weights, w, pca, None, chosen)
        else:
            state.add(layer)
    _warn_of_exhaustion(trace, layers)
    first = dict(zip(trace[0]["candidates"], trace[0]["loss"], strict=True))
    profile = {
        "ridge_loss": [first.get(i) if y is not None else None for i in range(len(layers))],
        "isotropy": isotropies,
        "redundancy": None if redundancy is None else redundancy.tolist(),
    }
    return chosen, trace, profile


def _principal_columns(pca: int | str | None, n: int, k: int) -> int | None:
    if pca is None:
        return None
    if pca == "auto":
        return max(1, n // (2 * k))
    if isinstance(pca, str) or pca < 1:
        raise ValueError(f"pca={pca!r} is neither None, 'auto' nor a number of columns")
    return int(pca)


def _complements(
    dual: bool,
    layers: Layers,
    grams: LayerGrams,
    targets: Targets,
    weights: Weights,
    w: Tensor,
    pca: int | None,
    residual: Tensor | None,
    chosen: Sequence[int],
) -> DualComplements | PrimalComplements:
    how: dict[str, Any] = {"normalize": weights.normalize_terms, "pca": pca}
    roots = w.sqrt()
    centroids = (
        None if targets.labels is None else class_means(targets.labels, len(targets.classes)).to(w.device)
    )
    if not dual:
        assert not isinstance(weights.orth_reg, str)
        values = [prepared_layer(v, w, **how) for v in layers.values]
        return PrimalComplements(values, roots, centroids, reg=weights.reg, orth_reg=weights.orth_reg)
    plain = pca is None and not weights.normalize_terms and bool((w == 1).all())
    state = DualComplements(
        grams.gram if plain else _Remembered(lambda i: prepared_gram(grams.gram(i), w, **how)),
        roots,
        centroids,
        reg=weights.reg,
        orth_reg=weights.orth_reg,
        targets=residual,
    )
    for layer in chosen:
        state.add(layer)
    return state


class _Remembered:
    """Results of a function of the layer, kept up to the limit of Gram matrices."""

    def __init__(self, make: Callable[[int], Tensor]) -> None:
        from icml_loes.layer_grams import KEPT_BYTES

        self._make, self._room = make, KEPT_BYTES
        self._kept: dict[int, Tensor] = {}

    def __call__(self, layer: int) -> Tensor:
        if layer not in self._kept:
            made = self._make(layer)
            self._room -= made.numel() * 8
            if self._room < 0:
                return made
            self._kept[layer] = made
        return self._kept[layer]


def _scores(
    terms: dict[str, list[float]], weights: Weights, exhausted: bool, supervised: bool, step: int
) -> tuple[list[float], list[str]]:
    """The score of each candidate: the less the better."""
    signs = {
        "loss": 1.0 if supervised else 0.0,
        "isotropy": -weights.alpha,
        "redundancy": weights.gamma if step else 0.0,
        "area": -weights.eta if supervised and step else 0.0,
    }
    notes: list[str] = []
    total = torch.zeros(len(terms["loss"]), dtype=torch.float64)
    if not weights.normalize_terms:
        total += weights.alpha
    for name, sign in signs.items():
        values = torch.tensor(terms[name], dtype=torch.float64)
        if sign == 0.0:
            continue
        if weights.normalize_terms:
            spread = float(values.std(correction=0))
            if spread <= NEGLIGIBLE_SPREAD * float(values.abs().max()) or (
                exhausted and name in ("loss", "area")
            ):
                notes.append(f"{name} does not tell the candidates apart and was left out")
                continue
            values = (values - values.mean()) / spread
        total += sign * values
    return total.tolist(), notes


def _shrinkage(state: DualComplements | PrimalComplements, weights: Weights) -> float | str | None:
    return state.epsilon if isinstance(state, DualComplements) and state.rank else weights.orth_reg


def _warn_of_exhaustion(trace: list[dict[str, Any]], layers: Layers) -> None:
    first = next((row["step"] for row in trace if row["exhausted"]), None)
    if first is not None:
        names = ", ".join(layers.names[row["chosen"]] for row in trace[:first])
        warnings.warn(
            f"with {layers.examples} examples the columns of layer {names} leave nothing orthogonal to them: "
            "from the "
            f"layer in place {first + 1} on, only isotropy and redundancy chose. More examples, pca='auto', "
            "orth_reg='auto' or mode='loo' give labels their say",
            UserWarning,
            stacklevel=4,
        )
