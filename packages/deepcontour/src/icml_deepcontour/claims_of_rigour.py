"""Claims about rigour: residuals, values and counts against LAPACK, clusters and zero modes included."""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run


def certified_pairs(run: Run, seed: int) -> dict[str, Any]:
    """Plates, a square with double eigenvalues, a free block: `eigs` beside dense LAPACK."""
    import numpy as np

    from icml_deepcontour.claim_tasks import dense
    from icml_deepcontour.datasets import elastic_block, family, graph_laplacian, plate, uniform_plate
    from icml_deepcontour.eigensolver import eigs
    from icml_deepcontour.inertia import certify

    n, count, block = {
        "smoke": (23, 1, (5, 5, 5)),
        "small": (28, 14, (6, 6, 5)),
        "full": (50, 40, (9, 8, 8)),
    }[run.scale]
    seed %= 2**31
    instances = [*family(plate, count, seed, n=n), uniform_plate(n), elastic_block(block)]
    instances += family(graph_laplacian, max(1, count // 4), seed, n=n * n)
    rng = np.random.default_rng(seed)
    residuals, differences, counts = [], [], []
    for instance in instances:
        exact = dense(instance)
        k = int(rng.integers(20, 40))
        # Each value in units of itself; zero modes, which are rounding, of the first that is none.
        scale = np.maximum(np.abs(exact[:k]), np.abs(exact[np.abs(exact) > 1e-9 * np.abs(exact).max()]).min())
        guesses = exact[:k] * (1 + 0.02 * rng.standard_normal(k))
        options = {"backend": "slice", "return_stats": True, "random_state": seed % 1000}
        values, _, stats = eigs(instance.A, instance.B, ("SA", k), predictor=guesses, **options)
        residuals.append(float(stats.residuals.max()))
        differences.append(float((np.abs(values - exact[:k]) / scale).max()))
        low, high = (exact[4] + exact[5]) / 2, (exact[k - 1] + exact[k]) / 2
        inside = int(((exact >= low) & (exact < high)).sum())
        if run.ablation == "no-inertia":
            # ARPACK at its defaults, asked for as many as the predictions count inside; its values counted.
            from scipy.sparse.linalg import ArpackNoConvergence, eigsh

            asked = max(int(((guesses >= low) & (guesses < high)).sum()), 1)
            try:
                got = eigsh(instance.A, asked, instance.B, sigma=(low + high) / 2)[0]
            except ArpackNoConvergence as error:
                got = error.eigenvalues
            counted = int(((got >= low) & (got < high)).sum())
        else:
            counted = certify(instance.A, instance.B, low, high).n
        counts.append(float(abs(counted - inside)))
    return {"residual": residuals, "difference": differences, "count_error": counts}


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    rigour = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("no-inertia",))(
        certified_pairs
    )
    suite.claim(
        "residuals",
        of=rigour,
        figure="residual",
        kind="every",
        at_most=1e-8,
        statement="Every returned pair has a residual below the tolerance of 1e-8.",
        paper="Strict numerical rigor.",
    )
    suite.claim(
        "equal-to-lapack",
        of=rigour,
        figure="difference",
        kind="every",
        at_most=1e-8,
        statement="Every eigenvalue equals that of dense LAPACK to 1e-8 of itself, pairs included; zero "
        "modes to 1e-8 of the first value that is none.",
        paper="Strict numerical rigor.",
    )
    suite.claim(
        "counts-are-exact",
        of=rigour,
        figure="count_error",
        kind="every",
        at_most=0.0,
        statement="Inertia counts as many eigenvalues in an interval as LAPACK finds there.",
        paper="Not in the paper.",
        teeth="no-inertia",
    )
