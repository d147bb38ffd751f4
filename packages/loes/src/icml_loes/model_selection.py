"""Selection of a model's layers: its states are collected in one pass, a stratified part of them chooses."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from icml_loes.calibration import calibration_split
from icml_loes.collector import Collected, collect_states
from icml_loes.result import LoesResult
from icml_loes.selection import LayerSelection, select_layers

N_CAL = 2000
"""Calibration examples by default, as in the paper's image and text configurations."""


def select_layers_from_model(
    model: Any,
    batches: Iterable[Any],
    k: int = 4,
    *,
    layers: str | Sequence[str] | None = None,
    pooling: str = "auto",
    target_key: str = "labels",
    n_cal: int = N_CAL,
    collect: Mapping[str, Any] | None = None,
    seed: int = 0,
    **options: Any,
) -> LoesResult:
    """Choose k of a model's layers from labelled batches.

    Batches are read until ``n_cal`` examples are reached, so give them shuffled. Of more, a stratified
    ``n_cal`` choose.

    Args:
        model: torch module or SentenceTransformer.
        batches: a DataLoader, or any iterable of batches.
        k: how many layers.
        layers, pooling, target_key: see ``collect_states``.
        n_cal: calibration examples.
        collect: further options of ``collect_states``, such as ``tokenizer``, ``final_norm`` or ``cache``.
        seed: of the stratified choice, and of the triangles.
        options: of ``select_layers``.

    Raises:
        ValueError: see ``collect_states`` and ``select_layers``; a class with fewer than two examples.
    """
    problem = ModelProblem(
        model, batches, layers=layers, pooling=pooling, target_key=target_key, n_cal=n_cal, seed=seed,
        collect=dict(collect or {}), supervised=options.get("task") != "label_free",
    )  # fmt: skip
    return _select(problem, k=k, **{"generator": seed, **options})


@dataclass(frozen=True)
class ModelProblem:
    """A model and batches for it; what ``ModelLayerSelection`` solves.

    Attributes:
        model, batches, layers, pooling, target_key, n_cal, seed, collect: as in ``select_layers_from_model``.
        supervised: whether targets are wanted.
    """

    model: Any
    batches: Iterable[Any]
    layers: str | Sequence[str] | None = None
    pooling: str = "auto"
    target_key: str = "labels"
    n_cal: int = N_CAL
    seed: int = 0
    collect: dict[str, Any] = field(default_factory=dict)
    supervised: bool = True

    @cached_property
    def collected(self) -> Collected:
        """States of the calibration examples."""
        if self.n_cal < 2:
            raise ValueError(f"n_cal={self.n_cal}; at least 2 examples are needed")
        found = collect_states(
            self.model, self.batches, layers=self.layers, pooling=self.pooling, target_key=self.target_key,
            max_examples=self.n_cal, **self.collect,
        )  # fmt: skip
        n = len(found.layers[0])
        if self.supervised and found.targets is None:
            raise ValueError(
                f"the batches have no targets under {self.target_key!r}; give target_key=, pairs (inputs, "
                "targets), or "
                "task='label_free'"
            )
        targets = found.targets
        if targets is None or targets.ndim > 1 or targets.dtype.kind == "f":
            kept = np.arange(min(n, self.n_cal))
        else:
            kept, _ = calibration_split(targets, min(n, self.n_cal), seed=self.seed)
        if len(kept) == n:
            return found
        bends = found.curvatures
        return replace(
            found,
            layers=[v[kept] for v in found.layers],
            targets=None if targets is None else targets[kept],
            curvatures=None if bends is None else bends[kept],
        )

    @property
    def embeddings(self) -> dict[str, Tensor]:
        """States by name, as ``select_layers`` takes them."""
        return dict(zip(self.collected.names, self.collected.layers, strict=True))

    @property
    def targets(self) -> np.ndarray | None:
        """Of the calibration examples."""
        return self.collected.targets if self.supervised else None


@dataclass(frozen=True)
class ModelLayerSelection:
    """A solver of ``ModelProblem``."""

    selection: LayerSelection = field(default_factory=LayerSelection)

    def solve(self, problem: ModelProblem, **options: Any) -> LoesResult:
        """Collect states and select layers; ``options`` are those of ``select_layers``.

        Raises:
            ValueError: see ``select_layers_from_model``.
        """
        found = self.selection.solve(problem, **options)  # type: ignore[arg-type]
        return _with_origin(found, problem.collected)


def _select(problem: ModelProblem, **options: Any) -> LoesResult:
    return _with_origin(select_layers(problem.embeddings, problem.targets, **options), problem.collected)


def _with_origin(result: LoesResult, collected: Collected) -> LoesResult:
    notes = [*result.notes, *collected.notes]
    return replace(result, notes=notes, dropped=list(collected.dropped), pooling=collected.pooling)
