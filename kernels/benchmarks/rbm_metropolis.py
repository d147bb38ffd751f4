"""Metropolis chains of Boltzmann machines and ratios of amplitudes, beside plain torch that evaluates
densely.

    python kernels/benchmarks/rbm_metropolis.py [--quick] [--threads 1] [--out kernels/benchmarks/results]

Plain torch proposes for all chains at once and evaluates log ψ of the proposals by one product of matrices.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from icml_kernels import metropolis_draws, rbm_log_ratios, rbm_metropolis, single_flips
from icml_kernels.wavefunctions.cases import machine, spins
from icml_kernels.wavefunctions.rbm_metropolis.reference import log_cosh

FEW = 8
"""Proposals that are timed of the dense way."""


def best(call: Callable[[], Any], repeats: int = 3) -> float:
    """Least seconds of a few calls, after one that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def dense(parameters: list[torch.Tensor], x: torch.Tensor, n_steps: int) -> torch.Tensor:
    """The same chain with a whole evaluation a proposal."""
    weight, hidden, visible = parameters
    chain, rows = torch.arange(len(x)), torch.arange(len(x))
    move, log_uniform = metropolis_draws(chain, seed=1, step=0, n_steps=n_steps, n_moves=x.shape[1])

    def log_psi(s: torch.Tensor) -> torch.Tensor:
        return log_cosh(s @ weight + hidden).sum(1) + s @ visible

    x = x.to(weight.dtype)
    value = log_psi(x)
    for s in range(n_steps):
        new = x.clone()
        new[rows, move[s]] *= -1
        there = log_psi(new)
        takes = log_uniform[s] < 2 * (there - value).double()
        x, value = torch.where(takes[:, None], new, x), torch.where(takes, there, value)
    return x


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []

    def report(case: str, seconds: float, plain: float, work: int) -> None:
        ratios = {"torch": plain / seconds}
        peers = {"torch": {"version": torch.__version__, "seconds": plain}}
        rows.append(
            {"case": case, "ours": {"seconds": seconds, "work": work}, "peers": peers, "ratios": ratios}
        )
        print(f"{case:48} {1e9 * seconds / work:9.1f} ns each  torch x{ratios['torch']:.1f}", flush=True)

    sizes = ((16, 16),) if options.quick else ((32, 32), (64, 64), (128, 128), (64, 256), (128, 512))
    chains = 64 if options.quick else 1024
    for n_spins, n_hidden in sizes:
        parameters, x = machine(n_spins, n_hidden, 0.1), spins(chains, n_spins)
        for dtype in (torch.float32, torch.float64):
            given = [p.to(dtype) for p in parameters]
            plain = best(lambda g=given, x=x: dense(g, x, FEW), 2) / FEW
            seconds = best(
                lambda g=given, x=x, d=dtype, n=n_spins: rbm_metropolis(
                    *g, x, single_flips(n), n_steps=4 * n, seed=1, dtype=d
                )
            ) / (4 * n_spins)
            name = str(dtype).removeprefix("torch.")
            report(f"proposals, {n_spins} + {n_hidden} units, {name}", seconds, plain, chains)
        ptr, sites = torch.arange(n_spins + 1), torch.arange(n_spins)
        seconds = best(lambda p=parameters, x=x, a=ptr, b=sites: rbm_log_ratios(*p, x, a, b))
        weight, hidden, _ = parameters

        def all_flips(
            x: torch.Tensor = x, w: torch.Tensor = weight, b: torch.Tensor = hidden
        ) -> torch.Tensor:
            flipped = x.double()[:, None, :].repeat(1, x.shape[1], 1)
            flipped.diagonal(dim1=1, dim2=2).neg_()
            return log_cosh(flipped @ w + b).sum(2)

        report(
            f"all flips, {n_spins} + {n_hidden} units, float64", seconds, best(all_flips, 2), chains * n_spins
        )
    environment = {"python": platform.python_version(), "threads": options.threads}
    environment |= {"processor": platform.processor() or platform.machine()}
    if not options.quick:
        options.out.mkdir(parents=True, exist_ok=True)
        document = {"benchmark": "rbm_metropolis", "environment": environment, "rows": rows}
        (options.out / "rbm_metropolis.json").write_text(
            json.dumps(document, indent=1) + "\n", encoding="utf-8"
        )


if __name__ == "__main__":
    main()
