"""A tiny instance of each component, from which the contract tests know how to use it."""

from __future__ import annotations

from icml_core import Example


def golden(seed: int) -> Example:
    """A parabola whose top the seed chooses."""
    from dataclasses import replace

    from icml_irno.search import GoldenSection, Problem

    center = 1.0 + seed % 7 / 2
    problem = Problem(lambda x: -((x - center) ** 2), 0.0, 5.0)

    def check(maximum):
        assert abs(maximum.position - center) < 1e-3

    def corrupt(maximum):
        beyond = (maximum.high + problem.high) / 2
        return replace(maximum, low=maximum.high, position=beyond, high=problem.high)

    return Example(
        build=lambda: GoldenSection(tolerance=1e-4),
        inputs=lambda: problem,
        call=lambda solver, given: solver.solve(given),
        check=check,
        corrupt=corrupt,
        bad=lambda: Problem(problem.function, 5.0, 0.0),
    )
