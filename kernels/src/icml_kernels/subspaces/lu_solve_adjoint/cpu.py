"""The adjoint of sparse factors solved against a block on the CPU: eight columns at a time.

A column of a factor is a row of its adjoint, so that each unknown is one sum of gathered rows of the block,
and is written once. A row of eight doubles is a cache line, and the factors are read once for eight columns.
LLVM unrolls a loop over eight before it would make vector instructions of it; hence a sum of four rows is
given to it as operations on vectors.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core.cgutils import ir
from numba.extending import intrinsic, overload
from torch import Tensor

from icml_kernels.njit import njit

WIDTH = 8  # columns at a time
FLAGS = ("contract", "reassoc", "nsz")


def forward(
    l_data: Tensor,
    l_indices: Tensor,
    l_indptr: Tensor,
    u_data: Tensor,
    u_indices: Tensor,
    u_indptr: Tensor,
    diagonal: Tensor,
    order: Tensor,
    b: Tensor,
) -> Tensor:
    """See ``reference.forward``."""
    out = b.new_empty(b.shape[1], b.shape[0]).T
    # Unsigned: numba asks of signed indices, at every access, whether they count from the end.
    li, lp, ui, up, places = (
        t.contiguous().numpy().view(np.uint32) for t in (l_indices, l_indptr, u_indices, u_indptr, order)
    )
    l, u, d = (t.resolve_conj().contiguous().numpy() for t in (l_data, u_data, diagonal))
    work = np.empty((len(b), WIDTH), dtype=d.dtype)
    _solve(l, li, lp, u, ui, up, d, places, b.resolve_conj().numpy(), work, out.numpy())
    return out


@njit(nogil=True)
def _solve(l_data, l_indices, l_indptr, u_data, u_indices, u_indptr, diagonal, order, b, x, out):
    row = np.empty(WIDTH, dtype=x.dtype)
    for first in range(0, b.shape[1], WIDTH):
        width = min(WIDTH, b.shape[1] - first)
        for i in range(b.shape[0]):
            for c in range(width):
                x[i, c] = b[order[i], first + c]
            for c in range(width, WIDTH):
                x[i, c] = 0
        for i in range(len(diagonal)):
            _gather(row, x, i, u_data, u_indices, np.uint64(u_indptr[i]), np.uint64(u_indptr[i + 1]))
            pivot = np.conj(diagonal[i])
            for c in range(WIDTH):
                x[i, c] = row[c] / pivot
        for i in range(len(diagonal) - 1, -1, -1):
            _gather(row, x, i, l_data, l_indices, np.uint64(l_indptr[i]), np.uint64(l_indptr[i + 1]))
            for c in range(WIDTH):
                x[i, c] = row[c]
        for i in range(out.shape[0]):
            for c in range(width):
                out[order[i], first + c] = x[i, c]


@njit(nogil=True)
def _gather(row, x, i, data, indices, start, stop):
    """Row i less the others of its column; the diagonal entry, where it is stored, meets a zero."""
    for c in range(WIDTH):
        row[c] = x[i, c]
        x[i, c] = 0
    p = start
    while p + np.uint64(3) < stop:
        q, r, s = p + np.uint64(1), p + np.uint64(2), p + np.uint64(3)
        j = (indices[p], indices[q], indices[r], indices[s])
        v = (np.conj(data[p]), np.conj(data[q]), np.conj(data[r]), np.conj(data[s]))
        _subtract_four(row, x, j, v)
        p += np.uint64(4)
    while p < stop:
        j, v = indices[p], np.conj(data[p])
        for c in range(WIDTH):
            row[c] -= v * x[j, c]
        p += np.uint64(1)


def _subtract_four(row, x, j, v):
    """Row less v_0 x_j0 + v_1 x_j1 + v_2 x_j2 + v_3 x_j3; real numbers take `_vectors` instead."""
    for c in range(WIDTH):
        row[c] -= v[0] * x[j[0], c] + v[1] * x[j[1], c] + v[2] * x[j[2], c] + v[3] * x[j[3], c]


@overload(_subtract_four, jit_options={"fastmath": set(FLAGS)}, inline="always")
def _choose(row, x, j, v):
    if isinstance(x.dtype, types.Complex):
        return _subtract_four

    def in_vectors(row, x, j, v):
        _vectors(row.ctypes.data, x.ctypes.data, j[0], j[1], j[2], j[3], v[0], v[1], v[2], v[3])

    return in_vectors


@intrinsic
def _vectors(
    typing: Any, to: Any, rows: Any, j0: Any, j1: Any, j2: Any, j3: Any, v0: Any, v1: Any, v2: Any, v3: Any
) -> Any:
    """The same for real numbers, with the row at address `to`, and x from address `rows` on."""

    def build(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = context.get_value_type(v0)
        vector, word = ir.VectorType(number, WIDTH), ir.IntType(64)
        size = context.get_abi_sizeof(number)
        undefined, lanes = ir.Constant(vector, ir.Undefined), ir.VectorType(ir.IntType(32), WIDTH)

        def at(address: Any) -> Any:
            return builder.inttoptr(address, vector.as_pointer())

        products = []
        for j, v in zip(arguments[2:6], arguments[6:10], strict=True):
            offset = builder.mul(builder.zext(j, word), ir.Constant(word, WIDTH * size))
            x = builder.load(at(builder.add(arguments[1], offset)), align=size)
            first = builder.insert_element(undefined, v, ir.Constant(ir.IntType(32), 0))
            spread = builder.shuffle_vector(first, undefined, ir.Constant(lanes, [0] * WIDTH))
            products.append(builder.fmul(spread, x, flags=FLAGS))
        halves = [builder.fadd(*products[k : k + 2], flags=FLAGS) for k in (0, 2)]
        old = builder.load(at(arguments[0]), align=size)
        new = builder.fsub(old, builder.fadd(*halves, flags=FLAGS), flags=FLAGS)
        builder.store(new, at(arguments[0]), align=size)
        return context.get_dummy_value()

    return types.void(to, rows, j0, j1, j2, j3, v0, v1, v2, v3), build
