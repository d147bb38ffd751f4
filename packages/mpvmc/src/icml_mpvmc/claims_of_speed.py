"""Claims about speed, measured with nothing else running, on one thread of a CPU."""

from __future__ import annotations

import time
from typing import Any

from icml_core import ClaimSuite, Run


def _seconds(call: Any, repeats: int) -> float:
    call()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def _dense(n_spins: int, hidden: int, seed: int) -> Any:
    """log ψ = w · GELU(x W + b): a plain network as users bring it."""
    import torch
    from icml_core.randomness import seeded

    with seeded(seed):
        layers = torch.nn.Sequential(
            torch.nn.Linear(n_spins, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, 1), torch.nn.Flatten(0)
        )
    return layers.double()


def sampling_speed(run: Run, seed: int) -> dict[str, float]:
    """Seconds of a proposal of 2048 chains in f64, f32 and bf16, and of a Boltzmann machine by both ways."""
    import torch

    from icml_mpvmc.metropolis import Metropolis
    from icml_mpvmc.models import RBM
    from icml_mpvmc.rescnn import ResCNN

    few = run.scale == "smoke"
    chains, side, n_spins = (32, 4, 16) if few else (2048, 8, 128)
    seed = seed % 2**31
    figures: dict[str, float] = {}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        models = {
            "rescnn": (ResCNN((side, side), seed=seed), side * side, 2),
            "dense": (_dense(n_spins, 4 * n_spins, seed), n_spins, 8),
        }
        for name, (model, spins, proposals) in models.items():
            for dtype in ("f64", "f32", "bf16"):
                walker = Metropolis(model, spins, n_chains=chains, dtype=dtype, seed=seed)
                figures[f"{name}_{dtype}"] = (
                    _seconds(lambda w=walker, p=proposals: w._propose(p), 1 if few else 3) / proposals
                )
        machine = RBM(n_spins, 1, std=0.05, seed=seed)
        for name, options in (
            ("machine_dense", {"dtype": "f64", "incremental": False}),
            ("machine_incremental", {"dtype": "bf16"}),
            ("machine_incremental_f64", {"dtype": "f64"}),
        ):
            walker = Metropolis(machine, n_spins, n_chains=chains, seed=seed, **options)
            count = 8 if name == "machine_dense" else n_spins
            figures[name] = _seconds(lambda w=walker, c=count: w._propose(c), 1 if few else 3) / count
    finally:
        torch.set_num_threads(threads)
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    fast = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, exclusive=True)(sampling_speed)
    paper = (
        "H100: RBM up to 2.9x (f32) and 4x (f16, bf16) of f64; ResCNN up to 7.6x and 24x; whole ResCNN "
        "training 4660 "
        "to 2057 s."
    )
    for name, what in (("rescnn", "ResCNN 8x8"), ("dense", "a dense network 128-512-1")):
        for base, least in (("f64", 3.0), ("f32", 1.5)):
            suite.claim(
                f"{name}-bf16-beats-{base}",
                of=fast,
                figure=f"{name}_{base}",
                baseline=f"{name}_bf16",
                kind="ratio",
                at_least=least,
                statement=f"Proposals of {what}, 2048 chains, one thread: bf16 at least {least:g} times as "
                f"fast as {base}.",
                paper=paper,
                unit="×",
            )
    suite.claim(
        "incremental-beats-dense",
        of=fast,
        figure="machine_dense",
        baseline="machine_incremental",
        kind="ratio",
        at_least=10.0,
        statement="A Boltzmann machine of 128 + 128 units: the incremental loop is at least 10 times as "
        "fast as dense f64.",
        paper="Not in the paper.",
        unit="×",
    )
