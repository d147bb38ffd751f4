"""Energies and forces of chains of 269 beads: ours beside plain-torch CGSchNet, schnetpack and torchmd-net.

    python benchmarks/step.py                     # 1, 4 and 16 replicas; peers that are installed
    python benchmarks/step.py --replicas 64 --device cuda
    python benchmarks/step.py --quick             # a small case, to see that it runs

Every contestant runs in a process of its own with the same number of threads, on the same chains, at equal
width (128 features and filters, 64 basis functions, 4 layers, 15 Å), with weights that want no gradient.
Time is the median of seven rounds; memory is the growth of the resident set (CPU) or the allocator's peak
(CUDA). All get a finished neighbour list, except torchmd-net, which has no way to take one.
Prints a table, and writes benchmarks/results/step.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import typing
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results" / "step.json"
OURS = "fused"
OWN_ROUTES = ("fused", "untabulated", "unfused", "baseline")
PEERS = ("schnetpack", "torchmd-net")


def schnetpack_step(case: Any) -> tuple[Any, str]:
    """SchNet of schnetpack with the same sizes; its filters and activation are those of the first SchNet."""
    import torch
    import torch.utils.data.dataloader as loader

    # schnetpack 2.1.1 imports a name that newer versions of torch no longer have.
    loader.T_co = getattr(loader, "T_co", typing.TypeVar("T_co", covariant=True))
    import schnetpack.atomistic as atomistic
    from schnetpack import properties
    from schnetpack.model import NeuralNetworkPotential
    from schnetpack.nn import CosineCutoff, GaussianRBF
    from schnetpack.representation import SchNet

    pos, types, pairs = chains(case)
    config = case.config
    i, j = pairs.ij()
    model = NeuralNetworkPotential(
        representation=SchNet(
            n_atom_basis=config.hidden,
            n_interactions=config.layers,
            n_filters=config.filters,
            radial_basis=GaussianRBF(n_rbf=config.n_rbf, cutoff=config.r_cut),
            cutoff_fn=CosineCutoff(config.r_cut),
        ),
        input_modules=[atomistic.PairwiseDistances()],
        output_modules=[
            atomistic.Atomwise(
                n_in=config.hidden, n_hidden=list(config.out), n_layers=3, output_key="energy"
            ),
            atomistic.Forces(energy_key="energy", force_key="forces"),
        ],
        do_postprocessing=False,
    )
    model = model.to(case.device).requires_grad_(False).eval()
    replica = torch.arange(case.n_replicas, device=case.device).repeat_interleave(case.n_beads)
    order = torch.argsort(torch.cat([i, j]), stable=True)
    edges = 2 * len(i)
    inputs = {
        properties.Z: types,
        properties.R: pos,
        properties.idx_i: torch.cat([i, j])[order],
        properties.idx_j: torch.cat([j, i])[order],
        properties.offsets: torch.zeros(edges, 3, device=case.device),
        properties.idx_m: replica,
        properties.n_atoms: torch.full((case.n_replicas,), case.n_beads, device=case.device),
        properties.cell: torch.zeros(case.n_replicas, 3, 3, device=case.device),
        properties.pbc: torch.zeros(3 * case.n_replicas, dtype=torch.bool, device=case.device),
    }

    def step() -> tuple[Any, Any]:
        result = model(
            {key: value.clone() if key == properties.R else value for key, value in inputs.items()}
        )
        return result["energy"].detach(), result["forces"].detach()

    return step, version("schnetpack")


def torchmdnet_step(case: Any) -> tuple[Any, str]:
    """The graph network of torchmd-net, which is a SchNet; it finds its pairs anew in every step."""
    import torch
    from torchmdnet.models.model import create_model

    pos, types, _ = chains(case)
    config = case.config
    model = create_model(
        {
            "model": "graph-network",
            "embedding_dimension": config.hidden,
            "num_layers": config.layers,
            "num_rbf": config.n_rbf,
            "rbf_type": "gauss",
            "trainable_rbf": False,
            "activation": "tanh",
            "cutoff_lower": 0.0,
            "cutoff_upper": config.r_cut,
            "max_z": config.n_types,
            "max_num_neighbors": case.n_beads,
            "num_filters": config.filters,
            "neighbor_embedding": False,
            "aggr": "add",
            "derivative": True,
            "atom_filter": -1,
            "prior_model": None,
            "output_model": "Scalar",
            "reduce_op": "add",
            "precision": 32,
            "static_shapes": False,
        }
    )
    model = model.to(case.device).requires_grad_(False).eval()
    replica = torch.arange(case.n_replicas, device=case.device).repeat_interleave(case.n_beads)

    def step() -> tuple[Any, Any]:
        energy, forces = model(types, pos.clone().requires_grad_(), batch=replica)
        return energy.detach(), forces.detach()

    return step, version("torchmd-net")


def chains(case: Any) -> tuple[Any, Any, Any]:
    """Positions, types and pairs, as our own routes get them."""
    import torch
    from icml_flashschnet import FlashSchNet
    from icml_flashschnet.compact_chain import compact_chain

    pos, types = compact_chain(case.n_beads, n_replicas=case.n_replicas, seed=case.seed)
    pos, types = pos.to(case.device, torch.float32), types.to(case.device)
    return pos, types, FlashSchNet(case.config).neighbours(pos, n_replicas=case.n_replicas)


def contestant(name: str, case: Any) -> tuple[Any, str]:
    """The step function of a contestant and its version."""
    if name == "schnetpack":
        return schnetpack_step(case)
    if name == "torchmd-net":
        return torchmdnet_step(case)
    return case.steps(name)[name], version("icml-flashschnet")


def probe(request: str) -> None:
    """Time and memory of one contestant in this process, as JSON."""
    import torch
    from icml_flashschnet.memory_probe import growth
    from icml_flashschnet.step_measurement import StepCase, time_steps

    wanted = json.loads(request)
    name, threads, repeats = wanted.pop("name"), wanted.pop("threads"), wanted.pop("repeats")
    torch.set_num_threads(threads)
    case = StepCase(**wanted)
    try:
        tiny, _ = contestant(name, StepCase(**{**wanted, "n_beads": 12, "n_replicas": 1}))
        step, number = contestant(name, case)
    except ImportError as error:
        print(json.dumps({"missing": f"{name}: {error}"}))
        return
    tiny()
    begin = time.perf_counter()
    step()
    first = time.perf_counter() - begin
    seconds = time_steps({name: step}, repeats=repeats)[name]
    print(
        json.dumps(
            {
                "version": number,
                "seconds": seconds,
                "first_seconds": first,
                "peak_bytes": growth(step, case.device),
            }
        )
    )


def run(name: str, case: dict[str, Any], threads: int, repeats: int) -> dict[str, Any]:
    """Start :func:`probe` for one contestant."""
    request = json.dumps({"name": name, "threads": threads, "repeats": repeats, **case})
    done = subprocess.run(
        [sys.executable, __file__, "--probe", request], capture_output=True, text=True, check=False
    )
    if done.returncode:
        return {"missing": f"{name}: {done.stderr.strip().splitlines()[-1]}"}
    return json.loads(done.stdout.strip().splitlines()[-1])


def main() -> None:
    """Run all contestants on all cases; print and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--beads", type=int, default=269)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--probe", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.probe:
        probe(given.probe)
        return
    beads, replicas, repeats = (60, [1], 1) if given.quick else (given.beads, given.replicas, 7)
    rows = []
    for count in replicas:
        case = {"n_beads": beads, "n_replicas": count, "seed": 1, "device": given.device}
        print(f"\n{count} x {beads} beads, {given.device}, {given.threads} threads")
        measured = {name: run(name, case, given.threads, repeats) for name in (*OWN_ROUTES, *PEERS)}
        ours = measured[OURS]
        for name, figures in measured.items():
            if "missing" in figures:
                print(f"  {name:12s} not measured ({figures['missing']})")
                continue
            ratio, share = figures["seconds"] / ours["seconds"], figures["peak_bytes"] / 1e6
            speed = count / figures["seconds"]
            print(
                f"  {name:12s} {figures['seconds'] * 1e3:9.2f} ms  {ratio:7.1f} x  {share:8.1f} MB"
                f"  {speed:8.1f} replica-steps/s  first step {figures['first_seconds']:.2f} s"
            )
        peers = {n: f for n, f in measured.items() if n != OURS and "missing" not in f}
        rows.append(
            {
                "case": {"replicas": count, "beads": beads, "device": given.device},
                "ours": {key: ours[key] for key in ("seconds", "peak_bytes")},
                "peers": {
                    name: {key: figures[key] for key in ("version", "seconds", "peak_bytes")}
                    for name, figures in peers.items()
                },
                "ratios": {name: figures["seconds"] / ours["seconds"] for name, figures in peers.items()},
            }
        )
    if not given.quick:
        write(rows, given.threads)


def write(rows: list[dict[str, Any]], threads: int) -> None:
    """Write the results with what they were measured on."""
    environment = {
        "python": platform.python_version(),
        "processor": processor(),
        "threads": threads,
        "versions": {name: version(name) for name in ("torch", "numba", "icml-kernels", "icml-flashschnet")},
    }
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(
        json.dumps({"benchmark": "step", "environment": environment, "rows": rows}, indent=2) + "\n",
        encoding="utf-8",
    )
    print(
        f"\nwritten to {RESULTS.relative_to(Path.cwd()) if RESULTS.is_relative_to(Path.cwd()) else RESULTS}"
    )


def processor() -> str:
    """Name of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


if __name__ == "__main__":
    main()
