"""Signed graphs from files: edge lists and matrices as text, NumPy arrays, SciPy sparse matrices.

Files are taken as hostile: sizes are checked before memory is asked for, nothing is unpickled, and what is
wrong is reported with its line.
"""

from __future__ import annotations

import csv
import math
import re
import zipfile
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np
from scipy import sparse

from icml_btt.graph_input import Missing
from icml_btt.signed_graph import SignedGraph

Layout: TypeAlias = Literal["auto", "edges", "matrix"]

MAX_BYTES = 4 * 2**30

_POSITIVE = {"+", "+1", "1", "positive", "same"}
_NEGATIVE = {"-", "−", "-1", "negative", "different"}
_INTEGER = re.compile(r"0|-?[1-9]\d{0,17}")
_SPARSE_FORMATS = ("csr", "csc", "coo")


def read_graph(
    path: Path | str,
    *,
    threshold: float | None = None,
    missing: Missing = "negative",
    layout: Layout = "auto",
    max_bytes: int = MAX_BYTES,
) -> SignedGraph:
    """Read a signed graph.

    Args:
        path: by its suffix,

            - ``.npy``: a square array; ``.npz``: a SciPy sparse matrix (csr, csc, coo), or one square array;
            - anything else is UTF-8 text with commas, tabs, semicolons or spaces between fields; lines that
              begin with ``#`` are comments. An edge list has lines ``u,v,sign[,weight]``, with or without a
              header; signs are +1 and -1 (also + and -, same and different, positive and negative; 0 is no
              opinion). A line ``u,,`` names a vertex without edges. A matrix has one line a row, with or
              without names in its first line and column.
        threshold: the third field of edge lists, or the entries of a matrix, are similarities: "same" from
            here on. Without it they are signs, a matrix's entries signs times weights.
        missing: what a pair is that the file does not hold (a dense matrix under a threshold holds all).
        layout: of text; ``"auto"`` takes three or four fields a line as an edge list, else as a matrix.
        max_bytes: larger files and arrays are refused.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: what is wrong in the file, and where.
    """
    path = Path(path)
    if layout not in get_args(Layout):
        raise ValueError(f"layout={layout!r}; expected 'auto', 'edges' or 'matrix'")
    if threshold is not None and not math.isfinite(threshold):
        raise ValueError(f"the threshold must be finite, got {threshold!r}")
    if path.is_dir():
        raise ValueError(f"{path} is a directory; expected an edge list or matrix")
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no such file")
    if path.stat().st_size > max_bytes:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; at most {max_bytes} are read")
    readers = {".npy": _read_npy, ".npz": _read_npz}
    try:
        if path.suffix.lower() in readers:
            matrix = readers[path.suffix.lower()](path, max_bytes)
            return _from_matrix(matrix, threshold, missing, None)
        return _read_text(path, threshold, missing, layout)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _from_matrix(
    matrix: Any, threshold: float | None, missing: Missing, ids: Sequence[Hashable] | None
) -> SignedGraph:
    if threshold is None:
        return SignedGraph.from_scipy(matrix, missing=missing, ids=ids)
    return SignedGraph.from_similarity(matrix, threshold, missing=missing, ids=ids)


def _read_npy(path: Path, max_bytes: int) -> np.ndarray:
    with path.open("rb") as stream:
        _check_header(stream, path.stat().st_size, max_bytes)
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _read_npz(path: Path, max_bytes: int) -> Any:
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            if sum(member.file_size for member in members) > max_bytes:
                raise ValueError(f"unpacks to more than {max_bytes} bytes")
            for member in members:
                with archive.open(member) as stream:
                    _check_header(stream, member.file_size, max_bytes)
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, EOFError, OSError, RuntimeError, NotImplementedError) as error:
        raise ValueError(f"not an .npz archive that can be read ({error})") from error
    if "format" not in arrays:
        if len(arrays) != 1:
            raise ValueError(f"expected a SciPy sparse matrix or one array, found {sorted(arrays)}")
        return next(iter(arrays.values()))
    return _sparse_matrix(arrays)


