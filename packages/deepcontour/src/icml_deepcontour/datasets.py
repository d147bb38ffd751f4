"""Families of pencils for tests, claims and training: deterministic, made here, nothing downloaded.

Every function gives an `Instance`: matrices, and the coefficient fields from which a predictor reads them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from scipy.spatial import cKDTree

FIELD = 24  # points of the reference grid on which fields are sampled, along each axis


@dataclass(frozen=True)
class Instance:
    """One pencil of a family.

    Attributes:
        A, B: sparse; B is None for the identity.
        fields: coefficients on the reference grid, [c, H, W].
        name: what it is.
    """

    A: sp.csc_array
    B: sp.csc_array | None
    fields: Float[np.ndarray, "c H W"]
    name: str


def plate(n: int, seed: int, *, size: int = FIELD) -> Instance:
    """Simply supported plate of variable stiffness, A = L diag(D) L, on n x n points of the unit square.

    L is the 5-point Dirichlet Laplacian, D = 1 + 1/2 sin(2 pi (x + a)) cos(2 pi (y + b)) and three random
    Fourier
    modes, the lumped mass 1 + 0.3 cos(2 pi x). For D = 1 and unit mass the eigenvalues are pi^4 (i^2 +
    j^2)^2.

    Args:
        n: points along an edge; n^2 rows.
        seed: chooses a, b and the modes.
        size: points of the fields along an edge.
    """
    _check(n, size)
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(size=2)
    modes = [
        (rng.integers(1, 4), rng.integers(1, 4), rng.uniform(), 0.1 * rng.uniform(-1, 1)) for _ in range(3)
    ]

    def stiffness(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        found = 1 + 0.5 * np.sin(2 * np.pi * (x + a)) * np.cos(2 * np.pi * (y + b))
        for i, j, phase, amplitude in modes:
            found = found + amplitude * np.cos(2 * np.pi * (i * x + j * y + phase))
        return np.maximum(found, 0.1)

    def mass(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return 1 + 0.3 * np.cos(2 * np.pi * x) + 0 * y

    return _plate(n, stiffness, mass, size, f"plate-{n}-{seed}")


def uniform_plate(n: int, *, size: int = FIELD) -> Instance:
    """The plate with D = 1 and unit mass: its eigenvalues come in exact pairs.

    They are (mu_i + mu_j)^2 with mu_i = 4 (n + 1)^2 sin^2(pi i / (2 (n + 1))).
    """
    _check(n, size)
    one = lambda x, y: np.ones_like(x + y)  # noqa: E731
    return _plate(n, one, one, size, f"uniform-plate-{n}")


def laplacian(shape: tuple[int, ...], *, neumann: bool = False) -> sp.csc_array:
    """Finite-difference Laplacian on a box with unit edges; Dirichlet values, or free with ``neumann=True``.

    Args:
        shape: points along each axis.
        neumann: cell-centred, with the constant as null vector.
    """
    if not shape or min(shape) < 2:
        raise ValueError(f"shape={shape}; expected at least 2 points along each axis")
    total = sp.csc_array((1, 1))
    for axis, n in enumerate(shape):
        h = 1 / n if neumann else 1 / (n + 1)
        main = np.full(n, 2.0)
        if neumann:
            main[0] = main[-1] = 1.0
        bands: Any = [-np.ones(n - 1), main, -np.ones(n - 1)]
        line: Any = sp.diags_array(bands, offsets=[-1, 0, 1]) / h**2
        total = (
            line
            if axis == 0
            else sp.kron(total, sp.eye_array(n)) + sp.kron(sp.eye_array(total.shape[0]), line)
        )
    return sp.csc_array(total)


def piezo(n: int, seed: int, *, condensed: bool = False, size: int = FIELD) -> Instance:
    """A clamped piezoelectric strip in plane strain: bilinear elements, displacements u and potential phi.

    A = [[K_uu, K_uphi], [K_phiu, -K_phiphi]] with mass on u only: B is singular, and every potential is an
    infinite eigenvalue. With ``condensed`` the potential is eliminated by its Schur complement, which is
    dense.
    Units: stiffness and density of the base material are 1, and so is its coupling but for a factor of 0.3
    to 0.6.

    Args:
        n: elements along an edge.
        seed: chooses stiffness and coupling of every place.
        condensed: eliminate phi.
        size: points of the fields along an edge.
    """
    _check(n, size)
    rng = np.random.default_rng(seed)
    amplitude, phase = 0.3 * rng.uniform(-1, 1, 3), rng.uniform(size=3)
    strength, twist = rng.uniform(0.3, 0.6), rng.uniform()

    def stiffness(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        waves = [amplitude[k] * np.cos(2 * np.pi * ((k + 1) * x + k * y + phase[k])) for k in range(3)]
        return np.maximum(1 + sum(waves), 0.2)

    def coupling(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return strength * (1 + 0.5 * np.sin(2 * np.pi * (y + twist))) + 0 * x

    centers = (np.arange(n) + 0.5) / n
    x, y = (g.ravel() for g in np.meshgrid(centers, centers, indexing="ij"))
    K, M, P, E = _piezo_elements(1.0 / n)
    corner = np.arange((n + 1) ** 2).reshape(n + 1, n + 1)
    nodes = np.stack([corner[:-1, :-1], corner[1:, :-1], corner[1:, 1:], corner[:-1, 1:]], axis=2).reshape(
        -1, 4
    )
    u = np.stack([2 * nodes, 2 * nodes + 1], axis=2).reshape(-1, 8)
    count = (n + 1) ** 2
    kuu = _assembled(K, stiffness(x, y), u, u, 2 * count, 2 * count)
    muu = _assembled(M, np.ones(len(x)), u, u, 2 * count, 2 * count)
    kup = _assembled(P, coupling(x, y), u, nodes, 2 * count, count)
    kpp = _assembled(E, np.ones(len(x)), nodes, nodes, count, count)
    clamped = corner[0]
    free_u = np.setdiff1d(np.arange(2 * count), np.concatenate([2 * clamped, 2 * clamped + 1]))
    free_p = np.setdiff1d(np.arange(count), corner[:, 0])  # the lower edge is an electrode at 0
    kuu, muu = kuu[free_u][:, free_u], muu[free_u][:, free_u]
    kup, kpp = kup[free_u][:, free_p], kpp[free_p][:, free_p]
    fields = np.stack([_sampled(f, size) for f in (stiffness, coupling)])
    name = f"piezo-{n}-{seed}"
    if condensed:
        from scipy.sparse.linalg import splu

        schur = kuu.toarray() + kup @ splu(sp.csc_array(kpp)).solve(kup.T.toarray())
        return Instance(sp.csc_array((schur + schur.T) / 2), sp.csc_array(muu), fields, name + "-condensed")
    A = sp.csc_array(sp.block_array([[kuu, kup], [kup.T, -kpp]]))
    B = sp.csc_array(sp.block_diag([muu, sp.csc_array(kpp.shape)]))
    B.eliminate_zeros()
    return Instance(A, B, fields, name)


def waveguide(
    n: int, seed: int, *, wavenumber: float = 12.0, loss: float = 0.0, size: int = FIELD
) -> Instance:
    """Cross-section of a dielectric waveguide, (-Laplacian - k^2 eps) u = lambda u; lambda = -beta^2.

    Guided modes have negative lambda. With ``loss`` the core absorbs: A is complex symmetric and not
    Hermitian.

    Args:
        n: points along an edge of the unit square.
        seed: places and widens the core.
        wavenumber: k, per edge.
        loss: imaginary part of the core's permittivity.
        size: points of the fields along an edge.
    """
    _check(n, size)
    rng = np.random.default_rng(seed)
    cx, cy = rng.uniform(0.4, 0.6, 2)
    width, contrast = rng.uniform(0.12, 0.2), rng.uniform(2.0, 4.0)

    def core(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.exp(-((((x - cx) ** 2 + (y - cy) ** 2) / width**2) ** 2))

    line = np.arange(1, n + 1) / (n + 1)
    x, y = (g.ravel() for g in np.meshgrid(line, line, indexing="ij"))
    permittivity = 1 + contrast * core(x, y)
    diagonal = -(wavenumber**2) * permittivity
    if loss:
        diagonal = diagonal - 1j * wavenumber**2 * loss * core(x, y)
    A = sp.csc_array(laplacian((n, n)) + sp.diags_array(diagonal))
    fields = _sampled(lambda x, y: 1 + contrast * core(x, y), size)[None]
    return Instance(A, None, fields, f"waveguide-{n}-{seed}")


def graph_laplacian(
    n: int, seed: int, *, neighbors: int = 8, normalized: bool = True, size: int = FIELD
) -> Instance:
    """Laplacian of a graph of nearest neighbours among random points, two groups in the plane.

    Args:
        n: points.
        seed: of the points.
        neighbors: of each point, before the graph is made symmetric.
        normalized: I - D^(-1/2) W D^(-1/2), else D - W.
        size: cells of the fields, the density of points, along an edge.
    """
    if n < 4 or not 1 <= neighbors < n:
        raise ValueError(f"n={n}, neighbors={neighbors}; expected n >= 4 and 1 <= neighbors < n")
    rng = np.random.default_rng(seed)
    side = rng.integers(2, size=n)
    points = rng.normal(size=(n, 2)) * rng.uniform(0.6, 1.2) + np.where(side, 1.5, -1.5)[:, None]
    _, index = cKDTree(points).query(points, neighbors + 1)
    rows = np.repeat(np.arange(n), neighbors)
    W = sp.csr_array((np.ones(n * neighbors), (rows, index[:, 1:].ravel())), shape=(n, n))
    W = W.maximum(W.T)
    degree: np.ndarray = np.asarray(W.sum(axis=1)).ravel()
    if normalized:
        scale = sp.diags_array(1 / np.sqrt(degree))
        A = sp.csc_array(sp.eye_array(n) - scale @ W @ scale)
    else:
        A = sp.csc_array(sp.diags_array(degree) - W)
    A = sp.csc_array((A + A.T) / 2)
    field, _, _ = np.histogram2d(points[:, 0], points[:, 1], bins=size, range=((-5, 5), (-5, 5)))
    return Instance(A, None, field[None] * size**2 / n, f"graph-{n}-{seed}")


def elastic_block(shape: tuple[int, int, int]) -> Instance:
    """A free elastic block of trilinear elements: six zero modes, and pairs where edges are equal.

    Units: the edge of an element, Young's modulus and density are 1, Poisson's ratio 0.3.

    Args:
        shape: elements along each axis.
    """
    if len(shape) != 3 or min(shape) < 1:
        raise ValueError(f"shape={shape}; expected three numbers of elements")
    K, M = _brick()
    counts = [s + 1 for s in shape]
    corner = np.arange(int(np.prod(counts))).reshape(counts)
    steps = [(i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)]
    nodes = np.stack(
        [corner[i : i + shape[0], j : j + shape[1], k : k + shape[2]].ravel() for i, j, k in steps], 1
    )
    dof = (3 * nodes[:, :, None] + np.arange(3)).reshape(len(nodes), 24)
    size = 3 * corner.size
    one = np.ones(len(nodes))
    A, B = _assembled(K, one, dof, dof, size, size), _assembled(M, one, dof, dof, size, size)
    return Instance(
        sp.csc_array((A + A.T) / 2), sp.csc_array((B + B.T) / 2), np.zeros((1, 1, 1)), "elastic-block"
    )


def family(make: object, count: int, seed: int, **options: object) -> list[Instance]:
    """Instances of seeds that follow from one: ``family(plate, 100, 0, n=50)``."""
    seeds = np.random.SeedSequence(seed).generate_state(count)
    return [make(seed=int(s), **options) for s in seeds]


def scaled(instance: Instance, factor: float) -> Instance:
    """The same pencil with A scaled."""
    return replace(instance, A=sp.csc_array(instance.A * factor))


def _check(n: int, size: int) -> None:
    if n < 2 or size < 1:
        raise ValueError(f"n={n}, size={size}; expected n >= 2 and size >= 1")


def _plate(n: int, stiffness: object, mass: object, size: int, name: str) -> Instance:
    L = laplacian((n, n))
    line = np.arange(1, n + 1) / (n + 1)
    x, y = (g.ravel() for g in np.meshgrid(line, line, indexing="ij"))
    A = sp.csc_array(L @ sp.diags_array(stiffness(x, y)) @ L)
    B = sp.csc_array(sp.diags_array(mass(x, y)))
    fields = np.stack([_sampled(f, size) for f in (stiffness, mass)])
    return Instance(sp.csc_array((A + A.T) / 2), B, fields, name)


def _sampled(function: object, size: int) -> np.ndarray:
    line = (np.arange(size) + 0.5) / size
    return np.asarray(function(*np.meshgrid(line, line, indexing="ij")), dtype=float)


def _assembled(
    element: np.ndarray, factor: np.ndarray, rows: np.ndarray, columns: np.ndarray, n: int, m: int
) -> sp.csr_array:
    data = factor[:, None, None] * element
    i = np.broadcast_to(rows[:, :, None], data.shape)
    j = np.broadcast_to(columns[:, None, :], data.shape)
    return sp.csr_array((data.ravel(), (i.ravel(), j.ravel())), shape=(n, m))


_GAUSS = (-1 / np.sqrt(3), 1 / np.sqrt(3))


def _piezo_elements(h: float) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Stiffness [8, 8], mass [8, 8], coupling [8, 4], permittivity [4, 4] of a square of edge h."""
    C = np.array([[1.0, 0.5, 0.0], [0.5, 1.0, 0.0], [0.0, 0.0, 0.25]])
    e = np.array([[0.0, 0.0, 1.0], [-0.4, 1.0, 0.0]])  # polarised along y
    signs = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    K, M, P, E = np.zeros((8, 8)), np.zeros((8, 8)), np.zeros((8, 4)), np.zeros((4, 4))
    for s in _GAUSS:
        for t in _GAUSS:
            N = (1 + s * signs[:, 0]) * (1 + t * signs[:, 1]) / 4
            dx = signs[:, 0] * (1 + t * signs[:, 1]) / 4 * 2 / h
            dy = signs[:, 1] * (1 + s * signs[:, 0]) / 4 * 2 / h
            strain = np.zeros((3, 8))
            strain[0, ::2], strain[1, 1::2], strain[2, ::2], strain[2, 1::2] = dx, dy, dy, dx
            gradient = np.stack([dx, dy])
            area = h * h / 4
            K += area * strain.T @ C @ strain
            P += area * strain.T @ e.T @ gradient
            E += area * gradient.T @ gradient
            M += area * np.kron(np.outer(N, N), np.eye(2))
    return K, M, P, E


