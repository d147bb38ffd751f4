"""Sampling and whole iterations beside NetKet in float64: same weights, chains and sweep length, one run.

    python packages/mpvmc/benchmarks/beside_netket.py --peer-python PYTHON [--quick] [--threads 1]

Seconds are of the same number of proposals, after compilation; ratios are per effective sample (seconds times
the correlation time of log π). Each side runs alone, one after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_core.run import provenance, public, write_json
from icml_mpvmc import RBM, VMC, Metropolis, ResCNN
from icml_mpvmc.chains import tau_int
from icml_mpvmc.hamiltonians import TFIM

HERE = Path(__file__).parent


def best(call: Callable[[], Any], repeats: int) -> float:
    """Least seconds after one call that is not counted."""
    call()
    taken = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begin)
    return min(taken)


def model_of(case: dict[str, Any]) -> torch.nn.Module:
    """Ours."""
    if case["model"] == "rbm":
        return RBM(case["shape"][0], case["alpha"], std=0.1, seed=1)
    return ResCNN(tuple(case["shape"]), seed=1)


def ours(case: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Seconds and correlation times of our ways to do it."""
    found: dict[str, dict[str, float]] = {}
    spins = int(np.prod(case["shape"]))
    ways: dict[str, dict[str, Any]] = {
        "bf16": {"dtype": "bf16"},
        "f32": {"dtype": "f32"},
        "f64": {"dtype": "f64"},
    }
    if case["model"] == "rbm":
        ways["f64, dense"] = {"dtype": "f64", "incremental": False}
    for name, options in ways.items():
        model = model_of(case)
        sampler = Metropolis(model, spins, n_chains=case["chains"], seed=2, **options)
        n = case["chains"] * case["draws"]
        if case["measure"] == "sampling":
            sampler.sample(case["chains"], discard=20)
            seconds = best(lambda s=sampler, n=n: s.sample(n, discard=0), case["repeats"])
            series = sampler.sample(n, discard=0).log_p.numpy().reshape(case["chains"], -1)
            found[name] = {"seconds": seconds, "tau": tau_int(series)}
        else:
            vmc = VMC(TFIM(case["shape"], h=case["h"]), model, sampler, n_samples=n)
            vmc.run(2)
            begin = time.perf_counter()
            vmc.run(case["repeats"])
            found[name] = {"seconds": (time.perf_counter() - begin) / case["repeats"], "tau": 1.0}
            parts = {
                k: float(np.mean(getattr(vmc.history, k)[2:])) for k in ("t_sample", "t_eloc", "t_solve")
            }
            found[name] |= parts
    return found


def peer(case: dict[str, Any], python: str, threads: int) -> dict[str, Any]:
    """NetKet's seconds and correlation time, from a process of its own."""
    eigen = "true" if threads > 1 else "false"
    flags = f"--xla_cpu_multi_thread_eigen={eigen} intra_op_parallelism_threads={threads}"
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
    with tempfile.TemporaryDirectory() as folder:
        given = dict(case)
        model = model_of(case)
        if isinstance(model, RBM):
            file = Path(folder) / "weights.npz"
            np.savez(file, **{k: v.detach().numpy() for k, v in model.named_parameters()})
            given["weights"] = str(file)
        done = subprocess.run(
            [python, str(HERE / "netket_side.py"), json.dumps(given)],
            capture_output=True,
            text=True,
            env=environment,
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    found = json.loads(done.stdout.splitlines()[-1])
    series = found.pop("log_p", None)
    found["tau"] = tau_int(np.array(series)) if series is not None else 1.0
    return found


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", help="interpreter of an environment with NetKet")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    few = options.quick
    base = {"measure": "sampling", "chains": 64 if few else 1024, "draws": 10 if few else 20, "repeats": 2}
    side = 4 if few else 8
    chain, longer = [16 if few else 64], [16 if few else 128]
    rbm = {**base, "model": "rbm"}
    grid = {
        **base,
        "model": "rescnn",
        "shape": [side, side],
        "draws": 2,
        "burn_in": 2,
        "chains": 32 if few else 256,
    }
    iteration = {
        **rbm,
        "measure": "iteration",
        "shape": chain,
        "alpha": 1,
        "h": 1.0,
        "draws": 4,
        "repeats": 5,
    }
    cases = {
        f"RBM, chain of {chain[0]}, α = 1": {**rbm, "shape": chain, "alpha": 1},
        f"RBM, chain of {chain[0]}, α = 4": {**rbm, "shape": chain, "alpha": 4},
        f"RBM, chain of {longer[0]}, α = 1": {**rbm, "shape": longer, "alpha": 1},
        f"ResCNN {side}x{side}": grid,
        f"iteration, RBM, chain of {chain[0]}, α = 1": iteration,
    }
    rows: list[dict[str, Any]] = []
    for name, case in cases.items():
        mine = ours(case)
        first = next(iter(mine))
        row: dict[str, Any] = {
            "case": name,
            "ours": {**mine[first], "peak_bytes": None},
            "ways": mine,
            "peers": {},
            "ratios": {},
        }
        print(f"\n{name}: {case['chains']} chains, {case['draws']} draws")
        if options.peer_python:
            theirs = peer(case, options.peer_python, options.threads)
            row["peers"] = {
                "netket": {
                    "version": theirs["version"],
                    "seconds": theirs["seconds"],
                    "tau": theirs["tau"],
                    "peak_bytes": None,
                }
            }
            print(f"  {'NetKet, f64':16} {theirs['seconds']:9.4f} s  tau {theirs['tau']:.2f}")
        for way, found in mine.items():
            ratio = ""
            if options.peer_python:
                value = theirs["seconds"] * theirs["tau"] / (found["seconds"] * found["tau"])
                row["ratios"]["netket" if way == first else f"netket over {way}"] = value
                ratio = f"x{value:.2f}"
            print(f"  {way:16} {found['seconds']:9.4f} s  tau {found['tau']:.2f}  {ratio}", flush=True)
        rows.append(row)
    if not few:
        environment = {**public(provenance()), "threads": options.threads}
        write_json(
            HERE / "results" / "beside_netket.json",
            {"benchmark": "beside_netket", "environment": environment, "rows": rows},
        )


if __name__ == "__main__":
    sys.exit(main())
