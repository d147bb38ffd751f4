"""Where each factor lives: how well every layer alone predicts every label, and what kind of space it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from icml_loes.baselines import matrix_entropies, two_nn_dimension
from icml_loes.layer_grams import LayerGrams
from icml_loes.layers import Embeddings, as_layers
from icml_loes.leave_one_out import LeaveOneOut
from icml_loes.scores import classification_scores
from icml_loes.targets import as_targets


@dataclass(frozen=True)
class LayerProfile:
    """Properties of each layer.

    Attributes:
        names: of the layers.
        isotropy: mean over deviation of the spectrum, over all D eigenvalues.
        entropy: of the spectrum, in nats.
        dimension: intrinsic, by TwoNN.
        redundancy: of all pairs.
        loss: by label, leave-one-out mean squared error of ridge regression on each layer.
        score: by label, balanced accuracy of its left-out predictions, or R^2 of real numbers.
        curvature: mean angle of token paths, where it was collected.
    """

    names: list[str]
    isotropy: list[float]
    entropy: list[float]
    dimension: list[float]
    redundancy: list[list[float]]
    loss: dict[str, list[float]]
    score: dict[str, list[float]]
    curvature: list[float] | None = None

    def depth(self, label: str) -> float:
        """Where a label lives: mean layer number, weighted by how much each explains beyond the worst layer.

        Raises:
            KeyError: no such label.
        """
        explained = np.max(self.loss[label]) - np.asarray(self.loss[label])
        if not explained.sum() > 0:
            return float(np.mean(np.arange(len(explained))))
        return float(explained @ np.arange(len(explained)) / explained.sum())

    def best(self, label: str) -> int:
        """The layer of least left-out error."""
        return int(np.argmin(self.loss[label]))

    def table(self) -> list[dict[str, Any]]:
        """One row a layer."""
        rows = []
        for i, name in enumerate(self.names):
            row: dict[str, Any] = {
                "layer": i,
                "name": name,
                "isotropy": self.isotropy[i],
                "entropy": self.entropy[i],
                "dimension": self.dimension[i],
            }
            if self.curvature is not None:
                row["curvature"] = self.curvature[i]
            for label in self.loss:
                row[f"loss_{label}"] = self.loss[label][i]
                row[f"score_{label}"] = self.score[label][i]
            rows.append(row)
        return rows


def layer_profile(
    embeddings: Embeddings,
    labels: Mapping[str, Any] | None = None,
    *,
    curvatures: Any = None,
    class_weight: Any = None,
) -> LayerProfile:
    """Profile of all layers.

    Args:
        embeddings: as ``select_layers`` takes them.
        labels: by name, targets as ``select_layers`` takes them.
        curvatures: [n, L], from ``collect_states(curvature=True)``.
        class_weight: of the classes, in every ridge regression.

    Raises:
        TypeError, ValueError: embeddings or targets in no known form.

    Example:
        >>> e = np.random.default_rng(0).normal(size=(30, 4, 6))
        >>> layer_profile(e, {"first": e[:, 1, 0]}).best("first")
        1
    """
    layers = as_layers(embeddings)
    grams = LayerGrams(layers, "dimension", wide=layers.examples <= 4 * max(layers.widths))
    loss: dict[str, list[float]] = {}
    score: dict[str, list[float]] = {}
    wanted = {
        name: as_targets(
            v,
            layers.examples,
            class_weight=class_weight if np.asarray(v).dtype.kind != "f" else None,
            device=layers.values[0].device,
        )
        for name, v in (labels or {}).items()
    }
    for name, targets in wanted.items():
        if targets.matrix is None:
            raise ValueError(f"label {name!r} is None; give targets")
        loss[name], score[name] = [], []
        errors = LeaveOneOut(layers, targets)
        for i in range(len(layers)):
            if not bool(errors.columns(i).any()):
                spread = targets.matrix - targets.matrix.mean(0)
                loss[name].append(float(spread.square().mean()))
                score[name].append(0.0)
                continue
            found = errors.error([i])
            loss[name].append(found.loss)
            score[name].append(_score(targets, found.prediction))
    bends = None if curvatures is None else np.nanmean(np.asarray(curvatures, dtype=float), axis=0).tolist()
    return LayerProfile(
        layers.names,
        grams.isotropies(),
        matrix_entropies(layers.values),
        [_dimension(v.cpu().numpy()) for v in layers.values],
        grams.redundancies().tolist(),
        loss,
        score,
        bends,
    )


class ProfileEvaluator:
    """An evaluator of embeddings: figures by name, ``isotropy/3`` or ``score/topic/5``."""

    def evaluate(self, subject: Embeddings, *, labels: Mapping[str, Any] | None = None) -> dict[str, float]:
        """Figures of a profile.

        Raises:
            TypeError, ValueError: see ``layer_profile``.
        """
        found = layer_profile(subject, labels)
        figures: dict[str, float] = {}
        for i in range(len(found.names)):
            for what in ("isotropy", "entropy", "dimension"):
                figures[f"{what}/{i}"] = float(getattr(found, what)[i])
            for j in range(i):
                figures[f"redundancy/{i}/{j}"] = float(found.redundancy[i][j])
            for label in found.loss:
                figures[f"loss/{label}/{i}"] = float(found.loss[label][i])
                figures[f"score/{label}/{i}"] = float(found.score[label][i])
        for label in found.loss:
            figures[f"depth/{label}"] = found.depth(label)
        return figures


def _score(targets: Any, prediction: Any) -> float:
    if targets.labels is not None:
        scores = classification_scores(targets.labels.cpu().numpy(), prediction.argmax(1).cpu().numpy())
        return scores["balanced_accuracy"]
    error = float((prediction - targets.matrix).square().mean())
    spread = float((targets.matrix - targets.matrix.mean(0)).square().mean())
    return 1 - error / spread if spread > 0 else 0.0


def _dimension(x: np.ndarray) -> float:
    try:
        return two_nn_dimension(x)
    except ValueError:
        return 0.0