def _brick() -> tuple[np.ndarray, np.ndarray]:
    """Stiffness and mass [24, 24] of a trilinear unit cube, Young's modulus 1, Poisson's ratio 0.3."""
    nu = 0.3
    lam, mu = nu / ((1 + nu) * (1 - 2 * nu)), 1 / (2 * (1 + nu))
    C = np.diag([2 * mu] * 3 + [mu] * 3)
    C[:3, :3] += lam
    signs = np.array([(i, j, k) for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)])
    K, M = np.zeros((24, 24)), np.zeros((24, 24))
    for r in _GAUSS:
        for s in _GAUSS:
            for t in _GAUSS:
                one = 1 + np.array([r, s, t]) * signs
                N = one.prod(axis=1) / 8
                d = [2 * signs[:, a] * np.delete(one, a, axis=1).prod(axis=1) / 8 for a in range(3)]
                strain = np.zeros((6, 24))
                for a in range(3):
                    strain[a, a::3] = d[a]
                for row, (a, b) in enumerate(((1, 2), (0, 2), (0, 1)), start=3):
                    strain[row, a::3], strain[row, b::3] = d[b], d[a]
                K += strain.T @ C @ strain / 8
                M += np.kron(np.outer(N, N), np.eye(3)) / 8
    return K, M
