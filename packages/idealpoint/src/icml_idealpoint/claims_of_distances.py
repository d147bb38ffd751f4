"""Claims about the distances: Lipschitz constants, exact gradients, bounds of the bias."""

from __future__ import annotations

from icml_core import ClaimSuite, Run


def lipschitz(run: Run, seed: int) -> dict[str, list[float]]:
    """|D(x, u) - D(x, u')| over sum_j |u_j - u'_j|, for random pairs of series and changes of u."""
    import torch
    from icml_kernels import elastic_cross, soft_elastic

    generator = torch.Generator().manual_seed(seed)
    count = {"smoke": 20, "small": 400, "full": 2000}[run.scale]
    ratios: dict[str, list[float]] = {"twed": [], "soft_twed": [], "dtw_over_n": []}
    for _ in range(count):
        n, m = (int(v) for v in torch.randint(1, 16, (2,), generator=generator))
        x, u = (torch.randn(1, k, 1, generator=generator, dtype=torch.float64) for k in (n, m))
        change = torch.randn(1, m, 1, generator=generator, dtype=torch.float64)
        if torch.rand((), generator=generator) < 0.7:  # one point alone, which is where the bound is attained
            kept = torch.zeros(m, dtype=torch.float64)
            kept[int(torch.randint(m, (), generator=generator))] = 0.1
            change = change * kept[None, :, None]
        size = float(change.abs().sum())
        metric = "dtw" if run.ablation == "dtw" else "twed"
        options = {"nu": 0.05, "lam": float(torch.rand((), generator=generator)) * 2}
        hard = [elastic_cross(x, v, metric, **options)[0, 0] for v in (u, u + change)]
        soft = [soft_elastic(x, v, metric, gamma=0.2, **options)[0] for v in (u, u + change)]
        warped = [elastic_cross(x, v, "dtw")[0, 0] for v in (u, u + change)]
        ratios["twed"].append(abs(float(hard[0] - hard[1])) / size)
        ratios["soft_twed"].append(abs(float(soft[0] - soft[1])) / size)
        ratios["dtw_over_n"].append(abs(float(warped[0] - warped[1])) / size / n)
    ratios["largest"] = [max(ratios["twed"])]
    return ratios


def gradients(run: Run, seed: int) -> dict[str, float]:
    """Gradients beside finite differences, the flow through each column, the bias, and the limit of hard
    minima.

    The ablation forgets that a match also pays for the previous pair when it comes to derivatives.
    """
    import torch

    from icml_idealpoint.claim_oracles import forgetful_gradient, hard_twed
    from icml_idealpoint.distances import largest_bias, soft_twed, twed

    generator = torch.Generator().manual_seed(seed)
    worst = dict.fromkeys(("gradient", "flow", "above", "below", "limit"), 0.0)
    for _ in range(3 if run.scale == "smoke" else 20):
        n, m, d = (int(v) for v in torch.randint(2, 9, (3,), generator=generator))
        x, u = (torch.randn(1, k, d, generator=generator, dtype=torch.float64) for k in (n, m))
        gamma, nu, lam = (float(v) for v in torch.rand(3, generator=generator, dtype=torch.float64) + 0.05)
        leaf = u.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(soft_twed(x, leaf, gamma, nu, lam).sum(), leaf)
        if run.ablation == "forget-previous-match":
            gradient = forgetful_gradient(x[0], u[0], gamma, nu, lam, 1e-2)[None]
        direction = torch.randn(u.shape, generator=generator, dtype=torch.float64)
        step = 1e-5
        up, down = (soft_twed(x, u + s * direction, gamma, nu, lam) for s in (step, -step))
        slope = float((up - down) / (2 * step))
        worst["gradient"] = max(worst["gradient"], abs(float((gradient * direction).sum()) - slope))
        worst["flow"] = max(worst["flow"], float((column_flow(x, u, gamma, nu, lam) - 1).abs().max()))
        hard = twed(x[0].numpy(), u[0].numpy(), nu, lam)
        soft = float(soft_twed(x, u, gamma, nu, lam, smoothing=0.0))
        worst["above"] = max(worst["above"], soft - hard)
        worst["below"] = max(worst["below"], hard - largest_bias(n, m, gamma) - soft)
        cold = float(soft_twed(x, u, 1e-9, nu, lam, smoothing=0.0))
        worst["limit"] = max(worst["limit"], abs(cold - hard_twed(x[0].numpy(), u[0].numpy(), nu, lam)))
    return worst


