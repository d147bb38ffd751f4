"""What `icml verify` measures."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

suite = ClaimSuite("deepcontour")


@suite.measure(seeds={"smoke": 1, "small": 5, "full": 5}, ablations=("thirds",))
def shrinking(run: Run, seed: int) -> dict[str, float]:
    """By how much each evaluation shrinks the interval, on a parabola with a random top."""
    import random

    from icml_deepcontour.search import GOLDEN, GoldenSection, Problem

    top = random.Random(seed).uniform(-1, 1)
    ratio = 2 / 3 if run.ablation == "thirds" else GOLDEN
    problem = Problem(lambda x: -((x - top) ** 2), -5.0, 5.0)
    maximum = GoldenSection(1e-6, ratio).solve(problem)
    return {
        "factor": ((maximum.high - maximum.low) / 10.0) ** (1 / (maximum.evaluations - 2)),
        "error": abs(maximum.position - top),
    }


suite.claim(
    "shrinks-by-the-golden-ratio",
    of=shrinking,
    figure="factor",
    kind="mean",
    at_most=0.6181,
    statement="Each evaluation shrinks the interval to 0.618 of its width.",
    paper="The golden ratio is optimal among searches that use every value again (Kiefer 1953).",
    teeth="thirds",
)
suite.claim(
    "finds-the-top",
    of=shrinking,
    figure="error",
    kind="every",
    at_most=1e-6,
    statement="The position is within the tolerance of the top.",
    paper="The interval always holds the maximum (Kiefer 1953).",
)
