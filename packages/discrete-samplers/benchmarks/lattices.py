"""Lattices: Swendsen-Wang beside peapods, and effective samples a second of a trained sampler beside all
chains.

    python benchmarks/lattices.py [--quick] [--threads 1] [--clock wall|cpu]

The trained sampler's effective samples are its draws times their effective share of weights; a chain's come
from the magnetisation, whose sign a single-site chain hardly ever changes in the cold. Swendsen-Wang stands
beside them for honesty: where it applies it wins, and on a spin glass it does not apply.
"""

from __future__ import annotations

import importlib.util
import math
import time
import warnings
from importlib.metadata import version

import torch
from icml_discrete_samplers import Ising2D, OffPolicyTrainer, Polynomial, mcmc
from icml_kernels import swendsen_wang
from measuring import Report, arguments, seconds


def sweeps(report: Report, given: object, L: int, beta: float) -> None:
    """Sweeps of many lattices."""
    chains, count = (8, 20) if given.quick else (32, 100)  # type: ignore[attr-defined]
    g = torch.Generator().manual_seed(0)
    spins = torch.randint(0, 2, (chains, L, L), generator=g).to(torch.int8)
    p = 1 - math.exp(-2 * beta)
    own = seconds(lambda: swendsen_wang(spins, p, 2, count, 0), given)  # type: ignore[arg-type]
    peers: dict[str, tuple[str, float]] = {}
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

        # A Metropolis sweep goes before each of its cluster updates; what that takes alone is taken off.
        both, metropolis = (seconds(lambda i=i: theirs(i), given) for i in (1, None))
        peers["peapods"] = (version("peapods"), both - metropolis)
    else:
        print("peapods is not installed; its column is left out")
    rate = chains * count / own
    report.add(f"Swendsen-Wang, L = {L}, beta = {beta}", own, peers, sweeps_per_second=rate)


def chain_rate(energy: object, kernel: str, steps: int, thin: int) -> float:
    """Effective samples a second of eight chains, by magnetisation and energy."""
    begin = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = mcmc.run(energy, 8, kernel, steps, thin, burn_in=steps // 4, seed=0)  # type: ignore[arg-type]
    taken = time.perf_counter() - begin
    # Chains that do not agree are worth no more than themselves.
    worth = found.ess if found.rhat < 1.05 else 0.0
    return max(worth, 1e-9) / taken


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
    share = sampler.log_z(draws, seed=2).ess
    own = share * draws / seconds_of_draws
    peers = {}
    for kernel, (count, thin) in kernels.items():
        rate = chain_rate(energy, kernel, count // (20 if quick else 1), thin)
        peers[kernel] = ("", draws * share / rate)
    report.add(
        f"effective samples, {name}",
        seconds_of_draws,
        peers,
        effective_share=share,
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
