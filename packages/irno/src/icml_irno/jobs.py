"""What `icml run` runs."""

from __future__ import annotations

from typing import Any

from icml_core import Run


def golden(*, run: Run, center: float, width: float = 10.0, tolerance: float = 1e-6) -> dict[str, Any]:
    """Find the top of a parabola.

    Args:
        center: where the top is.
        width: width of the interval around 0 in which it is sought.
        tolerance: width of the interval at which the search ends.
    """
    from icml_irno.search import GoldenSection, Problem

    problem = Problem(lambda x: -((x - center) ** 2), -width / 2, width / 2)
    maximum = GoldenSection(tolerance).solve(problem)
    with run.path("maximum.csv") as temporary:
        temporary.write_text(f"position,low,high\n{maximum.position},{maximum.low},{maximum.high}\n")
    return {"position": maximum.position, "evaluations": maximum.evaluations}
