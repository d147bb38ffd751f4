"""What a selection returns: the layers, every term that led to them, and what can be done with them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icml_loes.fused_layers import FusedLayers

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from jaxtyping import Float


@dataclass(frozen=True)
class LoesResult:
    """Chosen layers, in the order in which they were chosen.

    Attributes:
        selected: layer numbers, 0-based over blocks.
        scores: score of each at its step; the less the better.
        names: of all layers, such as module names.
        trace: each step's candidates with every term, the scores, the rank of what was chosen before, and
            notes.
        profile: ``ridge_loss`` and ``isotropy`` of each layer, and ``redundancy`` of all pairs where it was
            needed.
        metrics: what ridge regression on the chosen layers makes of left-out calibration examples: accuracy,
            balanced accuracy and Matthews correlation, or error and R^2.
        task: ``"classes"``, ``"soft"``, ``"multilabel"``, ``"regression"`` or ``"none"``.
        norms: mean norm of each chosen layer.
        options: how it was selected.
        notes: what was done to the input.
        dropped: positions of examples that gave no finite state and took no part.
        pooling: of token states, where a model was read.
    """

    selected: list[int]
    scores: list[float]
    names: list[str]
    trace: list[dict[str, Any]] = field(repr=False)
    profile: dict[str, Any] = field(repr=False)
    metrics: dict[str, float]
    task: str
    norms: list[float] = field(repr=False)
    options: dict[str, Any] = field(repr=False)
    notes: list[str] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    pooling: str | None = None

    @property
    def exhausted(self) -> bool:
        """Whether the complement was empty at some step, so that labels had no say there."""
        return any(row["exhausted"] for row in self.trace)

    def fused(self, fusion: str = "concat", scale: str | None = "layer") -> FusedLayers:
        """How features of these layers are made; independent of torch.

        Raises:
            ValueError: an unknown fusion or scale.
        """
        return FusedLayers(
            tuple(self.selected),
            len(self.names),
            tuple(self.norms),
            tuple(self.names[i] for i in self.selected),
            fusion,
            scale,
            self.pooling,
        )

    def transform(
        self, embeddings: Any, fusion: str = "concat", scale: str | None = "layer"
    ) -> Float[np.ndarray, "n features"]:
        """Features [n, k D] of embeddings [n, L, D]; see ``FusedLayers.transform``."""
        return self.fused(fusion, scale).transform(embeddings)

    def save(self, path: str | Path, fusion: str = "concat", scale: str | None = "layer") -> None:
        """Write ``layers.json``, which ``load_layers`` reads without torch."""
        self.fused(fusion, scale).save(path)

    def as_dict(self) -> dict[str, Any]:
        """Everything, as JSON takes it."""
        everything = {key: getattr(self, key) for key in self.__dataclass_fields__}
        found: dict[str, Any] = json.loads(json.dumps(everything))
        return found

    def to_sentence_transformer(self, model: Any, fusion: str = "concat", scale: str | None = "layer") -> Any:
        """A ``SentenceTransformer`` whose ``encode`` gives these features, cut above the deepest chosen
        block.

        See ``sentence_encoder.fused_sentence_transformer``.
        """
        from icml_loes.sentence_encoder import fused_sentence_transformer

        return fused_sentence_transformer(model, self.fused(fusion, scale))

    def verify(self, problem: Any) -> None:
        """Compute all scores again in columns and with eigenvalues, and compare; see ``verification``.

        Args:
            problem: the ``SelectionProblem`` that was solved.

        Raises:
            ValueError: what differs.
        """
        from icml_loes.verification import verify_selection

        verify_selection(self, problem.embeddings, problem.targets)

    def table(self) -> list[Mapping[str, float | str | None]]:
        """One row a layer: name, ridge loss, isotropy, and the place in which it was chosen."""
        place = {layer: i + 1 for i, layer in enumerate(self.selected)}
        columns: Sequence[tuple[str, list[Any]]] = [
            ("name", self.names),
            ("ridge_loss", self.profile["ridge_loss"]),
            ("isotropy", self.profile["isotropy"]),
        ]
        return [
            {"layer": i, **{name: values[i] for name, values in columns}, "place": place.get(i)}
            for i in range(len(self.names))
        ]
