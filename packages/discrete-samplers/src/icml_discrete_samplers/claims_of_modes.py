"""Claims on mixtures of Gaussians in Gray code: off-policy training keeps the modes that on-policy training
loses.
"""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

STEPS = {"smoke": 3, "small": 1000, "full": 20_000}
HIDDEN = {"smoke": 8, "small": 256, "full": 256}
REPEATS = {"smoke": 1, "small": 3, "full": 5}


def _target(run: Run, seed: int) -> Any:
    from icml_discrete_samplers.targets import mixture

    if run.scale == "smoke":
        return mixture(3, 2, 3, 60.0, 35.0, seed)
    return mixture(9, 2, 6, 4.0, 35.0, seed, "9gmm")


def gaussians(run: Run, seed: int) -> dict[str, Any]:
    """Nine Gaussians in 12 bits, on three sets of centres: trajectory balance with buffer and MCMC, and
    on-policy, on the same sets; on the first also with the buffer alone.

    The ablation ``on-policy`` trains on-policy on both sides, ``off-policy`` off-policy on both.
    """
    from icml_discrete_samplers import experiments as e
    from icml_discrete_samplers.exact import enumerate_law

    budget = {"steps": STEPS[run.scale], "hidden": HIDDEN[run.scale], "device": run.device}
    chain_steps = 20 if run.scale == "smoke" else 2000

    def trained(target: Any, law: Any, one: int, **options: Any) -> tuple[Any, float]:
        sampler = e.train(target, one, **budget, **options)
        return e.modes(target, law, sampler, one), e.coverage(sampler, one, chain_steps)

    off, on, buffered = [], [], None
    for one in e.seeds_of(seed, REPEATS[run.scale]):
        target = _target(run, one)
        law = enumerate_law(target.energy)
        off_options = e.ON_POLICY if run.ablation == "on-policy" else {}
        on_options = {} if run.ablation == "off-policy" else e.ON_POLICY
        off.append(trained(target, law, one, **off_options))
        on.append(off[-1] if off_options == on_options else trained(target, law, one, **on_options))
        buffered = buffered or trained(target, law, one, **e.BUFFER)
    assert buffered is not None
    return {
        "smallest_off": [m.smallest for m, _ in off],
        "smallest_buffer": buffered[0].smallest,
        "median_smallest_on": e.median([m.smallest for m, _ in on]),
        "covered_on": [m.covered for m, _ in on],
        "tv_off": e.mean([m.tv for m, _ in off]),
        "tv_buffer": buffered[0].tv,
        "tv_on": e.mean([m.tv for m, _ in on]),
        "elbo_off_minus_on": e.mean([a.elbo - b.elbo for (a, _), (b, _) in zip(off, on, strict=True)]),
        "coverage_off": [c for _, c in off],
        "median_coverage_on": e.median([c for _, c in on]),
    }


