"""An entry of the matrix sign on a Krylov space, and where it vanishes, on the CPU.

Of the eigenvectors only two products are needed, V^T a and V^T (b + lambda a): Householder's reflections and
the rotations of the implicit QL iteration are applied to these two vectors, and V is never formed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icml_kernels.matrices.krylov_sign import reference
from icml_kernels.njit import njit

GRID, GRID_RATIO = reference.GRID, reference.GRID_RATIO
MOST_ITERATIONS, SETTLED = reference.MOST_ITERATIONS, reference.SETTLED
EPSILON = reference.EPSILON
SWEEPS = 60  # of the QL iteration for one eigenvalue; two or three are usual


def sign_entry(
    t: Tensor, a: Tensor, b: Tensor, overlap: Tensor, square: Tensor, coefficients: Tensor, lam: Tensor
) -> Tensor:
    """See ``reference.sign_entry``."""
    out = torch.empty_like(lam)
    _entries(*_arrays(t, a, b, overlap, square, coefficients, lam), out.numpy())
    return out


def sign_root(
    t: Tensor,
    a: Tensor,
    b: Tensor,
    overlap: Tensor,
    square: Tensor,
    coefficients: Tensor,
    largest: float,
    adaptive: bool,
) -> Tensor:
    """See ``reference.sign_root``; the search ends at the first change of sign."""
    out = torch.empty_like(overlap)
    _roots(*_arrays(t, a, b, overlap, square, coefficients), largest, out.numpy())
    return out


def sign_root_near(
    t: Tensor,
    a: Tensor,
    b: Tensor,
    overlap: Tensor,
    square: Tensor,
    coefficients: Tensor,
    center: Tensor,
    shift: Tensor,
    tilt: Tensor,
    reach: Tensor,
    largest: float,
    adaptive: bool,
) -> Tensor:
    """See ``reference.sign_root_near``."""
    out = torch.empty_like(overlap)
    given = _arrays(t, a, b, overlap, square, coefficients, center, shift, tilt, reach)
    _roots_near(*given, largest, out.numpy())
    return out


def _arrays(*tensors: Tensor) -> list[Any]:
    return [t.contiguous().numpy() for t in tensors]


@njit
def _entry(given, lam, scratch):
    """h at one multiplier of one matrix."""
    t, a, b, overlap, square, coefficients = given
    work, left, right, diagonal, beside = scratch
    k = len(a)
    for i in range(k):
        left[i] = a[i]
        right[i] = b[i] + lam * a[i]
        for j in range(k):
            work[i, j] = t[i, j] + lam * (a[i] * b[j] + b[i] * a[j]) + lam * lam * a[i] * a[j]
    _tridiagonal(work, diagonal, beside, left, right)
    _implicit_ql(diagonal, beside, left, right)
    norm = math.sqrt(max(square + 2.0 * lam * overlap + lam * lam, 0.0))
    inverse = 1.0 / (norm + EPSILON)
    total = 0.0
    for i in range(k):
        y2 = max(diagonal[i], 0.0) * inverse * inverse
        ratio = inverse
        for c in range(len(coefficients)):
            factor = (coefficients[c, 2] * y2 + coefficients[c, 1]) * y2 + coefficients[c, 0]
            ratio *= factor
            y2 *= factor * factor
        total += left[i] * ratio * right[i]
    return total


@njit
def _tridiagonal(work, diagonal, beside, left, right):
    """Householder's reduction of a symmetric matrix; the reflections are applied to two vectors."""
    k = len(diagonal)
    vector, image = np.empty(k), np.empty(k)
    for j in range(k - 2):
        rest = 0.0
        for i in range(j + 2, k):
            rest += work[i, j] * work[i, j]
        head = work[j + 1, j]
        diagonal[j] = work[j, j]
        if rest == 0.0:
            beside[j] = head
            continue
        alpha = math.sqrt(head * head + rest)
        if head > 0.0:
            alpha = -alpha
        beside[j] = alpha
        vector[j + 1] = head - alpha
        for i in range(j + 2, k):
            vector[i] = work[i, j]
        beta = 2.0 / (vector[j + 1] * vector[j + 1] + rest)
        along_left, along_right, middle = 0.0, 0.0, 0.0
        for i in range(j + 1, k):
            along_left += vector[i] * left[i]
            along_right += vector[i] * right[i]
            total = 0.0
            for c in range(j + 1, k):
                total += work[i, c] * vector[c]
            image[i] = beta * total
            middle += vector[i] * image[i]
        for i in range(j + 1, k):
            left[i] -= beta * along_left * vector[i]
            right[i] -= beta * along_right * vector[i]
            image[i] -= 0.5 * beta * middle * vector[i]
        for i in range(j + 1, k):
            for c in range(j + 1, k):
                work[i, c] -= vector[i] * image[c] + image[i] * vector[c]
    for j in range(max(k - 2, 0), k):
        diagonal[j] = work[j, j]
    if k > 1:
        beside[k - 2] = work[k - 1, k - 2]
    beside[k - 1] = 0.0


