"""What users hand in as a graph, checked: lists of pairs, names of vertices, weights, matrices."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeAlias, get_args

import numpy as np
from jaxtyping import Float, Int
from scipy import sparse

Missing: TypeAlias = Literal["negative", "free"]

# Two mirrored entries of a matrix may differ by this share of its largest entry: rounding of its maker.
_ASYMMETRY = 1e-8


def edge_list(pairs: Iterable[Sequence[Hashable]], what: str) -> Int[np.ndarray, "k 2"] | list[Any]:
    """The pairs as an integer array where they are integers, else as a list.

    Raises:
        ValueError: something in it is no pair.
    """
    if isinstance(pairs, np.ndarray) and pairs.dtype.kind in "iu" and pairs.ndim == 2 and pairs.shape[1] == 2:
        return pairs.astype(np.int64)
    listed = list(pairs)
    for pair in listed:
        if isinstance(pair, (str, bytes)) or not hasattr(pair, "__len__") or len(pair) != 2:
            raise ValueError(f"{what} edges are pairs of vertices, got {pair!r}")
    if all(isinstance(v, (int, np.integer)) and not isinstance(v, bool) for pair in listed for v in pair):
        return np.array(listed, dtype=np.int64).reshape(-1, 2)
    return listed


def vertex_count(ends: Int[np.ndarray, "k 2"], n: int | None) -> int:
    """How many vertices there are: ``n``, or the largest end plus one.

    Raises:
        ValueError: an end outside 0, …, n−1.
    """
    largest = int(ends.max()) if len(ends) else -1
    if n is None:
        n = largest + 1
    if n < 0 or largest >= n or (len(ends) and int(ends.min()) < 0):
        outside = ends[((ends < 0) | (ends >= n)).any(axis=1)] if n >= 0 else ends
        shown = f"edge {tuple(map(int, outside[0]))}" if len(outside) else f"n = {n}"
        raise ValueError(f"{shown}: vertices are the integers 0, …, n−1 with n = {n}")
    return n


def index_names(
    listed: Sequence[Hashable], pairs: Sequence[Sequence[Sequence[Hashable]]]
) -> tuple[tuple[Hashable, ...], Mapping[Hashable, int]]:
    """All names, in an order that does not depend on the order of the input, and where each stands."""
    names = dict.fromkeys(listed)
    for side in pairs:
        for pair in side:
            names.update(dict.fromkeys(pair))
    kinds = {type(name) for name in names}
    if kinds <= {int, float} or kinds == {str}:
        ordered = sorted(names)  # type: ignore[type-var]
    else:
        ordered = sorted(names, key=lambda name: (type(name).__name__, repr(name)))
    return tuple(ordered), {name: position for position, name in enumerate(ordered)}


def plain_name(name: Any) -> Hashable:
    """A vertex name without NumPy's scalar types, so that 3 and np.int64(3) are shown alike."""
    return name.item() if isinstance(name, np.generic) else name


def edge_weights(weights: Iterable[float] | None, count: int) -> Float[np.ndarray, " k"]:
    """The weights as an array; None gives ones.

    Raises:
        ValueError: not one for each edge.
    """
    if weights is None:
        return np.ones(count)
    array = np.array(list(weights), dtype=np.float64)
    if len(array) != count:
        raise ValueError(f"{len(array)} weights for {count} edges")
    return array


def number(value: Any, what: str) -> float:
    """``value`` as a number.

    Raises:
        ValueError: it is none; says of what.
    """
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{what}: {value!r} is not a number") from error


def is_networkx(graph: Any) -> bool:
    """Whether something is a networkx graph, without importing networkx."""
    return all(hasattr(graph, name) for name in ("nodes", "edges", "is_directed", "is_multigraph"))


def networkx_edges(
    graph: Any, sign: str | None, weight: str | None
) -> dict[int, tuple[list[Any], list[float]]]:
    """The positive (1) and negative (−1) edges of a networkx graph, with their weights.

    Raises:
        TypeError: a directed graph or a multigraph.
        ValueError: a sign or weight that is no number.
    """
    if graph.is_directed() or graph.is_multigraph():
        raise TypeError(
            f"expected an undirected networkx.Graph, got {type(graph).__name__}; "
            "use graph.to_undirected(), and merge parallel edges"
        )
    lists: dict[int, tuple[list[Any], list[float]]] = {1: ([], []), -1: ([], [])}
    for u, v, data in graph.edges(data=True):
        size = 1.0 if weight is None else number(data.get(weight, 1.0), f"weight of edge {u!r}, {v!r}")
        if sign is not None:
            direction = number(data.get(sign, 1.0), f"sign of edge {u!r}, {v!r}")
        else:
            direction, size = (1.0 if size == 0 else size), abs(size)
        if direction == 0:
            direction, size = 1.0, 0.0
        pairs, weights = lists[1 if direction > 0 else -1]
        pairs.append((u, v))
        weights.append(size)
    return lists


