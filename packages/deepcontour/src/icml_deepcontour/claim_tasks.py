"""What several claims need: families with exact eigenvalues, times, the scout of usual practice."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

from icml_deepcontour.contour import Contour
from icml_deepcontour.contour_solvers import ContourResult, cirr
from icml_deepcontour.datasets import Instance, family, plate
from icml_deepcontour.density import kde_contours
from icml_deepcontour.eigensolver import eigs
from icml_deepcontour.factorization import Factorizer
from icml_deepcontour.inertia import definiteness
from icml_deepcontour.pencil import Pencil
from icml_deepcontour.slices import Slicer
from icml_deepcontour.smallest import smallest

NODES = 8
CI_TOL = 1e-7


def timed(call: Callable[[], Any], repeats: int = 1) -> tuple[float, Any]:
    """Least seconds, and the result."""
    taken, result = [], None
    for _ in range(repeats):
        begin = time.perf_counter()
        result = call()
        taken.append(time.perf_counter() - begin)
    return min(taken), result


def plates(count: int, n: int, seed: int) -> list[Instance]:
    """Plates of variable stiffness."""
    return family(plate, count, seed, n=n)


def labels(instances: list[Instance], k: int) -> np.ndarray:
    """The k smallest eigenvalues of each, certified."""
    return np.array([eigs(i.A, i.B, ("SA", k))[0] for i in instances])


def dense(instance: Instance) -> np.ndarray:
    """All eigenvalues by LAPACK."""
    B = None if instance.B is None else instance.B.toarray()
    return scipy.linalg.eigh(instance.A.toarray(), B, eigvals_only=True)


def scout_contour(instance: Instance, k: int, seed: int) -> Contour:
    """Usual practice: shift-invert Lanczos to tolerance 0.1, then one contour around [0, 1.25 lambda_k]."""
    pencil = Pencil.of(instance.A, instance.B)
    factors = Factorizer(pencil)
    slicer = Slicer(pencil, factors, definiteness(pencil, factors), tol=0.1, seed=seed)
    rough = smallest(slicer, k, None, certify=False).values
    high = 1.25 * float(rough[-1])
    # An over-sized search space: the count below a bound in two dimensions grows with its root.
    return Contour(high / 2, high / 2, int(np.ceil(1.25 * k)))


def integrate(
    instance: Instance, contours: list[Contour], seed: int = 0, nodes: int | None = NODES
) -> list[ContourResult]:
    """CIRR on each contour."""
    return [cirr(instance.A, instance.B, c, CI_TOL, nodes=nodes, seed=seed) for c in contours]


def found_values(results: list[ContourResult], k: int) -> np.ndarray:
    """The k smallest of all contours."""
    return np.sort(np.concatenate([r.values for r in results]))[:k]


def around(values: np.ndarray, q95: np.ndarray | None = None) -> list[Contour]:
    """Contours around predictions, as few as cost least in serial: every node is a factorization."""
    return kde_contours(values, q95, max_per=60, min_per=20)


def missing(found: np.ndarray, exact: np.ndarray) -> int:
    """How many of the exact values have no partner of their own among those found, to 1e-5."""
    left = found.tolist()
    absent = 0
    for value in exact:
        at = next((i for i, v in enumerate(left) if abs(v - value) <= 1e-5 * abs(value)), None)
        if at is None:
            absent += 1
        else:
            left.pop(at)
    return absent
