"""States, problems and images in users' files; each is read as data, never as code, and its size is looked
at first.
"""

from __future__ import annotations

import gzip
import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from icml_discrete_samplers.polynomials import QUBO, Polynomial, _dimod

LARGEST = 2 << 30  # bytes of an array that is read
_IDX_TYPE = 0x08  # unsigned bytes, which MNIST has


def read_states(path: Path) -> Int64[Tensor, "n D"]:
    """States from ``.npy``, ``.npz`` (array ``x``), or ``.csv`` of integers.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another format, or no matrix of integers.
    """
    _require(path)
    try:
        if path.suffix == ".csv":
            array = np.loadtxt(path, delimiter=",", dtype=np.int64, ndmin=2)
        elif path.suffix in (".npy", ".npz"):
            loaded = _loaded(path)
            array = loaded["x"] if path.suffix == ".npz" else loaded
        else:
            raise ValueError("the name must end in .npy, .npz or .csv")
    except (ValueError, KeyError, OSError) as error:
        raise ValueError(f"{path} holds no states: {error}") from error
    if array.ndim != 2 or array.dtype.kind not in "iu":
        raise ValueError(f"{path} holds {array.dtype}{list(array.shape)}; expected a matrix of integers")
    return torch.from_numpy(array.astype(np.int64))


def read_problem(path: Path, beta: float = 1.0) -> Polynomial:
    """A QUBO or polynomial: ``.npy`` or ``.npz`` matrix, or JSON.

    JSON is ``{"domain": "binary", "terms": [[["a", "b"], -1.0], [["a"], 0.5], [[], 2.0]]}``, or what
    ``dimod.BinaryQuadraticModel.to_serializable`` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another format.
    """
    _require(path)
    try:
        if path.suffix == ".json":
            return _of_json(json.loads(path.read_text(encoding="utf-8")), beta)
        if path.suffix == ".npy":
            return QUBO(_loaded(path), beta=beta)
        if path.suffix == ".npz":
            from scipy.sparse import load_npz

            with _loaded(path) as loaded:
                dense = loaded["Q"] if "Q" in loaded.files else None
            return QUBO(load_npz(path) if dense is None else dense, beta=beta)
    except (KeyError, TypeError, ValueError, OSError, RecursionError) as error:
        raise ValueError(f"{path} holds no QUBO or polynomial: {error}") from error
    raise ValueError(f"{path}: the name must end in .json, .npy or .npz")


def _of_json(data: Any, beta: float) -> Polynomial:
    if not isinstance(data, dict):
        raise ValueError("the top level is no object")
    if data.get("type") == "BinaryQuadraticModel":
        return QUBO(_dimod().BinaryQuadraticModel.from_serializable(data), beta=beta)
    terms: dict[Any, float] = {}
    for labels, c in data["terms"]:
        key = tuple(tuple(v) if isinstance(v, list) else v for v in labels)
        terms[key] = terms.get(key, 0.0) + float(c)
    return Polynomial(terms, data.get("domain", "binary"), beta=beta)


def read_images(folder: Path) -> tuple[Float[Tensor, "n pixels"], Int64[Tensor, " n"]]:
    """Images and labels from ``.npz`` (``x_train``, ``y_train`` or ``x``, ``y``) or IDX files, as MNIST
    comes.

    Args:
        folder: the ``.npz`` file, or a folder with it or with ``train-images-idx3-ubyte`` and
            ``train-labels-idx1-ubyte`` (also ``.gz``).

    Raises:
        FileNotFoundError: nothing of the kind.
        ValueError: a damaged file.
    """
    archives = [folder] if folder.suffix == ".npz" else sorted(folder.glob("*.npz"))
    if archives:
        _require(archives[0])
        with _loaded(archives[0]) as loaded:
            names = ("x_train", "y_train") if "x_train" in loaded else ("x", "y")
            if any(name not in loaded for name in names):
                raise ValueError(
                    f"{archives[0]} holds {list(loaded)}; expected x and y, or x_train and y_train"
                )
            x, y = loaded[names[0]], loaded[names[1]]
    else:
        x, y = (_idx(_find(folder, f"train-{name}-ubyte")) for name in ("images-idx3", "labels-idx1"))
    if x.ndim < 2 or y.ndim != 1 or len(x) != len(y):
        raise ValueError(f"images {list(x.shape)} and labels {list(y.shape)} do not match")
    scale = 255.0 if x.dtype == np.uint8 else max(1.0, float(x.max()))
    pixels = torch.from_numpy((x.reshape(len(x), -1) / scale).astype(np.float32))
    return pixels, torch.from_numpy(y.astype(np.int64))


def _find(folder: Path, name: str) -> Path:
    for candidate in (folder / name, folder / f"{name}.gz", folder / name.replace("-idx", ".idx")):
        if candidate.is_file():
            return candidate
    raise FileNotFoundError(f"{folder} holds neither a .npz file nor {name}")


def _idx(path: Path) -> Any:
    opener: Any = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rb") as stream:
        head = stream.read(4)
        if len(head) < 4 or head[:2] != b"\0\0" or head[2] != _IDX_TYPE or not 1 <= head[3] <= 4:
            raise ValueError(f"{path} is no IDX file of unsigned bytes")
        shape = struct.unpack(f">{head[3]}I", stream.read(4 * head[3]))
        size = int(np.prod(shape, dtype=np.float64))
        if size > LARGEST:
            raise ValueError(f"{path} announces {size} bytes, more than {LARGEST}")
        data = stream.read(size)
    if len(data) != size:
        raise ValueError(f"{path} ends after {len(data)} of {size} bytes")
    return np.frombuffer(data, dtype=np.uint8).reshape(shape)


def _loaded(path: Path) -> Any:
    """An array or archive, whose unpacked size is looked at first."""
    if path.suffix == ".npz":
        try:
            with zipfile.ZipFile(path) as archive:
                size = sum(member.file_size for member in archive.infolist())
        except zipfile.BadZipFile as error:
            raise ValueError(f"{path} is no .npz archive: {error}") from error
        if size > LARGEST:
            raise ValueError(f"{path} unpacks to {size} bytes, more than {LARGEST}")
    return np.load(path, allow_pickle=False)


def _require(path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size} bytes, more than {LARGEST}")