def brackets(run: Run, seed: int) -> dict[str, Any]:
    """ELBO and EUBO beside exact log Z, in standard errors, of short trainings on several kinds of targets.

    The ablation takes the sampler's own states for true ones on the upper side.
    """
    import torch

    from icml_discrete_samplers import experiments as e
    from icml_discrete_samplers.energies import QUBO
    from icml_discrete_samplers.exact import enumerate_law
    from icml_discrete_samplers.targets import Target, target

    g = torch.Generator().manual_seed(seed)
    matrix = torch.randn(10, 10, generator=g, dtype=torch.float64).numpy()
    targets = [Target("qubo", QUBO(matrix)), target("ising_L3_b0.4"), target("potts_L3_q3_b0.8")]
    if run.scale != "smoke":
        targets += [target("ising_L4_b0.6"), target("9gmm", seed), target("manywell_2d")]
    steps = {"smoke": 3, "small": 150, "full": 1000}[run.scale]
    lower, upper = [], []
    for one in targets:
        log_z = enumerate_law(one.energy).log_z if one.log_z is None else one.log_z
        sampler = e.train(one, seed, steps, hidden=8 if run.scale == "smoke" else 64, device=run.device)
        n = 200 if run.scale == "smoke" else 4000
        truth = sampler.sample(n, seed=seed) if run.ablation == "no-truth" else one.sample(n, seed)
        bounds = sampler.log_z(n, seed + 1, truth)
        lower.append((log_z - bounds.elbo) / max(bounds.elbo_se, 1e-12))
        upper.append((bounds.eubo - log_z) / max(bounds.eubo_se, 1e-12))
    return {"lower": lower, "upper": upper}


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("on-policy", "off-policy"))(
        gaussians
    )
    paper = (
        "40GMM, D = 32: Sinkhorn 2142.65 on-policy TB, 114.11 with a buffer, 4.25 with buffer "
        "and MCMC (MDNS 349.31)."
    )
    suite.claim(
        "off-policy-keeps-modes",
        of=measure,
        figure="smallest_off",
        kind="every",
        at_least=0.03,
        statement="With buffer and MCMC every one of nine modes has more than 0.03 of the mass, in "
        "every training.",
        paper=paper,
        unit="mass of the least mode",
        teeth="on-policy",
    )
    suite.claim(
        "off-policy-is-closer",
        of=measure,
        figure="tv_off",
        baseline="tv_on",
        kind="mean",
        at_most=0.0,
        statement="The exact total variation to the target, the mean of three trainings, is lower than "
        "on-policy's on the same targets, of as many updates.",
        paper=paper,
        unit="total variation",
        teeth="on-policy",
    )
    suite.claim(
        "the-buffer-alone",
        of=measure,
        figure="smallest_buffer",
        kind="every",
        statement="The least mode with the buffer and without MCMC.",
        paper=paper,
        unit="mass of the least mode",
    )
    suite.claim(
        "collapse-has-the-better-elbo",
        of=measure,
        figure="elbo_off_minus_on",
        kind="mean",
        statement="ELBO with buffer and MCMC minus on-policy: a collapsed sampler does not show in it.",
        paper="ELBO -2.47 on-policy, -5.97 with a buffer, -7.13 with MCMC: the collapsed sampler has "
        "the best.",
        unit="nats",
    )
    suite.claim(
        "coverage-sees-a-collapse",
        of=measure,
        figure="median_coverage_on",
        kind="every",
        at_most=0.95,
        statement="States of independent chains are missing from the on-policy sampler, and the "
        "check says so, in two of three trainings.",
        paper="Not in the paper; a user of torchgfn asks for it.",
        unit="share",
        teeth="off-policy",
    )
    suite.claim(
        "coverage-passes-off-policy",
        of=measure,
        figure="coverage_off",
        kind="every",
        at_least=0.95,
        statement="States of independent chains are as likely under the off-policy sampler as its own draws.",
        paper="Not in the paper; a user of torchgfn asks for it.",
        unit="share",
        teeth="on-policy",
    )
    suite.claim(
        "on-policy-loses-modes",
        of=measure,
        figure="median_smallest_on",
        kind="every",
        at_most=0.01,
        statement="On-policy, on the same targets, a mode has less than 0.01 of the mass in two of three "
        "trainings.",
        paper="MMD 0.40 on-policy against 0.04.",
        unit="mass of the least mode",
        teeth="off-policy",
    )
    bounds = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("no-truth",))(brackets)
    suite.claim(
        "elbo-is-below-log-z",
        of=bounds,
        figure="lower",
        kind="every",
        at_least=-3.0,
        statement="ELBO <= exact log Z within 3 standard errors on every small target.",
        paper="Implicit in the bounds.",
        unit="standard errors",
    )
    suite.claim(
        "eubo-is-above-log-z",
        of=bounds,
        figure="upper",
        kind="every",
        at_least=-3.0,
        statement="Exact log Z <= EUBO within 3 standard errors on every small target.",
        paper="Implicit in the bounds.",
        unit="standard errors",
        teeth="no-truth",
    )