def column_flow(x, u, gamma, nu, lam):  # type: ignore[no-untyped-def]
    """sum_i (a_ij + e_ij) for every j, from the kernel's derivatives.

    With all times of x after those of u, the derivative of the matches' costs by s_j is -nu (sum_i a_ij +
    sum_i a_{i+1,j+1}); the derivative by the cost of deleting u_j is sum_i e_ij. The last column gives the
    rest one by one.
    """
    import torch
    from icml_kernels.series.recurrence import deletions

    ts = 100.0 + torch.arange(x.shape[1], dtype=x.dtype)[None]
    ss = 1.0 + torch.arange(u.shape[1], dtype=x.dtype)[None]
    edit = x.new_tensor(nu), x.new_tensor(lam)
    p, q = deletions(x, ts, *edit, False, 1e-2), deletions(u, ss, *edit, False, 1e-2)
    lengths = torch.tensor([x.shape[1]]), torch.tensor([u.shape[1]])
    found = torch.ops.icml.soft_elastic_gradients(
        x,
        u,
        p,
        q,
        ts,
        ss,
        x.new_tensor(gamma),
        x.new_tensor(nu),
        *lengths,
        "twed",
        "norm",
        1e-2,
        -1.0,
        False,
        False,
    )
    both, left = (-found[6][0] / nu).tolist(), found[4][0]
    matches = [0.0] * (u.shape[1] + 1)
    for j in range(u.shape[1] - 1, -1, -1):
        matches[j] = both[j] - matches[j + 1]
    return torch.tensor(matches[:-1], dtype=x.dtype) + left


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    continuity = suite.measure(seeds={"smoke": 1, "small": 5, "full": 5}, ablations=("dtw",))(lipschitz)
    paper = "Theorem: the elastic distances are Lipschitz continuous; its constants are not known to us."
    for figure, name in (("twed", "twed"), ("soft_twed", "soft-twed")):
        suite.claim(
            f"{name}-is-2-lipschitz",
            of=continuity,
            figure=figure,
            kind="every",
            at_most=2.0 + 1e-9,
            statement="The distance changes by at most twice the sum of the changes of points, whatever the "
            "lengths.",
            paper=paper,
            teeth="dtw",
        )
    suite.claim(
        "dtw-is-n-lipschitz",
        of=continuity,
        figure="dtw_over_n",
        kind="every",
        at_most=1.0 + 1e-9,
        statement="DTW changes by at most n times that, n the length of the other series.",
        paper=paper,
        unit="× n",
    )
    suite.claim(
        "constant-2-is-tight",
        of=continuity,
        figure="largest",
        kind="every",
        at_least=1.8,
        statement="Among a few hundred random pairs the ratio comes near to 2.",
        paper=paper,
    )
    exact = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("forget-previous-match",))(
        gradients
    )
    paper = "A differentiable TWED; no figures."
    for figure, bound, teeth, statement in (
        ("gradient", 1e-6, "forget-previous-match", "Gradients equal central differences."),
        ("flow", 1e-9, None, "Every column of the table is entered exactly once: the flow through it is 1."),
        ("above", 1e-9, None, "The soft distance is never above the hard one."),
        ("below", 1e-9, None, "Nor below it by more than gamma times the logarithm of the number of paths."),
        ("limit", 1e-6, None, "At a vanishing temperature it is the hard distance of a plain Python loop."),
    ):
        suite.claim(
            f"soft-twed-{figure}",
            of=exact,
            figure=figure,
            kind="every",
            at_most=bound,
            statement=statement,
            paper=paper,
            teeth=teeth,
        )
