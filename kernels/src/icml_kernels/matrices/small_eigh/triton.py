"""Eigenvalues of small symmetric matrices with Triton: Jacobi's rotations, many at once, a program a matrix.

A rotation of rows and columns p and q makes the entry a_pq zero. Disjoint pairs are rotated together, and the
pairs change as in a round-robin tournament, so that each meets once in a sweep (Brent and Luk, SIAM J. Sci.
Stat. Comput. 6, 69-84, 1985). With g = a_qq - a_pp and o = a_pq

    t = sign(g) 2 o / (|g| + sqrt(g^2 + 4 o^2)),   c = 1 / sqrt(1 + t^2),   s = c t
    row p <- c row p - s row q,   a_pp <- a_pp - t o          (the same for q: there t has the other sign)

Golub and Van Loan, Matrix Computations, section 8.5. Each lane thus rotates its own row by the same formula,
with nothing but the row of its partner. Convergence is quadratic, and the loop ends on the device: nothing is
read by the host.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.matrices.small_eigh import LARGEST, reference

SWEEPS = 16  # at most; convergence is quadratic, and the loop ends where it has settled
# Entries beside the diagonal, over the largest of the matrix, that change nothing any more.
SETTLED = {torch.float32: 4e-9, torch.float64: 1e-17}
WARPS = {8: 1, 16: 2, 32: 8}  # of a program, by rows after padding; with fewer, or at 64 rows, some spill
_TYPES = {torch.float32: "*fp32", torch.float64: "*fp64"}


def small_eigh(a: Tensor) -> tuple[Tensor, Tensor]:
    """See ``reference.small_eigh``, which also takes what is larger than the kernel."""
    batch, size = a.shape[:2]
    if size > LARGEST:
        return reference.small_eigh(a)
    values, rows = a.new_empty(batch, size), a.new_empty(batch, size, size)
    block = max(min(WARPS), triton.next_power_of_2(size))
    if batch:
        small_eigh_kernel[(batch,)](
            a,
            values,
            rows,
            size,
            *a.stride(),
            SWEEPS=SWEEPS,
            SETTLED=SETTLED[a.dtype],
            BLOCK=block,
            num_warps=WARPS[block],
            enable_fp_fusion=True,
        )
    return values, rows.mT


def specializations() -> list[Specialization]:
    """What is compiled ahead of time."""
    found = []
    for dtype, kind in _TYPES.items():
        for block, warps in WARPS.items():
            signature = dict.fromkeys(("a", "values", "vectors"), kind)
            signature |= dict.fromkeys(("size", "stride_b", "stride_r", "stride_c"), "i32")
            constants = {"SWEEPS": SWEEPS, "SETTLED": SETTLED[dtype], "BLOCK": block}
            found.append(Specialization(small_eigh_kernel, signature, constants, warps))
    return found


@triton.jit
def small_eigh_kernel(
    a,
    values,
    vectors,
    size,
    stride_b,
    stride_r,
    stride_c,
    SWEEPS: tl.constexpr,
    SETTLED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Eigenvalues of one matrix, and its eigenvectors as rows, in ascending order."""
    matrix = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BLOCK)
    i, j = row[:, None], row[None, :]
    high, low = tl.maximum(i, j).to(tl.int64), tl.minimum(i, j).to(tl.int64)
    place = a + matrix * stride_b + high * stride_r + low * stride_c
    given = tl.load(place, mask=high < size, other=0.0)
    scale, inverse = _powers_of_two(_largest(given))
    given = given * inverse
    # The diagonal stands apart, in float64; what is beside it goes to zero.
    diagonal = tl.sum(tl.where(i == j, given, 0.0), 1).to(tl.float64)
    rest = tl.where(i == j, 0.0, given)
    basis = tl.where(i == j, 1.0, 0.0).to(given.dtype)
    players = size + size % 2
    largest = _largest(rest)
    sweep = 0
    while (sweep < SWEEPS) & (largest > SETTLED):
        for turn in range(players - 1):
            partner = _partners(row, turn, players)
            diagonal, rest, basis = _rotated(diagonal, rest, basis, row, partner, BLOCK)
        largest = _largest(rest)
        sweep += 1
    rank = _ranks(diagonal, row, size)
    tl.store(values + matrix * size + rank, (diagonal * scale).to(given.dtype), mask=row < size)
    place = vectors + matrix * size * size + rank[:, None] * size + j
    tl.store(place, basis, mask=(i < size) & (j < size))


