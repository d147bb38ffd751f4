"""Embeddings and targets in files: ``.npz`` or ``.safetensors`` with ``E`` [n, L, D] and ``y``. Nothing is
unpickled."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

EMBEDDINGS, TARGETS = "E", "y"
LARGEST = 64 << 30
"""Arrays of more bytes are refused before they are read."""


@dataclass(frozen=True)
class EmbeddingFile:
    """What a file holds.

    Attributes:
        embeddings: [n, L, D], or a list of arrays [n, D_l] where the file has ``layer_0``, ``layer_1``, ….
        targets: ``y``, or None.
        labels: further arrays [n] by name, for profiles.
    """

    embeddings: Any
    targets: Any = None
    labels: dict[str, Any] = field(default_factory=dict)


def read_embeddings(path: str | Path) -> EmbeddingFile:
    """Read a file of embeddings.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another format, pickled contents, no embeddings, arrays too large or not of numbers.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.suffix == ".npz":
        arrays = _npz(path)
    elif path.suffix == ".safetensors":
        arrays = _safetensors(path)
    else:
        raise ValueError(f"{path.name} is neither .npz nor .safetensors")
    layered = sorted(
        (n for n in arrays if n.startswith("layer_") and n[6:].isdigit()), key=lambda n: int(n[6:])
    )
    if EMBEDDINGS in arrays:
        embeddings: Any = arrays.pop(EMBEDDINGS)
        if embeddings.ndim != 3:
            raise ValueError(
                f"{path.name}: {EMBEDDINGS} has shape {list(embeddings.shape)}; expected [examples, layers, "
                "dim]"
            )
    elif layered:
        embeddings = [arrays.pop(n) for n in layered]
    else:
        raise ValueError(
            f"{path.name} has {', '.join(arrays) or 'no arrays'}; expected {EMBEDDINGS} [examples, layers, "
            "dim], or "
            "layer_0, layer_1, …"
        )
    targets = arrays.pop(TARGETS, None)
    n = len(embeddings[0]) if isinstance(embeddings, list) else len(embeddings)
    labels = {name: v for name, v in arrays.items() if v.ndim >= 1 and len(v) == n}
    return EmbeddingFile(embeddings, targets, labels)


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(info.file_size for info in archive.infolist())
        _check_size(path, total)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"{path.name} cannot be read as .npz: {error}") from error
    return {name: _numbers(path, name, v) for name, v in arrays.items()}


def _safetensors(path: Path) -> dict[str, np.ndarray]:
    from safetensors import safe_open

    _check_size(path, path.stat().st_size)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
    except Exception as error:
        raise ValueError(f"{path.name} cannot be read as safetensors: {error}") from error
    found = {}
    for name, v in tensors.items():
        wide = v.float() if v.is_floating_point() and v.element_size() == 2 else v
        found[name] = _numbers(path, name, wide.numpy())
    return found


def _check_size(path: Path, size: int) -> None:
    if size > LARGEST:
        raise ValueError(f"{path.name} holds {size} bytes; at most {LARGEST} are read")


def _numbers(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind not in "fiubU":
        raise ValueError(f"{path.name}: {name} has dtype {array.dtype}; expected numbers or text")
    return array
