"""Features of the chosen layers, for any program: scaled, concatenated or averaged. No torch is needed.

``layers.json`` says which layers, of how many, and by how much each is divided.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from icml_core.run import write_json
from jaxtyping import Float

FUSIONS = ("concat", "mean", "sum")
SCALES = ("layer", None)
FORMAT = 1
_LARGEST_FILE = 10 << 20  # a description of layers takes kilobytes


@dataclass(frozen=True)
class FusedLayers:
    """How features are made from embeddings.

    Attributes:
        selected: chosen layers, 0-based, in the order in which they were chosen.
        n_layers: how many there are.
        norms: mean norm of each chosen layer, by which it is divided with ``scale="layer"``.
        names: of the chosen layers.
        fusion: ``"concat"``, ``"mean"`` or ``"sum"``.
        scale: ``"layer"`` or None.
        pooling: how token states were pooled, where known.

    Raises:
        ValueError: an unknown fusion or scale, positions outside, a norm that is not positive.
    """

    selected: tuple[int, ...]
    n_layers: int
    norms: tuple[float, ...]
    names: tuple[str, ...]
    fusion: str = "concat"
    scale: str | None = "layer"
    pooling: str | None = None

    def __post_init__(self) -> None:
        if self.fusion not in FUSIONS:
            raise ValueError(f"fusion={self.fusion!r} is not one of {', '.join(FUSIONS)}")
        if self.scale not in SCALES:
            raise ValueError(f"scale={self.scale!r} is neither 'layer' nor None")
        k = len(self.selected)
        if not k or len(self.norms) != k or len(self.names) != k:
            raise ValueError(
                f"{k} layers with {len(self.norms)} norms and {len(self.names)} names do not agree"
            )
        if any(not 0 <= i < self.n_layers for i in self.selected) or len(set(self.selected)) < k:
            raise ValueError(f"layers {list(self.selected)} are not distinct numbers of {self.n_layers}")
        if any(not (np.isfinite(v) and v > 0) for v in self.norms):
            raise ValueError(f"norms {list(self.norms)} must be above 0")

    def transform(self, embeddings: Any) -> Float[np.ndarray, "n features"]:
        """Features of new embeddings, [n, k D] where they are concatenated and [n, D] else.

        Args:
            embeddings: [n, L, D], or a sequence of L arrays [n, D_l].

        Raises:
            ValueError: another number of layers; widths that differ and cannot be averaged.
        """
        layers = layer_arrays(embeddings, self.n_layers)
        return fuse([layers[i] for i in self.selected], self.fusion, self.norms if self.scale else None)

    def save(self, path: str | Path) -> None:
        """Write ``layers.json``."""
        write_json(Path(path), {"format": FORMAT, "kind": "icml-loes-layers", **asdict(self)})


def load_layers(path: str | Path) -> FusedLayers:
    """Read what ``FusedLayers.save`` or ``LoesResult.save`` wrote.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another kind of file, a newer format, or damaged contents.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.stat().st_size > _LARGEST_FILE:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; a description of layers is smaller")
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(read, dict) or read.get("kind") != "icml-loes-layers":
        raise ValueError(f"{path} describes no layers; expected what LoesResult.save wrote")
    if not isinstance(read.get("format"), int) or read["format"] > FORMAT:
        raise ValueError(f"{path} has format {read.get('format')!r}; this version reads up to {FORMAT}")
    try:
        return FusedLayers(
            tuple(int(i) for i in read["selected"]),
            int(read["n_layers"]),
            tuple(float(v) for v in read["norms"]),
            tuple(str(v) for v in read["names"]),
            read["fusion"],
            read["scale"],
            read.get("pooling"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged: {error}") from error


def layer_arrays(embeddings: Any, n_layers: int | None = None) -> list[np.ndarray]:
    """Arrays [n, D_l] of [n, L, D] or of a sequence or mapping, in their own precision.

    Raises:
        ValueError: another number of layers, or another shape.
    """
    if isinstance(embeddings, Mapping):
        embeddings = list(embeddings.values())
    if isinstance(embeddings, Sequence):
        layers = [_array(v) for v in embeddings]
    else:
        whole = _array(embeddings)
        if whole.ndim != 3:
            raise ValueError(f"embeddings have shape {list(whole.shape)}; expected [examples, layers, dim]")
        layers = [whole[:, i] for i in range(whole.shape[1])]
    if n_layers is not None and len(layers) != n_layers:
        raise ValueError(f"{len(layers)} layers were given; these features are made of {n_layers}")
    for i, v in enumerate(layers):
        if v.ndim != 2 or len(v) != len(layers[0]):
            raise ValueError(f"layer {i} has shape {list(v.shape)}; expected [{len(layers[0])}, dim]")
    return layers


def mean_norm(layer: Float[np.ndarray, "n dim"]) -> float:
    """Mean Euclidean norm of the rows; 1 for a layer of zeros."""
    found = float(np.linalg.norm(np.asarray(layer, dtype=np.float64), axis=1).mean())
    return found if found > 0 else 1.0


def fuse(
    layers: Sequence[Float[np.ndarray, "n dim"]], fusion: str, norms: Sequence[float] | None
) -> Float[np.ndarray, "n features"]:
    """Divide each layer by its norm and put them together.

    Raises:
        ValueError: widths differ and shall be averaged or added.
    """
    scaled = [v if norms is None else v / np.asarray(norms[i], dtype=v.dtype) for i, v in enumerate(layers)]
    if fusion == "concat":
        return np.concatenate(scaled, axis=1)
    if len({v.shape[1] for v in scaled}) > 1:
        raise ValueError(f"layers of widths {[v.shape[1] for v in scaled]} can be concatenated only")
    total = np.sum(scaled, axis=0)
    return np.asarray(total / len(scaled) if fusion == "mean" else total)


def _array(value: Any) -> np.ndarray:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) in ("torch.bfloat16", "torch.float16") else value
        value = value.numpy()
    array = np.asarray(value)
    if array.dtype.kind != "f":
        raise ValueError(f"embeddings have dtype {array.dtype}; expected floating numbers")
    return array.astype(np.float32) if array.dtype == np.float16 else array