def _check_header(stream: IO[bytes], size: int, max_bytes: int) -> None:
    """Refuse an array whose header promises another size than there is, before any of it is allocated."""
    try:
        version = np.lib.format.read_magic(stream)
        readers = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }
        if version not in readers:
            raise ValueError(f"format version {version} is not known")
        shape, _, dtype = readers[version](stream)
    except ValueError as error:
        raise ValueError(f"not a NumPy array ({error})") from error
    if dtype.hasobject:
        raise ValueError("holds Python objects, which are not loaded; save an array of numbers")
    expected = math.prod(shape) * dtype.itemsize
    if expected != size - stream.tell() or math.prod(shape) * 8 > max_bytes:
        raise ValueError(
            f"the header promises shape {shape} of {dtype}, {expected} bytes; "
            f"there are {size - stream.tell()}, and at most {max_bytes} are read"
        )


def _sparse_matrix(arrays: dict[str, np.ndarray]) -> sparse.coo_array:
    """A SciPy sparse matrix from its parts, each checked by hand."""
    kind = arrays["format"].item() if arrays["format"].shape == () else None
    kind = kind.decode("ascii", "replace") if isinstance(kind, bytes) else kind
    if kind not in _SPARSE_FORMATS:
        raise ValueError(f"sparse format {kind!r}; expected one of {', '.join(_SPARSE_FORMATS)}")
    wanted = ("row", "col") if kind == "coo" else ("indices", "indptr")
    for name in ("shape", "data", *wanted):
        kinds, what = ("biuf", "real numbers") if name == "data" else ("iu", "integers")
        if name not in arrays or arrays[name].ndim != 1 or arrays[name].dtype.kind not in kinds:
            raise ValueError(f"the {kind} matrix has no {name!r} of {what}")
    shape = tuple(int(size) for size in arrays["shape"])
    if len(shape) != 2 or shape[0] != shape[1] or not 0 <= shape[0] < 2**31:
        raise ValueError(f"a signed graph needs a square matrix, got shape {shape}")
    data = arrays["data"].astype(np.float64)
    if kind == "coo":
        row, column = (arrays[name].astype(np.int64) for name in wanted)
    else:
        column, pointer = (arrays[name].astype(np.int64) for name in wanted)
        if len(pointer) != shape[0] + 1 or pointer[0] != 0 or pointer[-1] != len(data):
            raise ValueError("indptr does not fit shape and data")
        if (np.diff(pointer) < 0).any():
            raise ValueError("indptr decreases")
        row = np.repeat(np.arange(shape[0]), np.diff(pointer))
        row, column = (column, row) if kind == "csc" else (row, column)
    if not len(row) == len(column) == len(data):
        raise ValueError("indices and data differ in length")
    for index in (row, column):
        if len(index) and (index.min() < 0 or index.max() >= shape[0]):
            raise ValueError(f"an index lies outside 0, …, {shape[0] - 1}")
    return sparse.coo_array((data, (row, column)), shape=shape)


class _Rows:
    """The rows of a text file as lists of fields, and the line that the last one ended on."""

    def __init__(self, stream: IO[str]) -> None:
        self.line = 0
        self._stream = stream

    def __iter__(self) -> Iterator[list[str]]:
        lines = self._lines()
        first = next(lines, None)
        if first is None:
            return
        separator = next((s for s in "\t,;" if s in first), None)

        def all_lines() -> Iterator[str]:
            yield first
            yield from lines

        if separator is None:
            rows: Iterator[list[str]] = (line.split() for line in all_lines())
        else:
            rows = csv.reader(all_lines(), delimiter=separator, strict=True)
        try:
            for row in rows:
                yield [field.strip() for field in row]
        except csv.Error as error:
            self.refuse(str(error))

    def _lines(self) -> Iterator[str]:
        try:
            for line in self._stream:
                self.line += 1
                if line.strip() and not line.startswith("#"):
                    yield line
        except UnicodeDecodeError as error:
            raise ValueError(f"is not UTF-8 text after line {self.line} ({error.reason})") from error

    def refuse(self, message: str) -> NoReturn:
        """Raise a ValueError that names the line."""
        raise ValueError(f"line {self.line}: {message}")


