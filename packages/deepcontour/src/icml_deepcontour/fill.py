"""How large the factors of a sparse symmetric matrix will be, told before anything is allocated.

Nested dissection by level structures: the graph is halved by the middle level of a breadth-first search
(A. George, SIAM J. Numer. Anal. 10 (1973) 345-363), a few times over. A separator of s vertices fills
s (s + 1)/2 entries and, against the separators around it, s times as many more. Below the last halving the
separators follow the power law of those above. An estimate, within about a factor of 2 for meshes; a minimum
degree order, which is what factorizes here, fills alike in two dimensions and somewhat more in three.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import breadth_first_order, connected_components

from icml_deepcontour.errors import FillError

INT32 = 2**31 - 1
DEPTH = 5  # halvings that are carried out
SMALLEST = 64  # vertices below which a part is counted as dense
BOUNDARY = 1.5  # separators around a part, in units of its own
FACTORIZERS = ("sksparse", "pypardiso", "petsc4py")


@dataclass(frozen=True)
class Fill:
    """Predicted size of L and U.

    Attributes:
        entries: of L and U together.
        n_bytes: entries with their indices.
        overflows: more entries than 32-bit indices can count.
    """

    entries: int
    n_bytes: int
    overflows: bool


def predict_fill(matrix: sp.csc_array, *, itemsize: int = 8) -> Fill:
    """Predict entries and bytes of the LU factors of a matrix with a symmetric pattern.

    Args:
        matrix: only its pattern counts, [n, n].
        itemsize: bytes of an entry; 16 for complex.
    """
    graph = sp.csr_array(
        (np.ones(matrix.nnz, dtype=np.int8), matrix.indices, matrix.indptr), shape=matrix.shape
    )
    _, labels = connected_components(graph, directed=False)
    sizes = np.bincount(labels)
    whole = 0.0
    order = np.argsort(labels, kind="stable")
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    small = sizes <= SMALLEST
    whole += float((sizes[small].astype(float) * (sizes[small] + 1) / 2).sum())
    for c in np.flatnonzero(~small):
        whole += _component(graph, order[bounds[c] : bounds[c + 1]])
    lower = max(whole, graph.nnz / 2.0)
    entries = int(2 * lower)
    return Fill(entries, int(entries * (itemsize + 4) * 1.15), entries > INT32)


def check_fill(matrix: sp.csc_array, max_bytes: float | None) -> None:
    """Refuse a factorization that would not fit.

    Args:
        matrix: as for `predict_fill`.
        max_bytes: the limit; None for the memory that this machine has free.

    Raises:
        FillError: with predicted entries and bytes, and the factorizers that are installed.
    """
    n = matrix.shape[0]
    itemsize = matrix.dtype.itemsize
    limit = float(available_memory()) if max_bytes is None else float(max_bytes)
    densest = float(n) * n * (itemsize + 4)
    if densest <= limit and n * n < INT32:
        return
    fill = predict_fill(matrix, itemsize=itemsize)
    if not fill.overflows and fill.n_bytes <= limit:
        return
    present = [name for name in FACTORIZERS if find_spec(name) is not None]
    others = (
        f"installed: {', '.join(present)}" if present else f"none of {', '.join(FACTORIZERS)} is installed"
    )
    size = f"the factors of a matrix of {n} rows would have about {fill.entries:.2e} entries"
    if fill.overflows:
        raise FillError(
            f"{size}, more than the {INT32} that SuperLU's 32-bit indices can count; memory is not the "
            f"matter. Pass factorize= with another factorizer ({others})",
            fill.entries,
            fill.n_bytes,
        )
    raise FillError(
        f"{size}, {fill.n_bytes / 2**30:.2f} GiB, above the limit of {limit / 2**30:.2f} GiB; nothing "
        f"has been "
        f"allocated. Raise max_bytes, or pass factorize= with a sparser factorizer ({others})",
        fill.entries,
        fill.n_bytes,
    )


def available_memory() -> int:
    """Bytes that are free now, or half of 8 GiB where the system does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as stream:
            for line in stream:
                if line.startswith("MemAvailable"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def _component(graph: sp.csr_array, vertices: np.ndarray) -> float:
    """Entries of L of one connected part."""
    total = 0.0
    parts = [vertices]
    seen: list[tuple[float, float]] = []
    for _ in range(DEPTH):
        halves: list[np.ndarray] = []
        for part in parts:
            if len(part) <= SMALLEST:
                total += len(part) * (len(part) + 1) / 2
                continue
            left, separator, right = _halve(graph, part)
            s = float(len(separator))
            seen.append((float(len(part)), max(s, 1.0)))
            total += s * (s + 1) / 2 + s * BOUNDARY * s
            halves += [h for h in (left, right) if len(h)]
        parts = halves
        if not parts:
            break
    if not seen:
        return total
    sizes, separators = np.log(np.array(seen)).T
    spread = sizes - sizes.mean()
    slope = float(spread @ separators / (spread @ spread)) if len(seen) > 2 and np.ptp(sizes) > 0.5 else 0.5
    slope = min(max(slope, 0.0), 1.0)
    factor = float(np.exp((separators - slope * sizes).mean()))
    return total + sum(_below(float(len(p)), factor, slope) for p in parts)


def _below(n: float, factor: float, slope: float) -> float:
    """f(n) = (1/2 + boundary) s(n)^2 + 2 f(n / 2) with s = factor n^slope, down to dense parts."""
    total, copies = 0.0, 1.0
    while n > SMALLEST:
        s = min(factor * n**slope, n / 2)
        total += copies * (0.5 + BOUNDARY) * s * s
        n, copies = (n - s) / 2, 2 * copies
    # A part of at most 64 vertices fills about as much as a banded matrix does.
    return total + copies * n * min(n / 2, max(4.0, factor * n**slope))


def _halve(graph: sp.csr_array, part: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The two sides of the middle level of a breadth-first search from far out, and that level."""
    local = sp.csr_array(graph[part][:, part])
    order, before = breadth_first_order(local, 0, directed=False)
    order, before = breadth_first_order(local, int(order[-1]), directed=False)
    level = np.zeros(len(part), dtype=np.int64)
    positions = np.empty(len(part), dtype=np.int64)
    positions[order] = np.arange(len(order))
    # The levels in the order of the search: one more than that of the vertex before.
    parents = before[order]
    starts, depth = 0, 0
    while starts < len(order):
        level[order[starts]] = depth
        after = positions[parents[starts + 1 :]] if starts + 1 < len(order) else np.zeros(0, dtype=np.int64)
        stop = starts + 1 + (int(np.searchsorted(after, starts)) if depth else 0)
        level[order[starts:stop]] = depth
        starts, depth = stop, depth + 1
    reached = np.zeros(len(part), dtype=bool)
    reached[order] = True
    counts = np.cumsum(np.bincount(level[reached], minlength=depth))
    middle = int(np.searchsorted(counts, len(order) / 2))
    left = reached & (level < middle)
    separator = reached & (level == middle)
    return part[left], part[separator], part[~left & ~separator]
