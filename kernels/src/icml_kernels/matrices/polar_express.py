"""Coefficients of the Newton-Schulz iteration that gives the polar factor: X <- a X + b A X + c A^2 X, A = X
X^T.

The eight published triples are those of Polar Express (Amsel, Persson, Musco and Gower, arXiv 2505.16932), as
the Spectral Sphere Optimizer uses them (arXiv 2601.08393). Fewer of them are no shorter iteration: for
another number of steps the recursion is solved anew, each step the best odd quintic on the interval that is
left.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

Triple = tuple[float, float, float]

PUBLISHED: tuple[Triple, ...] = (
    (8.2051, -22.9019, 16.4607),
    (4.0664, -2.8612, 0.5184),
    (3.9096, -2.8234, 0.5250),
    (3.2856, -2.4153, 0.4853),
    (2.2779, -1.6198, 0.3985),
    (1.8726, -1.2307, 0.3585),
    (1.8564, -1.2132, 0.3568),
    (1.8750, -1.2500, 0.3750),
)
SAFETY = 1.01  # singular values that rounding has pushed above the interval still contract
LOWER = 1e-3  # the smallest singular value that the iteration must bring to 1
_NEAR_ONE = 5e-6  # where the interval is this narrow, the best quintic is the Taylor one, (15, -10, 3)/8
_TAYLOR: Triple = (15 / 8, -10 / 8, 3 / 8)
_EXCHANGES = 60


def polar_express_coefficients(steps: int = 8) -> tuple[Triple, ...]:
    """The triples (a, b, c) of ``steps`` Newton-Schulz steps, safety factor included.

    Eight steps, and the first eight of more, are the published ones; further steps repeat the last. For fewer
    steps the triples are optimal on [1e-3, 1]. All but the last are divided by (1.01, 1.01^3, 1.01^5).

    Raises:
        ValueError: for fewer than one step.
    """
    if steps < 1:
        raise ValueError(f"steps={steps}; the iteration needs at least 1")
    return _damped(steps)


# What torch.compiler.assume_constant_result sets, without importing torch._dynamo: a compiled step calls this
# while it is traced, and keeps the numbers.
polar_express_coefficients._dynamo_marked_constant = True  # type: ignore[attr-defined]


@cache
def _damped(steps: int) -> tuple[Triple, ...]:
    raw = PUBLISHED if steps >= len(PUBLISHED) else optimal_quintics(steps, LOWER)
    damped = tuple((a / SAFETY, b / SAFETY**3, c / SAFETY**5) for a, b, c in raw[:-1])
    return damped + (raw[-1],) * (steps - len(damped))


def optimal_quintics(steps: int, lower: float) -> tuple[Triple, ...]:
    """The odd quintics p_1, ..., p_k whose composition is nearest to 1 on [lower, 1].

    p_t minimises max |1 - p(x)| over the image of the interval under the earlier ones; greedy steps are
    optimal for the composition (arXiv 2505.16932, Theorem 3.1).

    Raises:
        ValueError: for ``lower`` outside (0, 1).
    """
    if not 0.0 < lower < 1.0:
        raise ValueError(f"lower={lower} must lie between 0 and 1")
    low, high, found = lower, 1.0, []
    for _ in range(steps):
        triple, error = minimax_quintic(low, high)
        found.append(triple)
        low, high = 1.0 - error, 1.0 + error
    return tuple(found)


def minimax_quintic(low: float, high: float) -> tuple[Triple, float]:
    """The odd quintic nearest to 1 on [low, high], and its largest error there (Remez exchange).

    The error 1 - a x - b x^3 - c x^5 has extrema of alternating sign at the two ends and at the two
    stationary points between them; each exchange solves for the triple that levels the error at the present
    points.
    """
    if 1.0 - low / high <= _NEAR_ONE:
        middle = (low + high) / 2
        a, b, c = _TAYLOR
        return (a / middle, b / middle**3, c / middle**5), 0.0
    inner = np.array([0.75 * low + 0.25 * high, 0.25 * low + 0.75 * high])
    signs = np.array([1.0, -1.0, 1.0, -1.0])
    error = math.inf
    a = b = c = 0.0
    for _ in range(_EXCHANGES):
        x = np.array([low, *inner, high])
        a, b, c, level = np.linalg.solve(np.stack([x, x**3, x**5, signs], axis=1), np.ones(4))
        inner = _stationary(a, b, c)
        if abs(abs(level) - error) <= 1e-14 * abs(level):
            break
        error = abs(level)
    return (float(a), float(b), float(c)), float(error)


def _stationary(a: float, b: float, c: float) -> NDArray[np.float64]:
    """The two positive roots of p'(x) = a + 3 b x^2 + 5 c x^4, ascending."""
    root = math.sqrt(9 * b * b - 20 * a * c)
    squares = np.array([-3 * b - root, -3 * b + root]) / (10 * c)
    return np.sqrt(np.sort(squares))