def _read_text(path: Path, threshold: float | None, missing: Missing, layout: Layout) -> SignedGraph:
    with path.open(encoding="utf-8-sig", newline="") as stream:
        rows = _Rows(stream)
        content = iter(rows)
        first = next(content, None)
        if first is None:
            raise ValueError("holds no edges; expected lines u,v,sign[,weight] or the rows of a matrix")
        if layout == "auto":
            layout = "edges" if len(first) in (3, 4) else "matrix"
        if layout == "matrix":
            matrix, names = _text_matrix(rows, first, content)
            return _from_matrix(matrix, threshold, missing, names)
        return _text_edges(rows, first, content, threshold, missing)


def _text_edges(
    rows: _Rows,
    first: list[str],
    content: Iterator[list[str]],
    threshold: float | None,
    missing: Missing,
) -> SignedGraph:
    edges: dict[int, list[tuple[str, str]]] = {1: [], -1: []}
    weights: dict[int, list[float]] = {1: [], -1: []}
    vertices: dict[str, None] = {}

    def take(row: list[str]) -> None:
        if len(row) not in (3, 4):
            rows.refuse(f"{len(row)} fields; expected u,v,sign[,weight]")
        u, v = row[:2]
        vertices[u] = None
        if not v and not row[2]:
            return
        if not u or not v:
            rows.refuse("an end of the edge is empty")
        vertices[v] = None
        sign = _sign(rows, row[2], threshold)
        weight = _finite(rows, row[3], "weight") if len(row) == 4 and row[3] else 1.0
        if weight < 0:
            rows.refuse(f"weight {row[3]} is negative; the sign belongs in the third field")
        edges[sign or 1].append((u, v))
        weights[sign or 1].append(weight if sign else 0.0)

    if not _is_header(first):
        take(first)
    for row in content:
        take(row)
    name = dict(zip(vertices, _names(list(vertices)), strict=True))
    return SignedGraph.from_edges(
        [(name[u], name[v]) for u, v in edges[1]],
        [(name[u], name[v]) for u, v in edges[-1]],
        positive_weight=weights[1],
        negative_weight=weights[-1],
        missing=missing,
        ids=name.values(),
    )


def _names(texts: list[str]) -> list[Hashable]:
    """Names as integers where all are, so that 10 comes after 9; else as they stand."""
    if all(_INTEGER.fullmatch(text) for text in texts):
        return [int(text) for text in texts]
    return list(texts)


def _is_header(row: list[str]) -> bool:
    """Whether the first row names columns: its third field is a word that is no sign."""
    return (
        bool(row[2:3] and row[2]) and row[2].lower() not in _POSITIVE | _NEGATIVE and not _is_number(row[2])
    )


def _sign(rows: _Rows, text: str, threshold: float | None) -> int:
    if threshold is not None:
        return 1 if _finite(rows, text, "similarity") >= threshold else -1
    word = text.lower()
    if word in _POSITIVE:
        return 1
    if word in _NEGATIVE:
        return -1
    if _is_number(text) and float(text) in (1.0, -1.0, 0.0):
        return int(float(text))
    hint = "; a similarity needs a threshold" if _is_number(text) else ""
    rows.refuse(f"sign {text!r}; expected +1, -1 or 0{hint}")


def _text_matrix(
    rows: _Rows, first: list[str], content: Iterator[list[str]]
) -> tuple[np.ndarray, list[Hashable] | None]:
    """The matrix of numbers, and the names in its first line where it has them."""
    named = not all(_is_number(field) for field in first)
    names = first[1:] if named else None
    size = len(first) - named
    values: list[np.ndarray] = []

    def take(row: list[str]) -> None:
        if names is not None:
            if len(values) < size and row[0] != names[len(values)]:
                rows.refuse(f"row {row[0]!r} comes where column {names[len(values)]!r} does")
            row = row[1:]
        if len(row) != size or len(values) == size:
            rows.refuse(f"the matrix is not square: {len(row)} entries in row {len(values) + 1} of {size}")
        values.append(np.array([_finite(rows, field, "entry") for field in row]))

    if not named:
        take(first)
    for row in content:
        take(row)
    if len(values) != size:
        raise ValueError(f"the matrix is not square: {len(values)} rows of {size} entries")
    return np.stack(values), None if names is None else _names(names)


def _finite(rows: _Rows, text: str, what: str) -> float:
    if not _is_number(text) or not math.isfinite(float(text)):
        rows.refuse(f"{what} {text!r} is not a finite number")
    return float(text)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
