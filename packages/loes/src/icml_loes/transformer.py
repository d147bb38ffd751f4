"""A scikit-learn transformer: from [n, L, D] to features of the chosen layers, inside any pipeline."""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from icml_loes.calibration import calibration_split
from icml_loes.fused_layers import FUSIONS, SCALES, layer_arrays, mean_norm
from icml_loes.selection import select_layers


class LoesTransformer(TransformerMixin, BaseEstimator):
    """Choose k layers with the labels that ``fit`` sees, and give their fused features.

    Args:
        k: how many layers.
        fusion: ``"concat"``, ``"mean"`` or ``"sum"``.
        scale: ``"layer"`` gives every chosen layer unit mean norm; None leaves them.
        mode: ``"paper"`` or ``"loo"``.
        n_cal: choose on a stratified sample of so many examples; on all by default.
        n_layers: L, where X comes flattened as [n, L D].
        class_weight: ``"balanced"``, or a weight a class.
        options: further options of ``select_layers``.
        random_state: of the sample and the triangles.

    Attributes:
        result_: the ``LoesResult``.
        selected_: the chosen layers.
        n_features_out_: width of the features.

    Example:
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.pipeline import make_pipeline
        >>> X = np.random.default_rng(0).normal(size=(60, 5, 8))
        >>> y = (X[:, 2, 0] > 0).astype(int)
        >>> make_pipeline(LoesTransformer(k=2), LogisticRegression()).fit(X, y).predict(X).shape
        (60,)
    """

    def __init__(
        self,
        k: int = 4,
        *,
        fusion: str = "concat",
        scale: str | None = "layer",
        mode: str = "paper",
        n_cal: int | None = None,
        n_layers: int | None = None,
        class_weight: Any = None,
        options: dict[str, Any] | None = None,
        random_state: int = 0,
    ) -> None:
        self.k, self.fusion, self.scale, self.mode, self.n_cal = k, fusion, scale, mode, n_cal
        self.n_layers, self.class_weight = n_layers, class_weight
        self.options, self.random_state = options, random_state

    def fit(self, X: Any, y: Any = None) -> LoesTransformer:
        """Choose layers.

        Raises:
            ValueError: see ``select_layers``; an unknown fusion or scale; X [n, L D] without ``n_layers``.
        """
        if self.fusion not in FUSIONS or self.scale not in SCALES:
            raise ValueError(
                f"fusion={self.fusion!r}, scale={self.scale!r}; expected one of {FUSIONS} and {SCALES}"
            )
        layers = self._layers(X)
        chosen = None
        if self.n_cal is not None and self.n_cal < len(layers[0]):
            chosen, _ = calibration_split(
                np.zeros(len(layers[0])) if y is None else y, self.n_cal, seed=self.random_state
            )
        seen = layers if chosen is None else [v[chosen] for v in layers]
        targets = y if y is None or chosen is None else np.asarray(y)[chosen]
        self.result_ = select_layers(
            seen,
            targets,
            self.k,
            mode=self.mode,
            class_weight=self.class_weight,
            generator=self.random_state,
            **(self.options or {}),
        )
        self.selected_ = list(self.result_.selected)
        self.norms_ = [mean_norm(layers[i]) for i in self.selected_]
        widths = [layers[i].shape[1] for i in self.selected_]
        self.widths_ = widths
        self.n_features_out_ = sum(widths) if self.fusion == "concat" else widths[0]
        self.n_layers_in_ = len(layers)
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "n features"]:
        """Features [n, k D], or [n, D] where layers are averaged or added.

        Raises:
            NotFittedError: before ``fit``.
            ValueError: another number of layers.
        """
        from dataclasses import replace

        check_is_fitted(self, "result_")
        fused = replace(self.result_.fused(self.fusion, self.scale), norms=tuple(self.norms_))
        layers = self._layers(X)
        if len(layers) != self.n_layers_in_:
            raise ValueError(f"X has {len(layers)} layers; it was fitted on {self.n_layers_in_}")
        return fused.transform(layers)

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        """``layer5_17`` for column 17 of layer 5; ``mean_17`` where layers are averaged."""
        check_is_fitted(self, "result_")
        if self.fusion != "concat":
            return np.array([f"{self.fusion}_{i}" for i in range(self.n_features_out_)], dtype=object)
        named = [
            f"layer{layer}_{i}"
            for layer, width in zip(self.selected_, self.widths_, strict=True)
            for i in range(width)
        ]
        return np.array(named, dtype=object)

    def _layers(self, X: Any) -> list[np.ndarray]:
        if self.n_layers is not None and getattr(X, "ndim", 0) == 2:
            if X.shape[1] % self.n_layers:
                raise ValueError(
                    f"X has {X.shape[1]} columns, which are no {self.n_layers} layers of one width"
                )
            X = X.reshape(len(X), self.n_layers, -1)
        return layer_arrays(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = self.n_layers is not None
        tags.input_tags.three_d_array = True
        return tags