def check_missing(missing: str) -> None:
    """Refuse anything but the two values of :data:`Missing`."""
    if missing not in get_args(Missing):
        raise ValueError(f"missing={missing!r}; expected 'negative' or 'free'")


def square_array(array: np.ndarray) -> np.ndarray:
    """``array`` itself, where it is a square matrix of real numbers.

    Raises:
        ValueError: it is not.
    """
    if array.ndim != 2 or array.shape[0] != array.shape[1]:
        raise ValueError(f"expected a square matrix, got shape {array.shape}")
    if array.dtype.kind not in "biuf":
        raise ValueError(f"expected a matrix of real numbers, got dtype {array.dtype}")
    return array


def symmetric_matrix(matrix: Any, what: str) -> sparse.csr_array:
    """A square matrix as a sparse one, where it is symmetric.

    Raises:
        ValueError: it is not (names the entry), or has NaN or infinite entries.
    """
    if np.dtype(matrix.dtype).kind not in "biuf":
        raise ValueError(f"{what} holds real numbers, got dtype {matrix.dtype}")
    matrix = sparse.csr_array(matrix, dtype=np.float64, copy=True)
    if matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{what} must be square, got shape {matrix.shape}")
    matrix.sum_duplicates()
    wild = ~np.isfinite(matrix.data)
    if wild.any():
        place = int(np.argmax(wild))
        row = int(np.searchsorted(matrix.indptr, place, side="right")) - 1
        raise ValueError(
            f"entry ({row}, {matrix.indices[place]}) is {matrix.data[place]}; drop pairs that were not judged"
        )
    difference = sparse.coo_array(matrix - matrix.T)
    wrong = np.flatnonzero(np.abs(difference.data) > _ASYMMETRY * np.abs(matrix.data).max(initial=0.0))
    if len(wrong):
        i, j = (int(c[wrong[0]]) for c in difference.coords)
        _refuse_asymmetry(i, j, float(matrix[i, j]), float(matrix[j, i]))
    return matrix


def upper_entries(
    dense: Float[np.ndarray, "n n"], threshold: float | None
) -> tuple[Int[np.ndarray, " k"], Int[np.ndarray, " k"], Float[np.ndarray, " k"]]:
    """List the entries above the diagonal of a symmetric array: rows, columns and values.

    Works in blocks of rows, so that no second array of that size is made.

    Args:
        dense: the diagonal is not read.
        threshold: only entries of at least this; None lists all.

    Raises:
        ValueError: not symmetric, NaN or infinite.
    """
    n = len(dense)
    rows = max(1, 2**22 // max(n, 1))
    starts = range(0, n, rows)

    def block_at(start: int) -> Float[np.ndarray, "rows n"]:
        block = np.array(dense[start : start + rows], dtype=np.float64)
        inside = np.arange(len(block))
        block[inside, start + inside] = 0.0
        if not np.isfinite(block).all():
            i, j = (int(c) for c in np.argwhere(~np.isfinite(block))[0])
            raise ValueError(f"entry ({start + i}, {j}) is {block[i, j]}; drop pairs that were not judged")
        return block

    tolerance = _ASYMMETRY * max((np.abs(block_at(start)).max() for start in starts), default=0.0)
    parts: list[tuple[np.ndarray, ...]] = [(np.zeros(0, dtype=np.int64),) * 2 + (np.zeros(0),)]
    for start in starts:
        block = block_at(start)
        mirror = np.array(dense[:, start : start + rows].T, dtype=np.float64)
        inside = np.arange(len(block))
        mirror[inside, start + inside] = 0.0
        wrong = np.abs(block - mirror) > tolerance
        if wrong.any():
            i, j = (int(c) for c in np.argwhere(wrong)[0])
            _refuse_asymmetry(start + i, j, block[i, j], mirror[i, j])
        wanted = np.arange(n) > start + inside[:, None]
        if threshold is not None:
            wanted &= block >= threshold
        row, column = np.nonzero(wanted)
        parts.append((row + start, column, block[row, column]))
    u, v, value = (np.concatenate(column) for column in zip(*parts, strict=True))
    return u, v, value


def _refuse_asymmetry(i: int, j: int, here: float, there: float) -> NoReturn:
    raise ValueError(
        f"the matrix is not symmetric: entry ({i}, {j}) is {here:g}, entry ({j}, {i}) is {there:g}"
    )
