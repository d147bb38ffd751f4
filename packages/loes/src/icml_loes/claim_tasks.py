"""Selectors side by side on one split: each chooses on the calibration examples, the rest tests."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

ENTROPY_HIGHEST, DIMENSION_HIGHEST, CURVATURE_HIGHEST = True, True, True
"""Which end the label-free baselines take: the better one of each on development splits, seeds 1000 to
1003."""
RANDOM_DRAWS = 5


def probe_scores(
    features: Sequence[np.ndarray], labels: np.ndarray, cal: np.ndarray, test: np.ndarray
) -> dict[str, float]:
    """Accuracy, balanced accuracy and Matthews correlation, in percent, of a ridge probe on concatenated
    layers, each of unit mean norm."""
    import numpy as np

    from icml_loes.probe import RidgeProbe
    from icml_loes.scores import classification_scores

    x = np.concatenate(list(features), 1)
    found = classification_scores(labels[test], RidgeProbe().fit(x[cal], labels[cal]).predict(x[test]))
    return {name: 100 * value for name, value in found.items()}


class Split:
    """Layers, labels and a split, on which selectors are compared.

    Args:
        states: [n, L, D].
        labels: [n].
        n_cal: calibration examples, stratified.
        seed: of the split, and of everything random.
    """

    def __init__(self, states: Tensor, labels: np.ndarray, n_cal: int, seed: int) -> None:
        from icml_loes.calibration import calibration_split

        self.seed, self.labels = seed, labels
        self.cal, self.test = calibration_split(labels, n_cal, seed=seed)
        self.arrays = [v.numpy().astype("float64") for v in states.unbind(1)]
        self.seen = states[self.cal]
        self.seen_labels = labels[self.cal]

    def accuracy(self, layers: Sequence[int]) -> float:
        """Of a probe on these layers, on the test part, in percent."""
        return self.scores(layers)["accuracy"]

    def scores(self, layers: Sequence[int]) -> dict[str, float]:
        """All three scores."""
        return probe_scores([self.arrays[i] for i in layers], self.labels, self.cal, self.test)

    def select(self, k: int, **options: Any) -> list[int]:
        """Layers by ``select_layers``; that a rank is exhausted is measured elsewhere."""
        from icml_loes.selection import select_layers

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = select_layers(
                self.seen, self.seen_labels, k, generator=self.seed % 2**31, metrics=False, **options
            )
        return found.selected

    def baselines(self, k: int, curvatures: Any = None) -> dict[str, float]:
        """Accuracy of last, last k, random k (mean of 5), best single, entropy, dimension and curvature."""
        import numpy as np

        from icml_loes import baselines as b

        count = len(self.arrays)
        chosen: dict[str, list[int]] = {
            "last": b.last_layers(count, 1),
            "last_k": b.last_layers(count, k),
            "best_single": b.best_single_layers(self.seen, self.seen_labels),
            "entropy": b.entropy_layers(self.seen, k, highest=ENTROPY_HIGHEST),
            "two_nn": b.dimension_layers(self.seen, k, highest=DIMENSION_HIGHEST),
        }
        if curvatures is not None:
            chosen["curvature"] = b.curvature_layers(curvatures[self.cal], k, highest=CURVATURE_HIGHEST)
        found = {name: self.accuracy(layers) for name, layers in chosen.items()}
        draws = [b.random_layers(count, k, self.seed + i) for i in range(RANDOM_DRAWS)]
        found["random"] = float(np.mean([self.accuracy(d) for d in draws]))
        return found

    def ablated(self, ablation: str | None, k: int, select: Callable[[], list[int]]) -> list[int]:
        """What ``select`` gives, or with the key idea off: layers by isotropy and redundancy without labels,
        or at random."""
        from icml_loes.baselines import random_layers

        if ablation == "random":
            return random_layers(len(self.arrays), k, self.seed)
        return select()