@njit
def _implicit_ql(diagonal, beside, left, right):
    """Eigenvalues of a symmetric tridiagonal matrix; the rotations are applied to two vectors."""
    k = len(diagonal)
    for first in range(k):
        for _ in range(SWEEPS):
            last = first
            while last < k - 1:
                size = abs(diagonal[last]) + abs(diagonal[last + 1])
                if abs(beside[last]) <= 2.3e-16 * size:
                    break
                last += 1
            if last == first:
                break
            g = (diagonal[first + 1] - diagonal[first]) / (2.0 * beside[first])
            r = math.hypot(g, 1.0)
            g = diagonal[last] - diagonal[first] + beside[first] / (g + math.copysign(r, g))
            sine, cosine, passed = 1.0, 1.0, 0.0
            split = False
            for i in range(last - 1, first - 1, -1):
                f, h = sine * beside[i], cosine * beside[i]
                r = math.sqrt(f * f + g * g)
                beside[i + 1] = r
                if r == 0.0:
                    diagonal[i + 1] -= passed
                    beside[last] = 0.0
                    split = True
                    break
                sine, cosine = f / r, g / r
                g = diagonal[i + 1] - passed
                r = (diagonal[i] - g) * sine + 2.0 * cosine * h
                passed = sine * r
                diagonal[i + 1] = g + passed
                g = cosine * r - h
                below, above = left[i], left[i + 1]
                left[i + 1], left[i] = sine * below + cosine * above, cosine * below - sine * above
                below, above = right[i], right[i + 1]
                right[i + 1], right[i] = sine * below + cosine * above, cosine * below - sine * above
            if split:
                continue
            diagonal[first] -= passed
            beside[first] = g
            beside[last] = 0.0


@njit
def _bracketed(given, low, high, f_low, f_high, center, shift, tilt, scratch):
    """Regula falsi with Illinois' halving, every third point the middle."""
    if not f_low * f_high <= 0.0:
        return low if abs(f_low) < abs(f_high) else high
    for iteration in range(MOST_ITERATIONS):
        width = f_high - f_low
        middle = high
        if iteration % 3 == 2:
            middle = (low + high) / 2
        elif abs(width) > 1e-300:
            middle = high - f_high * (high - low) / width
        value = _entry(given, middle, scratch) + shift + tilt * (middle - center)
        if value * f_high > 0.0:
            f_low /= 2
        else:
            low, f_low = high, f_high
        high, f_high = middle, value
        if not (abs(value) > SETTLED and abs(high - low) > SETTLED):
            break
    return high


@njit
def _scratch(k):
    return np.empty((k, k)), np.empty(k), np.empty(k), np.empty(k), np.empty(k)


@njit
def _entries(t, a, b, overlap, square, coefficients, lam, out):
    scratch = _scratch(a.shape[1])
    for n in range(len(a)):
        given = (t[n], a[n], b[n], overlap[n], square[n], coefficients)
        for point in range(lam.shape[1]):
            out[n, point] = _entry(given, lam[n, point], scratch)


@njit
def _roots(t, a, b, overlap, square, coefficients, largest, out):
    scratch = _scratch(a.shape[1])
    for n in range(len(a)):
        given = (t[n], a[n], b[n], overlap[n], square[n], coefficients)
        start = _entry(given, 0.0, scratch)
        if start == 0.0:
            out[n] = 0.0
            continue
        # h rises with lambda: where h(0) is positive the root is negative.
        side = -1.0 if start > 0.0 else 1.0
        low, f_low, high, f_high = 0.0, start, 0.0, start
        for point in range(GRID):
            low, f_low = high, f_high
            high = side * largest * GRID_RATIO ** (point + 1.0 - GRID)
            f_high = _entry(given, high, scratch)
            if f_high * side >= 0.0:
                break
        out[n] = _bracketed(given, low, high, f_low, f_high, 0.0, 0.0, 0.0, scratch)


@njit
def _roots_near(t, a, b, overlap, square, coefficients, center, shift, tilt, reach, largest, out):
    scratch = _scratch(a.shape[1])
    for n in range(len(a)):
        given = (t[n], a[n], b[n], overlap[n], square[n], coefficients)
        low = min(max(center[n] - reach[n], -largest), largest)
        high = min(max(center[n] + reach[n], -largest), largest)
        f_low = _entry(given, low, scratch) + shift[n] + tilt[n] * (low - center[n])
        f_high = _entry(given, high, scratch) + shift[n] + tilt[n] * (high - center[n])
        out[n] = _bracketed(given, low, high, f_low, f_high, center[n], shift[n], tilt[n], scratch)
