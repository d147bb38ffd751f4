"""From a fractional cover of the bad triangles to a transversal of at most twice its cost.

Algorithms 2 and 3 of Adriaens and Tatti (arXiv 2602.04463). What makes the factor 2, where rounding covers of
triples gives 3, is that the two signs get different thresholds.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float

from icml_btt.triangles import TriangleSystem

# On the safe side of HiGHS' tolerance of 1e-7: a negative edge at 0 within it, a positive one at 1/2.
_TOLERANCE = 1e-7
# By how much a cover may miss a triangle. Cuts between thresholds closer than this are left out, so that
# such a triangle is hit all the same.
COVER_TOLERANCE = 1e-9


def threshold_rule(system: TriangleSystem, x: Float[np.ndarray, " edges"]) -> Bool[np.ndarray, " edges"]:
    """Round any feasible cover: the cheapest ``{e⁺ : x_e ≥ α} ∪ {e⁻ : x_e > 1 − 2α}`` (Algorithm 3).

    Every α gives a transversal: where neither positive edge of a bad triangle reaches α, the negative one
    exceeds ``1 − 2α``. For α uniform on [0, ½] the expected cost is at most ``2 Σ_{E⁺} w x + Σ_{E⁻} w x``,
    so the cheapest costs at most ``2 Σ w x``. The cost changes only where α passes ``x_e`` of a positive or
    ``(1 − x_e)/2`` of a negative edge: one sort and two running sums try them all.

    Args:
        system: the bad triangles.
        x: covers every bad triangle (see :func:`~icml_btt.linear_program.check_cover`).

    Returns:
        Which edges are chosen.
    """
    positive = system.sign > 0
    if not len(x):
        return positive
    turn = np.where(positive, x, (1.0 - x) / 2.0)
    order = np.argsort(turn, kind="stable")
    # Left of the k-th cut lie the positive edges that are out and the negative ones that are in.
    change = np.where(positive, -system.weight, system.weight)[order]
    cost = system.weight[positive].sum() + np.concatenate([[0.0], np.cumsum(change)])
    turn = turn[order]
    allowed = np.ones(len(cost), dtype=bool)
    allowed[1:-1] = np.diff(turn) > COVER_TOLERANCE
    allowed[-1] = turn[-1] < 0.5 - COVER_TOLERANCE
    cut = int(np.argmin(np.where(allowed, cost, np.inf)))
    chosen = positive.copy()
    passed = order[:cut]
    chosen[passed] = ~positive[passed]
    return chosen


def exact_lp_rule(system: TriangleSystem, x: Float[np.ndarray, " edges"]) -> Bool[np.ndarray, " edges"]:
    """Round an OPTIMAL cover: ``{e⁻ : x_e > 0} ∪ {e⁺ : x_e ≥ ½}`` (Algorithm 2).

    A transversal, since ``x_n = 0`` leaves ``x_p + x_p' ≥ 1``. Its cost is at most twice the optimum: by
    complementary slackness a chosen edge is fully loaded by the dual, and a triangle with ``y_t > 0`` has
    ``x_n + x_p + x_p' = 1``, hence at most two chosen edges. Neither holds for a cover that is not optimal.

    Args:
        system: the bad triangles.
        x: an optimal cover.

    Returns:
        Which edges are chosen.
    """
    return np.where(system.sign > 0, x >= 0.5 - _TOLERANCE, x > _TOLERANCE)
