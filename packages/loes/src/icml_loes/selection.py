"""Which layers to pool: the paper's greedy selection from labelled embeddings, and the leave-one-out variant.

LOES, "Uncovering the Latent Potential of Deep Intermediate Representations", arXiv 2605.23033.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from icml_loes.fused_layers import mean_norm
from icml_loes.greedy import Weights, greedy_selection
from icml_loes.layers import Embeddings, Layers, as_layers, constant_layers
from icml_loes.leave_one_out import leave_one_out_selection, selection_metrics
from icml_loes.result import LoesResult
from icml_loes.targets import Targets, as_targets

MODES = ("paper", "loo")


@dataclass(frozen=True)
class SelectionProblem:
    """What ``LayerSelection`` solves: embeddings of all layers, and targets or None."""

    embeddings: Embeddings
    targets: Any = None


@dataclass(frozen=True)
class LayerSelection:
    """A solver of ``SelectionProblem``; the options are those of ``select_layers``."""

    k: int = 4
    task: str = "auto"
    mode: str = "paper"
    weights: Weights = field(default_factory=Weights)
    class_weight: str | Mapping[Any, float] | None = None
    clip_k: bool = False
    seed: int = 0

    def solve(self, problem: SelectionProblem, **options: Any) -> LoesResult:
        """Select layers; ``options`` override the solver's own.

        Raises:
            ValueError: see ``select_layers``.
        """
        given = {
            "k": self.k,
            "task": self.task,
            "mode": self.mode,
            "class_weight": self.class_weight,
            "clip_k": self.clip_k,
            "generator": self.seed,
            **asdict(self.weights),
        }
        return select_layers(problem.embeddings, problem.targets, **{**given, **options})


def select_layers(
    embeddings: Embeddings,
    targets: Any = None,
    k: int = 4,
    *,
    task: str = "auto",
    mode: str = "paper",
    reg: float = 1e-3,
    alpha: float = 1.0,
    gamma: float = 0.5,
    eta: float = 0.1,
    orth_reg: float | str = 1e-6,
    triangles: str = "sample:200",
    normalize_terms: bool = False,
    pca: int | str | None = None,
    class_weight: str | Mapping[Any, float] | None = None,
    generator: torch.Generator | int | None = None,
    names: Sequence[str] | None = None,
    attention_mask: Any = None,
    pooling: str = "mean",
    clip_k: bool = False,
    metrics: bool = True,
    device: str | torch.device | None = None,
    progress: Callable[[int], None] | None = None,
) -> LoesResult:
    """Choose k of L layers.

    Args:
        embeddings: [n, L, D], a list of L arrays [n, D_l], a mapping from names to such, or hidden states.
        targets: [n] classes, [n, C] one-hot, soft or multi-hot labels, real numbers [n] or [n, q], or None.
        k: how many.
        task: ``"classification"``, ``"regression"``, ``"label_free"``, or ``"auto"`` by the targets.
        mode: ``"paper"``, or ``"loo"`` (an extension): least leave-one-out error of ridge regression on the
            standardised layers together; alpha, gamma, eta, reg and what follows them do not matter then.
        reg: lam of the ridge.
        alpha, gamma, eta: weights of isotropy, redundancy and triangles.
        orth_reg: eps of the orthogonal complement; ``"auto"`` (an extension) shrinks by leave-one-out
            instead, so that the complement is never empty.
        triangles: ``"sample:200"`` for min(200, 3 C) random triples, ``"all"`` for every one.
        normalize_terms: (an extension) divide each term by its spread over the candidates and each layer by
            its norm, so that neither the scale of a layer nor that of a term matters.
        pca: (an extension) principal columns kept of each layer; ``"auto"`` for n / (2 k).
        class_weight: ``"balanced"``, or a weight a class: of every ridge term.
        generator: of the triples: a seed or a generator on the CPU; seed 0 by default.
        names: of the layers.
        attention_mask, pooling: of hidden states, see ``as_layers``.
        clip_k: take all layers where k is larger than their number, instead of refusing.
        metrics: whether to compute ``LoesResult.metrics``.
        device: where to work.
        progress: called with the number of layers chosen so far.

    Raises:
        TypeError, ValueError: embeddings or targets in no known form; NaN; too few examples; one class only;
            targets missing or of another length; k below 1 or above the number of layers that vary; an
            unknown option.

    Example:
        >>> e = torch.randn(40, 6, 8, generator=torch.Generator().manual_seed(0))
        >>> len(select_layers(e, [0, 1] * 20, k=2).selected)
        2
    """
    if mode not in MODES:
        raise ValueError(f"mode={mode!r} is not one of {', '.join(MODES)}")
    weights = _weights(reg, alpha, gamma, eta, orth_reg, triangles, normalize_terms, pca)
    layers = as_layers(embeddings, names=names, attention_mask=attention_mask, pooling=pooling, device=device)
    found = as_targets(
        targets, layers.examples, task=task, class_weight=class_weight, device=layers.values[0].device
    )
    if mode == "loo" and found.kind == "none":
        raise ValueError(
            "mode='loo' needs targets; without them there is mode='paper' with task='label_free'"
        )
    usable, notes = _usable(layers)
    if isinstance(k, bool) or not isinstance(k, int) or k < 1:
        raise ValueError(f"k={k!r}; expected a whole number from 1 on")
    if k > len(usable):
        if not clip_k:
            raise ValueError(
                f"k={k} of {len(usable)} layers that vary; take fewer, or clip_k=True for all of them"
            )
        k = len(usable)
    if found.kind == "none" and weights.orth_reg == "auto":
        weights = replace(weights, orth_reg=1e-6)
    if mode == "loo":
        chosen, trace, profile = leave_one_out_selection(layers, found, usable, k, progress)
    else:
        how = _generator(generator)
        chosen, trace, profile = greedy_selection(layers, found, usable, k, weights, how, progress)
    return LoesResult(
        chosen,
        [row["score"][row["candidates"].index(row["chosen"])] for row in trace],
        layers.names,
        trace,
        profile,
        selection_metrics(layers, found, chosen) if metrics and found.kind != "none" else {},
        found.kind,
        [mean_norm(layers.values[i].cpu().numpy()) for i in chosen],
        {"k": k, "task": task, "mode": mode, "class_weight": class_weight, **asdict(weights)},
        [*layers.notes, *notes],
    )


def _weights(
    reg: float,
    alpha: float,
    gamma: float,
    eta: float,
    orth_reg: float | str,
    triangles: str,
    normalize_terms: bool,
    pca: int | str | None,
) -> Weights:
    for name, value in (("reg", reg), ("orth_reg", orth_reg)):
        if value == "auto" and name == "orth_reg":
            continue
        if isinstance(value, str) or not 0 < float(value) < float("inf"):
            raise ValueError(
                f"{name}={value!r}; expected a number above 0{' or auto' * (name == 'orth_reg')}"
            )
    for name, value in (("alpha", alpha), ("gamma", gamma), ("eta", eta)):
        if not 0 <= float(value) < float("inf"):
            raise ValueError(f"{name}={value!r}; expected a number from 0 on")
    shrinkage = orth_reg if isinstance(orth_reg, str) else float(orth_reg)
    return Weights(
        float(reg), float(alpha), float(gamma), float(eta), shrinkage, triangles, bool(normalize_terms), pca
    )


def _usable(layers: Layers) -> tuple[list[int], list[str]]:
    constant = set(constant_layers(layers))
    if len(constant) == len(layers):
        raise ValueError(
            f"all {len(layers)} layers are constant over the examples; there is nothing to choose by"
        )
    notes = []
    if constant:
        named = ", ".join(layers.names[i] for i in sorted(constant))
        notes.append(f"constant over the examples, and left out: {named}")
        warnings.warn(
            f"layers {named} are constant over the examples and are left out", UserWarning, stacklevel=3
        )
    return [i for i in range(len(layers)) if i not in constant], notes


def _generator(given: torch.Generator | int | None) -> torch.Generator:
    if isinstance(given, torch.Generator):
        return given
    return torch.Generator().manual_seed(0 if given is None else int(given))


def problem_targets(problem: SelectionProblem, options: Mapping[str, Any]) -> tuple[Layers, Targets]:
    """Layers and targets of a problem, prepared as a selection with these options had them."""
    layers = as_layers(problem.embeddings)
    return layers, as_targets(
        problem.targets,
        layers.examples,
        task=options["task"],
        class_weight=options["class_weight"],
        device=layers.values[0].device,
    )
