"""Lattices: Swendsen-Wang beside peapods, and effective samples a second of a trained sampler beside all
chains.

    python benchmarks/lattices.py [--quick] [--threads 1] [--clock wall|cpu]

The trained sampler's effective samples are its draws times the lesser of two effective shares: of its own
weights, which a collapsed sampler passes with 1, and of true states under it, 1 / (mean w mean 1/w), which a
missing mode brings to 0. A chain's come from magnetisation and energy; where chains disagree (R-hat above
1.05) they count as one sample each at most, and the row says so. Swendsen-Wang stands beside them for
honesty: where it applies it wins, and on a spin glass it does not apply. True states come from
Swendsen-Wang, of a glass from parallel tempering where its chains agree; else the share is not checked, and
the row says so.
"""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from importlib.metadata import version

import torch
from icml_discrete_samplers import Ising2D, OffPolicyTrainer, Polynomial, mcmc
from icml_discrete_samplers.diagnostics import AGREE
from icml_kernels import swendsen_wang
from measuring import Report, arguments, seconds

CHAINS = 8


def sweeps(report: Report, given: object, L: int, beta: float) -> None:
    """Sweeps of many lattices."""
    chains, count = (8, 20) if given.quick else (32, 100)  # type: ignore[attr-defined]
    g = torch.Generator().manual_seed(0)
    spins = torch.randint(0, 2, (chains, L, L), generator=g).to(torch.int8)
    p = 1 - math.exp(-2 * beta)
    own = seconds(lambda: swendsen_wang(spins, p, 2, count, 0), given)  # type: ignore[arg-type]
    peers: dict[str, tuple[str, float]] = {}
    more: dict[str, float] = {}
    if importlib.util.find_spec("peapods") is not None:
        import numpy as np
        from peapods import Ising

        model = Ising((L, L), temperatures=np.full(chains, 1 / beta))

        def theirs(interval: int | None) -> None:
            model.sample(
                n_sweeps=count,
                cluster_update_interval=interval,
                cluster_mode="sw",
                warmup_ratio=0.0,
                sequential=True,
            )

        # A Metropolis sweep goes before each of its cluster updates; what that takes alone is taken off,
        # where the difference is more than a tenth of the whole: below, it is the clock's noise.
        both, metropolis = (seconds(lambda i=i: theirs(i), given) for i in (1, None))
        more = {"peapods_with_metropolis": both, "peapods_metropolis_alone": metropolis}
        if both - metropolis > 0.1 * both:
            peers["peapods"] = (version("peapods"), both - metropolis)
        else:
            print(f"peapods' cluster updates are not resolved: {both:.3g} s with, {metropolis:.3g} s without")
    else:
        print("peapods is not installed; its column is left out")
    rate = chains * count / own
    report.add(f"Swendsen-Wang, L = {L}, beta = {beta}", own, peers, sweeps_per_second=rate, **more)


def chain_rate(energy: object, kernel: str, steps: int, thin: int) -> tuple[float, bool]:
    """Effective samples a second of eight chains, by magnetisation and energy, and whether they agree."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = mcmc.run(energy, CHAINS, kernel, steps, thin, burn_in=steps // 4, seed=0)  # type: ignore[arg-type]
    taken = time.perf_counter() - begin
    # Chains that do not agree are worth no more than themselves, each one sample.
    mixed = found.rhat < AGREE
    return (found.ess if mixed else min(found.ess, CHAINS)) / taken, mixed


def true_states(energy: object, n: int) -> torch.Tensor | None:
    """Swendsen-Wang states of independent chains, or tempered ones that agree; else None."""
    if isinstance(energy, Ising2D):
        return mcmc.run(energy, n, "swendsen_wang", 500, 500, seed=3, diagnose=False).x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = mcmc.run(
            energy,  # type: ignore[arg-type]
            64,
            "single_site_mh",
            200 * energy.D,  # type: ignore[attr-defined]
            energy.D,  # type: ignore[attr-defined]
            burn_in=100 * energy.D,  # type: ignore[attr-defined]
            temperatures=[1.0, 1.25, 1.6, 2.0, 2.6, 3.5, 5.0],
            keep=True,
            seed=3,
        )
    return found.kept[:: max(1, 12_800 // n)].flatten(0, 1)[:n] if found.rhat < AGREE else None  # type: ignore[index]


def effective(
    report: Report, given: object, name: str, energy: object, kernels: dict[str, tuple[int, int]]
) -> None:
    """A trained sampler beside chains."""
    quick = given.quick  # type: ignore[attr-defined]
    steps, batch = (200, 64) if quick else (4000, 128)
    begin = time.perf_counter()
    trainer = OffPolicyTrainer(
        energy,
        seed=0,
        k=4,
        steps=steps,
        batch=batch,
        mcmc=next(iter(kernels)),
        mcmc_every=100,
        network={"hidden": 256, "layers": 2},
    )  # type: ignore[arg-type]
    sampler = trainer.fit()
    trained = time.perf_counter() - begin
    draws = 500 if quick else 4000
    seconds_of_draws = seconds(lambda: sampler.sample_weighted(draws, seed=1), given)  # type: ignore[arg-type]
    own_share = sampler.log_z(draws, seed=2).ess
    truth = true_states(energy, draws)
    true_share = math.nan
    if truth is not None:
        log_w = sampler.log_rnd(truth, seed=4)
        true_share = math.exp(2 * math.log(len(log_w)) - float(log_w.logsumexp(0) + (-log_w).logsumexp(0)))
    share = own_share if truth is None else min(own_share, true_share)
    own = share * draws / seconds_of_draws
    peers, stuck = {}, []
    for kernel, (count, thin) in kernels.items():
        rate, mixed = chain_rate(energy, kernel, count // (20 if quick else 1), thin)
        peers[kernel] = ("", draws * share / rate)
        if not mixed:
            stuck.append(kernel)
    report.add(
        f"effective samples, {name}",
        seconds_of_draws,
        peers,
        share_of_own_weights=own_share,
        share_of_true_states=None if truth is None else true_share,
        stuck_chains=stuck,
        effective_per_second=own,
        training_seconds=trained,
    )


def main() -> None:
    """Run all cases."""
    given = arguments(__doc__ or "")
    report = Report("lattices", given)
    for L in (16, 64) if given.quick else (16, 64, 256):
        for beta in (0.3, 0.4407, 0.6):
            sweeps(report, given, L, beta)
    L = 8 if given.quick else 16
    local = (400_000, 400)
    effective(
        report,
        given,
        f"Ising {L}², beta 0.6",
        Ising2D(L, 0.6),
        {"swendsen_wang": (4000, 1), "hamming_ball": local, "single_site_mh": local},
    )
    g = torch.Generator().manual_seed(0)
    bonds = Ising2D(L, 1.0).bonds_of_sites()
    signs = (2 * torch.randint(0, 2, (len(bonds),), generator=g) - 1).tolist()
    merged: dict[tuple[int, int], float] = {}
    for (i, j), s in zip(bonds, signs, strict=True):
        merged[min(i, j), max(i, j)] = merged.get((min(i, j), max(i, j)), 0.0) - s
    glass = Polynomial(merged, "spin", beta=1.0)
    effective(
        report, given, f"±J glass {L}², beta 1", glass, {"hamming_ball": local, "single_site_mh": local}
    )


if __name__ == "__main__":
    main()
