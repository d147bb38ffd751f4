"""Pencils from files: Matrix Market or SciPy's npz, alone or a folder of pairs. Nothing is unpickled."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp

SUFFIXES = (".mtx", ".mtx.gz", ".npz")
LARGEST_ROWS = 50_000_000
LARGEST_ENTRIES = 2**31 - 1


@dataclass(frozen=True)
class MatrixPair:
    """Two files of one instance.

    Attributes:
        name: the common part of their names.
        a, b: files; b is None for the identity.
    """

    name: str
    a: Path
    b: Path | None


def read_matrix(path: Path) -> sp.csc_array:
    """One sparse matrix.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another format, a damaged file, or sizes that no factorization could hold.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no matrix {path}")
    if path.name.endswith((".mtx", ".mtx.gz")):
        try:
            rows, columns, entries, *_ = scipy.io.mminfo(path)
        except (ValueError, OSError, OverflowError) as error:
            raise ValueError(f"{path} is no Matrix Market file: {error}") from error
        _check_sizes(path, rows, columns, entries)
        try:
            return sp.csc_array(scipy.io.mmread(path))
        except (ValueError, OSError, OverflowError) as error:
            raise ValueError(f"{path} is damaged: {error}") from error
    if path.suffix == ".npz":
        return _read_npz(path)
    raise ValueError(f"{path}: expected one of {', '.join(SUFFIXES)}")


def _read_npz(path: Path) -> sp.csc_array:
    try:
        with np.load(path, allow_pickle=False) as file:
            names = set(file.files)
            if not {"data", "indices", "indptr", "shape", "format"} <= names:
                raise ValueError(
                    f"it holds {', '.join(sorted(names)) or 'nothing'}; write it by scipy.sparse.save_npz"
                )
            kind = file["format"].item()
            kind = kind.decode() if isinstance(kind, bytes) else str(kind)
            shape = tuple(int(s) for s in file["shape"])
            data, indices, indptr = file["data"], file["indices"], file["indptr"]
    except (ValueError, OSError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is no sparse matrix: {error}") from error
    if kind not in ("csr", "csc") or len(shape) != 2:
        raise ValueError(
            f"{path} holds a {kind} matrix of shape {shape}; expected csr or csc in two dimensions"
        )
    _check_sizes(path, *shape, len(data))
    major, minor = shape if kind == "csr" else shape[::-1]
    fits = (
        indptr.ndim == indices.ndim == data.ndim == 1
        and len(indptr) == major + 1
        and len(indices) == len(data)
    )
    fits = fits and indptr.dtype.kind in "iu" and indices.dtype.kind in "iu" and data.dtype.kind in "biufc"
    fits = (
        fits and int(indptr[0]) == 0 and int(indptr[-1]) == len(data) and bool((np.diff(indptr) >= 0).all())
    )
    if not fits or (len(indices) and (int(indices.min()) < 0 or int(indices.max()) >= minor)):
        raise ValueError(f"{path} is damaged: its indices do not fit its shape {shape}")
    make = sp.csr_array if kind == "csr" else sp.csc_array
    return sp.csc_array(make((data, indices, indptr), shape=shape))


def _check_sizes(path: Path, rows: int, columns: int, entries: int) -> None:
    if rows != columns:
        raise ValueError(f"{path} is {rows} x {columns}; a pencil needs square matrices")
    if not 1 <= rows <= LARGEST_ROWS or entries > LARGEST_ENTRIES:
        raise ValueError(f"{path} says {rows} rows and {entries} entries; more than can be factorized")


def find_pairs(folder: Path) -> list[MatrixPair]:
    """Pairs NAME_A.mtx and NAME_B.mtx (or .npz, .mtx.gz) of a folder, by name; B may be missing.

    Raises:
        FileNotFoundError: no folder, or no file NAME_A in it.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder {folder}")
    found = {}
    for path in sorted(folder.iterdir()):
        for suffix in SUFFIXES:
            if path.name.endswith(suffix):
                found[path.name.removesuffix(suffix)] = path
                break
    pairs = []
    for stem, path in found.items():
        if stem == "A" or stem.endswith("_A"):
            name = stem[:-2] if stem != "A" else "A"
            pairs.append(MatrixPair(name, path, found.get(stem[:-1] + "B")))
    if not pairs:
        raise FileNotFoundError(
            f"{folder} holds no files NAME_A{{{','.join(SUFFIXES)}}} with NAME_B beside them"
        )
    return pairs


def read_fields(path: Path) -> dict[str, np.ndarray]:
    """Fields [n, c, H, W] or [n, f] of an npz file, and perhaps eigenvalues [n, M] and groups [n].

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: no fields in it, or no npz.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        with np.load(path, allow_pickle=False) as file:
            found = {name: file[name] for name in file.files if name in ("fields", "eigenvalues", "groups")}
    except (ValueError, OSError, zipfile.BadZipFile, EOFError) as error:
        raise ValueError(f"{path} is no npz file of arrays: {error}") from error
    if "fields" not in found:
        raise ValueError(f"{path} holds no array called fields")
    return found