@triton.jit
def _largest(x):
    """The largest magnitude of an entry."""
    return tl.max(tl.max(tl.abs(x), 1), 0)


@triton.jit
def _powers_of_two(x):
    """The power of two at or below a positive number, and its inverse, by the bits of the exponent."""
    if x.dtype == tl.float64:
        exponent = x.to(tl.int64, bitcast=True) >> 52
        exponent = tl.minimum(tl.maximum(exponent, 1), 2045)
        scale = (exponent << 52).to(tl.float64, bitcast=True)
        inverse = ((2046 - exponent) << 52).to(tl.float64, bitcast=True)
    else:
        exponent = x.to(tl.int32, bitcast=True) >> 23
        exponent = tl.minimum(tl.maximum(exponent, 1), 253)
        scale = (exponent << 23).to(tl.float32, bitcast=True)
        inverse = ((254 - exponent) << 23).to(tl.float32, bitcast=True)
    return scale.to(tl.float64), inverse


@triton.jit
def _partners(row, turn, players):
    """Whom each row meets: i and k with i + k = 2 turn modulo players - 1; the last player the one left."""
    last = players - 1
    partner = (2 * turn - row + last) % last
    partner = tl.where(partner == row, last, partner)
    partner = tl.where(row == last, turn, partner)
    return tl.where(row > last, row, partner)


@triton.jit
def _rotated(diagonal, rest, basis, row, partner, BLOCK: tl.constexpr):
    """Diagonal, the entries beside it, and eigenvectors as rows, after the rotations of all pairs."""
    i, j = row[:, None], row[None, :]
    # An entry and its mirror image differ by rounding; both of a pair must see the same one.
    across = tl.sum(tl.where(j == partner[:, None], rest, 0.0), 1)
    mirrored = tl.sum(tl.where(i == partner[None, :], rest, 0.0), 0)
    off = 0.5 * (across + mirrored).to(tl.float64)
    gap = tl.gather(diagonal, partner, 0) - diagonal
    root = tl.abs(gap) + tl.sqrt(gap * gap + 4.0 * off * off)
    positive = (gap > 0.0) | ((gap == 0.0) & (row < partner))
    tangent = tl.where(root > 0.0, 2.0 * off / tl.where(root > 0.0, root, 1.0), 0.0)
    tangent = tl.where(positive, tangent, -tangent)
    cosine = 1.0 / tl.sqrt(1.0 + tangent * tangent)
    c = cosine.to(rest.dtype)
    s = (cosine * tangent).to(rest.dtype)
    rows = tl.broadcast_to(partner[:, None], (BLOCK, BLOCK))
    columns = tl.broadcast_to(partner[None, :], (BLOCK, BLOCK))
    basis = c[:, None] * basis - s[:, None] * tl.gather(basis, rows, 0)
    rest = c[:, None] * rest - s[:, None] * tl.gather(rest, rows, 0)
    rest = c[None, :] * rest - s[None, :] * tl.gather(rest, columns, 1)
    # Zero by construction, and the diagonal, of which only rounding would enter here.
    rest = tl.where((j == partner[:, None]) | (i == j), 0.0, rest)
    return diagonal - tangent * off, rest, basis


@triton.jit
def _ranks(diagonal, row, size):
    """The place of each eigenvalue in ascending order; numbers that are none, and padding, come last."""
    key = tl.where((row < size) & (diagonal == diagonal), diagonal, float("inf"))
    here, there = key[:, None], key[None, :]
    before = (there < here) | ((there == here) & (row[None, :] < row[:, None]))
    return tl.sum(before.to(tl.int32), 1)
