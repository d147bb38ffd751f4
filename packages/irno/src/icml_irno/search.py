"""Golden-section search: each evaluation shrinks the interval that holds the maximum by 0.618.

J. Kiefer, Sequential minimax search for a maximum, Proceedings of the AMS 4 (1953) 502-506.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

GOLDEN = (math.sqrt(5) - 1) / 2  # 0.618...: the ratio at which one of two points can be used again


@dataclass(frozen=True)
class Problem:
    """A concave function and the interval in which its maximum is sought."""

    function: Callable[[float], float]
    low: float
    high: float


@dataclass(frozen=True)
class Maximum:
    """Where the maximum is: the interval ``low`` to ``high`` holds it.

    Attributes:
        evaluations: how often the function was called.
    """

    position: float
    low: float
    high: float
    evaluations: int

    def verify(self, problem: Problem) -> None:
        """Check that the position lies inside the interval and no end is higher: for a concave
        function the interval then holds the maximum.

        Raises:
            ValueError: the interval is not part of the problem's, or need not hold the maximum.
        """
        if not problem.low <= self.low < self.position < self.high <= problem.high:
            raise ValueError(
                f"{self.low} < {self.position} < {self.high} is not in {problem.low} to {problem.high}"
            )
        value = problem.function(self.position)
        for end in (self.low, self.high):
            if problem.function(end) > value:
                raise ValueError(f"the function is higher at {end} than at {self.position}")


class GoldenSection:
    """The search.

    Args:
        tolerance: the width of the interval at which it ends.
        ratio: how the interval is divided; any but the golden one needs two evaluations a step.

    Raises:
        ValueError: the tolerance is not positive, or the ratio not between 0.5 and 1.
    """

    def __init__(self, tolerance: float = 1e-6, ratio: float = GOLDEN) -> None:
        if not tolerance > 0:
            raise ValueError(f"tolerance {tolerance} must be positive")
        if not 0.5 < ratio < 1:
            raise ValueError(f"ratio {ratio} must lie between 0.5 and 1")
        self.tolerance, self.ratio = tolerance, ratio

    def solve(self, problem: Problem) -> Maximum:
        """Find the maximum.

        Raises:
            ValueError: the interval is empty or not finite.
        """
        low, high = problem.low, problem.high
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ValueError(f"the interval {low} to {high} is empty or not finite; give low < high")
        golden = abs(self.ratio - GOLDEN) < 1e-12
        width = high - low
        left, right = high - self.ratio * width, low + self.ratio * width
        at_left, at_right = problem.function(left), problem.function(right)
        evaluations = 2
        while high - low > self.tolerance:
            if at_left > at_right:
                high, right, at_right = right, left, at_left
                left = high - self.ratio * (high - low)
                at_left = problem.function(left)
                if not golden:
                    right = low + self.ratio * (high - low)
                    at_right = problem.function(right)
            else:
                low, left, at_left = left, right, at_right
                right = low + self.ratio * (high - low)
                at_right = problem.function(right)
                if not golden:
                    left = high - self.ratio * (high - low)
                    at_left = problem.function(left)
            evaluations += 1 if golden else 2
        position = left if at_left > at_right else right
        return Maximum(position, low, high, evaluations)
