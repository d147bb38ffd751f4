"""Which implementation is used: the compiled loops of icml-kernels where they are installed, else NumPy's.

The extra ``fast`` installs them. Both give the same results to the last bit, so nothing but time depends on
the choice. Small work stays with NumPy, which has done it before threads have started. The environment
variable ``ICML_BTT_COMPILED`` asks for one: 0 for NumPy, 1 for the loops, whatever the size.
"""

from __future__ import annotations

import math
import os
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
from scipy import sparse

WORTH = 4096
"""Stored entries of a matrix, or triangles, from which compiled loops are worth their start."""


def kernels(work: float = math.inf) -> Any | None:
    """The module ``icml_kernels``; None where it is not installed, not asked for, or the work too small.

    Args:
        work: stored entries of the matrix, or triangles, that are gone through.
    """
    asked = os.environ.get("ICML_BTT_COMPILED", "auto")
    if asked == "0" or (asked != "1" and work < WORTH):
        return None
    return _import()


@cache
def _import() -> Any | None:
    try:
        import_module("numba")
        return import_module("icml_kernels")
    except ImportError:
        return None


def tensor(array: np.ndarray) -> Any:
    """A tensor on the memory of the array, or on a copy where that must not be written to."""
    import torch

    contiguous = np.ascontiguousarray(array)
    return torch.from_numpy(contiguous if contiguous.flags.writeable else contiguous.copy())


def graph_tensors(matrix: sparse.csr_array) -> tuple[Any, Any]:
    """Bounds and columns of the rows of a sparse matrix, in one dtype."""
    dtype = np.promote_types(matrix.indptr.dtype, matrix.indices.dtype)
    return tensor(matrix.indptr.astype(dtype, copy=False)), tensor(matrix.indices.astype(dtype, copy=False))
