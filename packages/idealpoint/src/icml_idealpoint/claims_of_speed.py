"""Claims about speed, measured with nothing else running."""

from __future__ import annotations

from icml_core import ClaimSuite, Run


def speed(run: Run, seed: int) -> dict[str, float]:
    """Seconds: a matrix of TWED, one pair at a time in a compiled loop, inside a window, and a fit."""
    import time

    import torch
    from icml_kernels import elastic_alignment, elastic_cross

    from icml_idealpoint.ranker import IdealPointRanker
    from icml_idealpoint.simulation import Bumps, compare

    generator = torch.Generator().manual_seed(seed)
    few = run.scale == "smoke"

    def best(call, repeats=3):  # type: ignore[no-untyped-def]
        call()
        taken = []
        for _ in range(1 if few else repeats):
            begin = time.perf_counter()
            call()
            taken.append(time.perf_counter() - begin)
        return min(taken)

    x = torch.randn(64, 40 if few else 200, 1, generator=generator)
    long = torch.randn(32, 100 if few else 1000, 1, generator=generator)
    matrix = best(lambda: elastic_cross(x, x, "twed", threads=1))
    one = best(lambda: elastic_alignment(x[0], x[1], "twed"), 5) * len(x) ** 2
    whole = best(lambda: elastic_cross(long, long, "twed", threads=1))
    inside = best(lambda: elastic_cross(long, long, "twed", window=0.1, threads=1))
    X, severity = Bumps().items(60, seed=seed)
    pairs = compare(-severity, 500, flip=0.2, seed=seed)
    ranker = IdealPointRanker(n_starts=1, max_iter=5 if few else 150, dtype="float32")
    fit = best(lambda: ranker.fit(X, pairs), 2)
    return {"matrix": matrix, "one_at_a_time": one, "whole": whole, "window": inside, "fit": fit}


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    fast = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, exclusive=True)(speed)
    suite.claim(
        "lanes-beat-one-at-a-time",
        of=fast,
        figure="one_at_a_time",
        baseline="matrix",
        kind="ratio",
        at_least=8.0,
        statement="A float32 matrix of TWED takes at most an eighth of what a compiled loop over single "
        "pairs takes.",
        paper="Not in the paper.",
        unit="×",
    )
    suite.claim(
        "window-saves-time",
        of=fast,
        figure="whole",
        baseline="window",
        kind="ratio",
        at_least=5.0,
        statement="At 1000 points a window of 10 % is at least five times as fast as none.",
        paper="Not in the paper.",
        unit="×",
    )
    suite.claim(
        "fit-takes-a-third-of-a-second",
        of=fast,
        figure="fit",
        kind="mean",
        at_most=0.3,
        statement="One start of 150 steps on 60 series of 48 points takes at most 0.3 s.",
        paper="Not in the paper.",
        unit="s",
    )
