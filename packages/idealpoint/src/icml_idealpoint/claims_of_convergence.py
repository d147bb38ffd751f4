"""Claims about convergence: how fast the best iterate becomes stationary, and the hard loss falls."""

from __future__ import annotations

from icml_core import ClaimSuite, Run

STEPS = (50, 100, 200, 400, 800)


def descent(run: Run, seed: int) -> dict[str, float]:
    """Slopes on logarithmic axes of the least gradient norm (soft), and of the least loss above the best
    (hard)."""
    import numpy as np
    import torch

    from icml_idealpoint.comparisons import as_comparisons
    from icml_idealpoint.ideal_point import Distance
    from icml_idealpoint.optimization import Objective
    from icml_idealpoint.series import as_series
    from icml_idealpoint.simulation import Bumps, compare

    X, severity = Bumps(24, 0.07).items(24, seed=seed)
    items = as_series((X - X.mean()) / X.std())
    answers = as_comparisons(compare(-severity, 200, flip=0.1, seed=seed + 1), 24)
    steps = STEPS[:2] if run.scale == "smoke" else STEPS

    def setting(metric: str) -> Objective:
        distance = Distance(metric, nu=0.003, lam=0.1)
        return Objective(items, answers, distance, "logistic", "nearest", None, 1e-3, 1e-3, 1.0)

    log_scale, logits = torch.tensor([1.0], dtype=torch.float64), torch.zeros(1, 1, dtype=torch.float64)

    def loss_and_gradient(objective: Objective, ideal: torch.Tensor) -> tuple[float, torch.Tensor]:
        leaf = ideal.clone().requires_grad_()
        loss = objective(leaf, log_scale, logits, 0.5).sum()
        return float(loss.detach()), torch.autograd.grad(loss, leaf)[0]

    start = items.values[int(severity.argmin())][None].clone()
    soft, ideal, norms = setting("soft_twed"), start.clone(), []
    for _ in range(steps[-1]):
        _, gradient = loss_and_gradient(soft, ideal)
        norms.append(float(gradient.norm()))
        ideal = ideal - 0.5 * gradient  # the theorem wants steps below the inverse of the curvature
    hard, ideal, losses = setting("twed"), start.clone(), []
    for k in range(2 * steps[-1]):
        loss, gradient = loss_and_gradient(hard, ideal)
        losses.append(loss)
        ideal = ideal - 0.3 / (k + 1) ** 0.5 * gradient / gradient.norm().clamp(min=1e-12)
    best = np.minimum.accumulate(losses)
    at = np.array(steps) - 1
    gap = np.maximum(best[at] - best[-1], 1e-12)
    slope = [
        np.polyfit(np.log(steps), np.log(values), 1)[0] for values in (np.minimum.accumulate(norms)[at], gap)
    ]
    return {"gradient_slope": float(slope[0]), "gap_slope": float(slope[1]), "last_norm": float(min(norms))}


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    falling = suite.measure(seeds={"smoke": 1, "small": 5, "full": 5})(descent)
    paper = "Theorem: convergence guarantees; O(K^-1/2) is our statement of them."
    suite.claim(
        "gradient-norm-falls",
        of=falling,
        figure="gradient_slope",
        kind="mean",
        at_most=-0.45,
        statement="Gradient descent on the soft model: the least gradient norm falls at least as K^-0.45, K "
        "= 50 to 800.",
        paper=paper,
        unit="slope",
    )
    suite.claim(
        "hard-loss-falls",
        of=falling,
        figure="gap_slope",
        kind="mean",
        at_most=-0.4,
        statement="Subgradient steps of c / sqrt(k) on hard TWED: the least loss comes down to the best "
        "known of twice as "
        "many steps at least as K^-0.4.",
        paper=paper,
        unit="slope",
    )
