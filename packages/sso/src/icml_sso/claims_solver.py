"""Claims about one step: the tangent multiplier, its cost, the sphere, steepest descent."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from icml_core import ClaimSuite, Run

if TYPE_CHECKING:
    from torch import Tensor

# Of the singular vectors in which momentum and weights agree: without it lambda* would be small for any
# solver.
_ALIGNED = 0.5


def multipliers(run: Run, seed: int) -> dict[str, list[float]]:
    """h on a grid by SVD, and both solvers against Brent's method on it, in float64.

    The Newton-Schulz polynomial of these solvers has 40 steps: what is tested is the solver and not the
    polynomial, whose eight steps leave singular values below 1e-3 of the norm short of 1. Under "no-solver"
    the multiplier is 0, which is MuonSphere.
    """
    import torch
    from scipy.optimize import brentq

    from icml_sso.tangent_multiplier import tangent_lambda

    shapes = [(24, 64), (48, 48), (64, 24), (8, 1024), (40, 40), (96, 32)]
    count = 1 if run.scale == "smoke" else 4
    falls, errors, residuals = [], [], []
    for case in range(count * len(shapes)):
        m, u, v = _problem(
            shapes[case % len(shapes)], seed + case, rank=5 if case % len(shapes) == 4 else None
        )
        grid = torch.linspace(-1.0, 1.0, 41, dtype=torch.float64).tolist()
        values = [_exact_h(m, u, v, lam) for lam in grid]
        falls.append(max(a - b for a, b in pairwise(values)))
        exact = brentq(lambda lam, m=m, u=u, v=v: _exact_h(m, u, v, lam), -3.0, 3.0, xtol=1e-13)
        for solver in ("krylov", "bisection"):
            found = tangent_lambda(
                m, u, v, solver=solver, tol=1e-6, msign_steps=40, max_iters=40, msign_dtype=torch.float64
            )
            lam = 0.0 if run.ablation == "no-solver" else found.lam
            errors.append(abs(lam - exact) / max(abs(exact), 1e-3))
            residuals.append(abs(_exact_h(m, u, v, lam)))
    return {"fall": falls, "error": errors, "residual": residuals}


def overhead(run: Run, seed: int) -> dict[str, float | list[float]]:
    """Matrix signs, time and true residual of the Krylov solver, beside one matrix sign and bisection."""
    import time

    import torch
    from icml_kernels import msign

    from icml_sso.tangent_multiplier import tangent_lambda

    smoke = run.scale == "smoke"
    shapes = [(32, 128), (64, 64)] if smoke else [(256, 1024), (512, 512), (512, 2048)]
    calls, ratios, true, theirs, bisections = [], [], [], [], []
    for index, shape in enumerate(shapes):
        m, u, v = _problem(shape, seed + index)
        for dtype in (torch.bfloat16, torch.float32):
            single, left, right = m.float(), u.float(), v.float()

            def timed(call: Any) -> tuple[float, Any]:
                call()
                taken = []
                for _ in range(1 if smoke else 5):
                    begin = time.perf_counter()
                    result = call()
                    taken.append(time.perf_counter() - begin)
                return min(taken), result

            def solve(solver: str, dtype: Any = dtype, args: Any = (single, left, right)) -> Any:
                return tangent_lambda(*args, solver=solver, msign_dtype=dtype)

            chosen = "bisection" if run.ablation == "bisection" else "krylov"
            seconds, found = timed(lambda solve=solve, chosen=chosen: solve(chosen))
            one, _ = timed(lambda x=single, dtype=dtype: msign(x, dtype=dtype))
            reference = solve("bisection")
            calls.append(float(found.calls))
            ratios.append(seconds / one)
            true.append(abs(_exact_h(m, u, v, found.lam)))
            theirs.append(abs(_exact_h(m, u, v, reference.lam)))
            bisections.append(float(reference.calls))
    return {
        "calls": calls,
        "mean_calls": sum(calls) / len(calls),
        "bisection_calls": sum(bisections) / len(bisections),
        "time_ratio": sum(ratios) / len(ratios),
        "residual": sum(true) / len(true),
        "bisection_residual": sum(theirs) / len(theirs),
    }


def sphere(run: Run, seed: int) -> dict[str, list[float] | float]:
    """sigma/R by SVD of every atomic matrix after each step and its retraction, fused projections included.

    A layer of attention with one fused weight for q, k and v (cut by head, and interleaved by component) and
    a fused gate and up projection, at a learning rate of 0.02; AdamW beside it from the same start. Under
    "no-retraction" only the tangent condition holds the norms.
    """
    import torch

    from icml_sso.fused_layer import FusedLayer
    from icml_sso.optimizer import SSO
    from icml_sso.spectral_init import spectral_mup_init_

    steps = 4 if run.scale == "smoke" else 60
    deviations, inside, reached = [], [], []
    for labels in (False, True):
        layer = FusedLayer(seed)
        rule = layer.interleaved if labels else None
        spectral_mup_init_(layer, generator=torch.Generator().manual_seed(seed), rule=rule)
        start = {k: t.clone() for k, t in layer.state_dict().items()}
        retract = "off" if run.ablation == "no-retraction" else "hard"
        optimizer = SSO(layer.groups(rule), lr=0.02, retract=retract)
        worst = passing = 0.0
        for step in range(steps):
            before = layer.norm_ratios(optimizer)
            layer.descend(optimizer, step)
            rows = optimizer.stats()
            names = optimizer.param_groups[0]["param_names"]
            factors = [f for name in names for f in rows[name]["retraction"]]
            passing = max(passing, *(abs(r * f - 1.0) for r, f in zip(before, factors, strict=True)))
            if retract == "hard":
                optimizer.retract_()
            worst = max(worst, *(abs(r - 1.0) for r in layer.norm_ratios(optimizer)))
        deviations.append(worst)
        inside.append(passing)
        layer.load_state_dict(start)
        adamw = torch.optim.AdamW(layer.parameters(), lr=0.02, betas=(0.9, 0.95), weight_decay=0.1)
        for step in range(steps):
            layer.descend(adamw, step)
        reached.append(max(layer.norm_ratios(optimizer)))
    return {"deviation": deviations, "inside": inside, "adamw": min(reached)}


def steepest(run: Run, seed: int) -> dict[str, float | list[float]]:
    """The direction against random tangent ones, a projected Muon step, and the dual program; drift off the
    sphere.

    Under "no-tangent" the multiplier is 0.
    """
    import numpy as np
    import torch
    from scipy.optimize import minimize_scalar

    from icml_sso.matrix_sign import exact_msign
    from icml_sso.tangent_multiplier import tangent_lambda

    generator = torch.Generator().manual_seed(seed)
    m, u, v = _problem((6, 8), seed)
    theta = torch.outer(u, v)
    found = tangent_lambda(m, u, v, msign_steps=40, msign_dtype=torch.float64, tol=1e-7)
    lam = 0.0 if run.ablation == "no-tangent" else found.lam
    phi = exact_msign(m + lam * theta)

    def tangential(x: Tensor) -> Tensor:
        flat = x - (x * theta).sum() * theta
        return flat / torch.linalg.matrix_norm(flat, ord=2)

    value = float((m * phi).sum())
    others = [
        float(
            (m * tangential(exact_msign(torch.randn(6, 8, generator=generator, dtype=torch.float64)))).sum()
        )
        for _ in range(200)
    ]
    others.append(float((m * tangential(exact_msign(m))).sum()))
    # Strong duality: the convex program's optimum is the least nuclear norm of M + lambda Theta.
    dual = minimize_scalar(
        lambda x: float(torch.linalg.matrix_norm(m + x * theta, ord="nuc")),
        bounds=(-3.0, 3.0),
        method="bounded",
        options={"xatol": 1e-12},
    )
    optimum = float(dual.fun)
    orders = {True: _drift_order(seed, tangent=lam != 0.0), False: _drift_order(seed, tangent=False)}
    return {
        "advantage": min(value - other for other in others),
        "optimum_gap": abs(value - optimum),
        "tangency": abs(float((phi * theta).sum())),
        "drift_order": orders[True],
        "drift_order_without": orders[False],
        "random_best": float(np.max(others[:-1])),
    }


def step_time(run: Run, seed: int) -> dict[str, float]:
    """Time of an optimizer step alone beside torch.optim.Muon with as many Newton-Schulz steps."""
    import time

    import torch

    from icml_sso.optimizer import SSO

    smoke = run.scale == "smoke"
    shapes = [(32, 64)] if smoke else [(256, 256)] * 4 + [(768, 256), (256, 768)] * 2
    generator = torch.Generator().manual_seed(seed)

    def seconds(make: Any) -> float:
        params = [torch.nn.Parameter(0.05 * torch.randn(s, generator=generator)) for s in shapes]
        optimizer = make(params)
        taken = []
        for _ in range(2 if smoke else 9):
            for p in params:
                p.grad = torch.randn(p.shape, generator=generator)
            begin = time.perf_counter()
            optimizer.step()
            taken.append(time.perf_counter() - begin)
        return sorted(taken)[len(taken) // 2]

    solver = "bisection" if run.ablation == "bisection" else "krylov"
    return {
        "sso": seconds(lambda p: SSO(p, lr=1e-2, solver=solver)),
        "muonsphere": seconds(lambda p: SSO(p, lr=1e-2, solver="none")),
        "muon": seconds(lambda p: torch.optim.Muon(p, lr=1e-2, momentum=0.9, weight_decay=0.0, ns_steps=8)),
    }


def _problem(shape: tuple[int, int], seed: int, rank: int | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """A momentum of norm 1 that overlaps with the weights, and their top singular vectors, in float64."""
    import torch

    generator = torch.Generator().manual_seed(seed % 2**63)
    w = torch.randn(shape, generator=generator, dtype=torch.float64)
    m = torch.randn(shape, generator=generator, dtype=torch.float64)
    left, _, right = torch.linalg.svd(w, full_matrices=False)
    u, v = left[:, 0], right[0]
    if rank is not None:
        a, _, b = torch.linalg.svd(m, full_matrices=False)
        s = torch.full((min(shape),), 1e-4, dtype=torch.float64)
        s[:rank] = 1.0
        m = (a * s) @ b
    m = m / m.norm()
    m = m + _ALIGNED * torch.outer(u, v)
    return m / m.norm(), u, v


def _exact_h(m: Tensor, u: Tensor, v: Tensor, lam: float) -> float:
    import torch

    from icml_sso.matrix_sign import exact_msign

    return float(u @ exact_msign(m + lam * torch.outer(u, v)) @ v)


def _drift_order(seed: int, tangent: bool) -> float:
    """p of |norm(W - eta R Phi) - R| ~ eta^p for weights with sigma_2 <= 0.8 sigma_1."""
    import numpy as np
    import torch

    from icml_sso.matrix_sign import exact_msign
    from icml_sso.tangent_multiplier import tangent_lambda

    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(12, 16, generator=generator, dtype=torch.float64)
    left, s, right = torch.linalg.svd(w, full_matrices=False)
    s = 0.8 * s / s[0]
    s[0] = 1.0
    w = (left * s) @ right
    u, v = left[:, 0], right[0]
    m = torch.randn(12, 16, generator=generator, dtype=torch.float64)
    m = m / m.norm() + _ALIGNED * torch.outer(u, v)
    m = m / m.norm()
    lam = 0.0
    if tangent:
        lam = tangent_lambda(m, u, v, msign_steps=40, msign_dtype=torch.float64, tol=1e-9).lam
    phi = exact_msign(m + lam * torch.outer(u, v))
    steps = np.geomspace(1e-4, 1e-2, 9)
    drift = [abs(float(torch.linalg.matrix_norm(w - eta * phi, ord=2)) - 1.0) for eta in steps]
    return float(np.polyfit(np.log(steps), np.log(drift), 1)[0])


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures above and what is claimed of them."""
    few = {"smoke": 1, "small": 3, "full": 5}
    measured = suite.measure(seeds=few, ablations=("no-solver",))(multipliers)
    suite.claim(
        "h-never-falls",
        of=measured,
        figure="fall",
        kind="every",
        at_most=1e-9,
        statement="h(lambda), by SVD on 41 multipliers, never falls.",
        paper="h is non-decreasing: it is the derivative of a convex nuclear norm (appendix A).",
    )
    suite.claim(
        "multiplier-is-exact",
        of=measured,
        figure="error",
        kind="every",
        at_most=1e-3,
        statement="Both solvers find Brent's root of h to 1e-3 of it, on six shapes, low rank included.",
        paper="lambda* is the unique root, found by bisection.",
        teeth="no-solver",
        unit="relative",
    )
    suite.claim(
        "direction-is-tangent",
        of=measured,
        figure="residual",
        kind="every",
        at_most=5e-3,
        statement="The exact |h| at the solvers' multiplier is at most 5e-3.",
        paper="|h| <= 2e-4 is asked of the computed h in all published runs.",
        teeth="no-solver",
    )
    measured = suite.measure(seeds=few, ablations=("bisection",), exclusive=True)(overhead)
    suite.claim(
        "at-most-three-matrix-signs",
        of=measured,
        figure="calls",
        kind="every",
        at_most=3.0,
        statement=(
            "The Krylov solver needs at most three matrix signs, in bfloat16 and float32, on three shapes."
        ),
        paper="7.0 to 10.0 matrix signs at a tolerance of 1e-4 (nine shapes, 1024 to 8192).",
        teeth="bisection",
    )
    suite.claim(
        "two-matrix-signs-on-average",
        of=measured,
        figure="mean_calls",
        kind="mean",
        at_most=2.2,
        statement="The Krylov solver needs at most 2.2 matrix signs on average.",
        paper="7.0 to 10.0.",
        teeth="bisection",
    )
    suite.claim(
        "solver-time",
        of=measured,
        figure="time_ratio",
        kind="mean",
        at_most=2.6,
        statement="Finding the multiplier takes at most 2.6 times as long as one matrix sign.",
        paper="8.4 to 12.1 times (nine shapes).",
        teeth="bisection",
    )
    suite.claim(
        "no-worse-than-bisection",
        of=measured,
        figure="residual",
        baseline="bisection_residual",
        kind="mean",
        at_most=0.0,
        statement="The exact |h| at the Krylov multiplier is not above that at bisection's.",
        paper="Bisection to 2e-4.",
    )
    measured = suite.measure(seeds=few, ablations=("no-retraction",))(sphere)
    suite.claim(
        "exactly-on-the-sphere",
        of=measured,
        figure="deviation",
        kind="every",
        at_most=2e-3,
        statement=(
            "After each step and its retraction sigma/R by SVD is 1 to 2e-3, fused projections included."
        ),
        paper="sigma = R throughout training (figures; method).",
        teeth="no-retraction",
    )
    suite.claim(
        "near-the-sphere-inside-a-step",
        of=measured,
        figure="inside",
        kind="every",
        at_most=0.05,
        statement="Inside a step, where the norm is that of a Krylov space, sigma/R is 1 to 5e-2.",
        paper="The official code estimates by 10 to 100 power iterations.",
        teeth="no-retraction",
    )
    suite.claim(
        "adamw-leaves-the-sphere",
        of=measured,
        figure="adamw",
        kind="every",
        at_least=2.0,
        statement="AdamW, from the same start at the same learning rate, doubles some spectral norm.",
        paper="Spectral norms grow without bound under AdamW (figures).",
    )
    measured = suite.measure(seeds=few, ablations=("no-tangent",))(steepest)
    suite.claim(
        "steeper-than-any-other",
        of=measured,
        figure="advantage",
        kind="every",
        at_least=0.0,
        statement="No random tangent direction, and not Muon's made tangent, descends faster.",
        paper="The update is the steepest within the tangent space (method).",
    )
    suite.claim(
        "optimum-of-the-convex-program",
        of=measured,
        figure="optimum_gap",
        kind="every",
        at_most=1e-4,
        statement="<M, Phi> equals the optimum of the convex program (by its dual) to 1e-4, 6 x 8.",
        paper="Closed form of the constrained problem (method).",
        teeth="no-tangent",
    )
    suite.claim(
        "drift-of-second-order",
        of=measured,
        figure="drift_order",
        kind="every",
        at_least=1.8,
        statement="With sigma_2 <= 0.8 sigma_1 a step leaves the sphere by eta^p with p >= 1.8.",
        paper="The tangent step stays on the sphere to first order (method).",
        teeth="no-tangent",
    )
    suite.claim(
        "drift-of-first-order-without",
        of=measured,
        figure="drift_order_without",
        kind="every",
        at_most=1.3,
        statement="Without the tangent condition (MuonSphere) it leaves by eta^p with p <= 1.3.",
        paper="Muon's step has a component along Theta (method).",
    )
    measured = suite.measure(seeds=few, ablations=("bisection",), exclusive=True)(step_time)
    suite.claim(
        "sso-step",
        of=measured,
        figure="sso",
        baseline="muon",
        kind="ratio",
        at_most=2.6,
        statement=(
            "A step of SSO takes at most 2.6 times as long as one of torch.optim.Muon with as many "
            "iterations."
        ),
        paper="Of a whole training step: 7666 ms against 6879 ms (+11.45 %) at 1.7 B on a B200.",
        teeth="bisection",
    )
    suite.claim(
        "muonsphere-step",
        of=measured,
        figure="muonsphere",
        baseline="muon",
        kind="ratio",
        at_most=1.15,
        statement="A step of MuonSphere takes at most 1.15 times as long as one of torch.optim.Muon.",
        paper="+1.03 % of the whole training step.",
    )
