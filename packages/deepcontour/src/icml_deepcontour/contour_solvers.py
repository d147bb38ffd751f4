"""Eigenpairs inside a contour by integration: CIRR, SSM and FEAST.

CIRR (block Rayleigh-Ritz of contour moments, T. Sakurai and H. Tadano, Hokkaido Math. J. 36 (2007) 745-757):

    S_k = sum_j w_j ((z_j - c) / rho)^k (z_j B - A)^-1 B V,   Q = orth [S_0 ... S_{K-1}]
    (Q^H A Q) y = lambda (Q^H B Q) y,   x = Q y

SSM takes the eigenvalues from the Hankel matrices of V^H B S_k instead (T. Sakurai and H. Sugiura, J. Comput.
Appl. Math. 159 (2003) 119-128). FEAST is K = 1 with more columns, iterated (E. Polizzi, Phys. Rev. B 79
(2009) 115112). All refine: the next V mixes all Ritz vectors at random, and the factors are kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.linalg
from jaxtyping import Float, Num

from icml_deepcontour.contour import Contour
from icml_deepcontour.pencil import Pencil
from icml_deepcontour.resolvent import Moments, stochastic_count
from icml_deepcontour.slices import residuals

RANK = 1e-12  # of the largest singular value of S
ROOM = 1.5  # columns of S for each eigenvalue that is expected
SPURIOUS = 0.1  # a residual above this belongs to no eigenpair
PATIENCE = 4  # iterations after which a residual above that is believed
REFINEMENTS = 8
ENLARGEMENTS = 4
METHODS = ("cirr", "ssm", "feast")


@dataclass(frozen=True)
class ContourResult:
    """Eigenpairs inside a contour.

    Attributes:
        values: those whose residual meets the tolerance, by real part.
        vectors: [n, k], B-orthonormal for Hermitian pencils, else of unit length.
        residuals: of these.
        unconverged: pairs inside that have not met it.
        estimate: stochastic estimate of the number inside.
        iterations: of refinement, the first included.
        factorizations, solves: complex ones.
        columns: L at the end.
    """

    values: Num[np.ndarray, " k"]
    vectors: Num[np.ndarray, "n k"]
    residuals: Float[np.ndarray, " k"]
    unconverged: int
    estimate: float
    iterations: int
    factorizations: int
    solves: int
    columns: int


def cirr(
    A: Any, B: Any, contour: Contour, tol: float = 1e-8, *, moments: int = 4, **options: Any
) -> ContourResult:
    """Contour integral Rayleigh-Ritz; the paper's solver. Options as for `contour_eigs`.

    Example:
        >>> import scipy.sparse as sp
        >>> found = cirr(sp.diags_array(np.arange(1.0, 21.0)), None, Contour(3.2, 1.5, expected=3))
        >>> found.values.round(8).tolist()
        [2.0, 3.0, 4.0]
    """
    return contour_eigs(A, B, contour, tol, method="cirr", moments=moments, **options)


def ssm(
    A: Any, B: Any, contour: Contour, tol: float = 1e-8, *, moments: int = 4, **options: Any
) -> ContourResult:
    """Sakurai-Sugiura with block Hankel matrices. Options as for `contour_eigs`."""
    return contour_eigs(A, B, contour, tol, method="ssm", moments=moments, **options)


def feast(A: Any, B: Any, contour: Contour, tol: float = 1e-8, **options: Any) -> ContourResult:
    """FEAST: subspace iteration with the filter of the contour. Options as for `contour_eigs`."""
    return contour_eigs(A, B, contour, tol, method="feast", moments=1, **options)


def contour_eigs(
    A: Any,
    B: Any,
    contour: Contour,
    tol: float = 1e-8,
    *,
    method: str = "cirr",
    moments: int = 4,
    nodes: int | None = None,
    columns: int | None = None,
    rule: str | None = None,
    refinements: int = REFINEMENTS,
    workers: int = 1,
    max_bytes: float | None = None,
    seed: int = 0,
) -> ContourResult:
    """Eigenpairs of A x = lambda B x inside a contour.

    Args:
        A: sparse or dense, [n, n]; Hermitian with B >= 0 is recognised and used.
        B: the same size, or None for the identity.
        contour: where; its `expected` sets the size of the subspace, its `outside` the number of nodes.
        tol: residual, see `slices.residuals`.
        method: ``"cirr"``, ``"ssm"`` or ``"feast"``.
        moments: K; columns times moments is 1.5 times what is expected.
        nodes: N of the upper half; from the predicted gap by default, 6 to 16.
        columns: L; grows while the moments have full rank.
        rule: quadrature: ``"trapezoid"``, for FEAST ``"gauss"``.
        refinements: at most so many.
        workers: nodes at the same time, in threads.
        max_bytes: of all factors.
        seed: of V.

    Raises:
        ValueError: matrices or options that do not fit; a contour around a Hermitian spectrum off the real
            axis.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r} is none of {', '.join(METHODS)}")
    if moments < 1 or refinements < 0 or not 0 < tol < 1:
        raise ValueError(
            f"moments={moments}, refinements={refinements}, tol={tol}: expected >= 1, >= 0, in (0, 1)"
        )
    pencil = A if isinstance(A, Pencil) else Pencil.of(A, B)
    rule = rule or ("gauss" if method == "feast" else "trapezoid")
    expected = contour.expected or 16
    # The Hankel matrices of SSM hold half of the moments.
    held = max(moments // 2, 1) if method == "ssm" else moments
    L = columns or math.ceil((ROOM * expected + 2) / held)
    L = min(max(L, 2), pencil.n)
    run = Moments(
        pencil, contour, nodes or contour.nodes_wanted(), rule, workers=workers, max_bytes=max_bytes
    )
    rng = np.random.default_rng(seed)
    V = _random(rng, pencil, L)
    estimate, sigma, enlarged = float("nan"), 0.0, 0
    values = np.zeros(0)
    for iteration in range(1, refinements + 2):
        S = run(V, moments)
        if math.isnan(estimate):
            estimate, sigma = stochastic_count(pencil, V, S[:, :L])
        Q, full = _range(S)
        full = full and Q.shape[1] < pencil.n
        inside_limit = Q.shape[1]
        values, X = _ritz(pencil, Q, V, S, L, moments, method, contour)
        r = residuals(pencil, values, X, tol)
        inside = contour.contains(values)
        # As many inside as the subspace has room for: more may be there.
        crowded = full and int(inside.sum()) > inside_limit / ROOM
        # Off the Hermitian case nothing else counts: the trace says that some are not in the subspace yet.
        held_inside = int((inside & (r <= tol)).sum())
        crowded = crowded or (not pencil.hermitian and estimate - 2 * sigma > held_inside)
        waiting = inside & (r > tol) & (r < SPURIOUS)
        if crowded and enlarged < ENLARGEMENTS and pencil.n >= 2 * L:
            enlarged += 1
            V = np.concatenate([V, _random(rng, pencil, L)], axis=1)
            L *= 2
            continue
        # What stays far from an eigenpair for several iterations is none.
        if not waiting.any() and (iteration >= PATIENCE or not (inside & (r >= SPURIOUS)).any()):
            break
        if iteration <= refinements:
            # Weighted by the filter, so that what lies outside fades from one iteration to the next.
            X = X * np.minimum(np.abs(run.filter(values)), 1.0)
            if run.real and np.iscomplexobj(X):
                X = np.concatenate([X.real, X.imag], axis=1)
            mix = rng.standard_normal((X.shape[1], L))
            V = X @ mix if method != "feast" else _padded(X, L, rng, pencil)
            V = V / np.maximum(np.linalg.norm(V, axis=0), np.finfo(float).tiny) * np.sqrt(pencil.n)
    kept = inside & (r <= tol)
    order = np.argsort(values[kept].real, kind="stable")
    values, X, r = values[kept][order], X[:, kept][:, order], r[kept][order]
    at = np.argmax(np.abs(X), axis=0) if X.shape[1] else np.zeros(0, dtype=int)
    top = X[at, np.arange(X.shape[1])]
    X = X * (np.abs(top) / np.where(top == 0, 1, top))
    return ContourResult(
        values, X, r, int(waiting.sum()), estimate, iteration, run.factorizations, run.solves, L
    )


def _random(rng: np.random.Generator, pencil: Pencil, columns: int) -> np.ndarray:
    V = rng.standard_normal((pencil.n, columns))
    return V.astype(pencil.dtype)


def _padded(X: np.ndarray, L: int, rng: np.random.Generator, pencil: Pencil) -> np.ndarray:
    """The L strongest directions of the weighted Ritz vectors, or random columns beside fewer than L."""
    if X.shape[1] > L:
        u, s, _ = np.linalg.svd(X, full_matrices=False)
        return u[:, :L] * np.maximum(s[:L], np.finfo(float).eps * s[0]) if s[0] > 0 else u[:, :L]
    return np.concatenate([X, _random(rng, pencil, L - X.shape[1]).astype(X.dtype)], axis=1)


def _range(S: np.ndarray) -> tuple[np.ndarray, bool]:
    """Left singular vectors of S above 1e-12 of the largest, and whether these are all."""
    q, r = np.linalg.qr(S / np.maximum(np.linalg.norm(S, axis=0), np.finfo(float).tiny))
    u, s, _ = np.linalg.svd(r)
    rank = int(np.count_nonzero(s > RANK * s[0])) if s[0] > 0 else 0
    return q @ u[:, :rank], rank == S.shape[1]


def _ritz(
    pencil: Pencil, Q: np.ndarray, V: np.ndarray, S: np.ndarray, L: int, K: int, method: str, contour: Contour
) -> tuple[np.ndarray, np.ndarray]:
    """Ritz pairs of the range of S; for SSM those of its Hankel pencil."""
    if method == "ssm" and K > 1:
        return _hankel(pencil, V, S, L, K, contour)
    a, b = Q.conj().T @ pencil.times_a(Q), Q.conj().T @ pencil.times_b(Q)
    if pencil.hermitian:
        try:
            values, y = scipy.linalg.eigh((a + a.conj().T) / 2, (b + b.conj().T) / 2)
            return values, Q @ y
        except np.linalg.LinAlgError:
            pass  # B is indefinite on the subspace
    values, y = scipy.linalg.eig(a, b)
    finite = np.isfinite(values)
    X = Q @ y[:, finite]
    return values[finite], X / np.maximum(np.linalg.norm(X, axis=0), np.finfo(float).tiny)


def _hankel(
    pencil: Pencil, V: np.ndarray, S: np.ndarray, L: int, K: int, contour: Contour
) -> tuple[np.ndarray, np.ndarray]:
    """H< y = zeta H y with H_ij = V^H B S_{i+j}; lambda = c + rho zeta, x = [S_0 ... ] y."""
    blocks = [(V.conj().T @ pencil.times_b(S[:, k * L : (k + 1) * L])) for k in range(K)]
    m = K // 2
    H = np.block([[blocks[i + j] for j in range(m)] for i in range(m)])
    shifted = np.block([[blocks[i + j + 1] for j in range(m)] for i in range(m)])
    u, s, vh = np.linalg.svd(H)
    rank = max(int(np.count_nonzero(s > RANK * s[0])), 1)
    small = u[:, :rank].conj().T @ shifted @ vh[:rank].conj().T / s[:rank]
    zeta, y = np.linalg.eig(small)
    X = S[:, : m * L] @ (vh[:rank].conj().T / s[:rank] @ y)
    values = contour.center + contour.radius * np.exp(1j * contour.angle) * zeta
    X = X / np.maximum(np.linalg.norm(X, axis=0), np.finfo(float).tiny)
    if pencil.hermitian:
        # Real values and vectors up to rounding: one Rayleigh-Ritz step makes them so.
        spanned = np.concatenate([X.real, X.imag], axis=1) if pencil.dtype.kind == "f" else X
        return _ritz(pencil, _range(spanned)[0], V, S, L, K, "cirr", contour)
    return values, X
