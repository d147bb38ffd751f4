"""Prior energies and forces beside OpenMM's custom forces and plain torch, on the CPU.

    python kernels/benchmarks/bonded.py [--threads 2] [--out kernels/benchmarks/results]

A chain of 269 beads with bonds, angles, dihedrals of third order and a switched repulsion over the pairs
within 10 Å, for one and for many replicas. OpenMM computes one replica after the other, each with its own
neighbour list; plain torch is the operator's reference. On a machine that others use,
``--threads 1 --clock cpu`` counts processor time instead.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_kernels import bonded_energy_forces, radius_pairs, without_pairs
from icml_kernels.molecules.bonded.cases import coefficients
from icml_kernels.molecules.bonded.terms import bonded_terms
from icml_kernels.testing import use_route

N_BEADS = 269
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
REPLICAS = (1, 32, 128)
CUTOFF, SWITCH, SKIN = 10.0, 8.0, 1.0
# About 55 neighbours within 15 Å, as in a compact protein of five beads a residue.
DENSITY = 0.0042


def chains(n_replicas: int) -> torch.Tensor:
    """A snake through a cubic grid with the density of a compact protein, shaken."""
    side = math.ceil(N_BEADS ** (1 / 3))
    axis = torch.arange(side)
    there_and_back = torch.stack((axis, axis.flip(0)))
    path = [(x, y, z) for x in axis for y in there_and_back[x % 2] for z in there_and_back[(x + y) % 2]]
    grid = torch.tensor(path[:N_BEADS], dtype=torch.float64) * DENSITY ** (-1 / 3)
    noise = torch.randn(
        n_replicas, N_BEADS, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64
    )
    return grid + 0.5 * noise


def openmm_call(pos: np.ndarray, c: dict[str, torch.Tensor]) -> Callable[[], Any]:
    """Energies and forces of every replica from OpenMM's CPU platform."""
    import openmm

    system = openmm.System()
    bond = openmm.CustomBondForce("k*(r-r0)^2")
    angle = openmm.CustomAngleForce("k*(cos(theta)-cos(theta0))^2")
    series = "+".join(f"s{n}*sin({n}*theta)+c{n}*cos({n}*theta)" for n in (1, 2, 3))
    torsion = openmm.CustomTorsionForce("v0+" + series)
    repulsion = openmm.CustomNonbondedForce("(sigma(type1,type2)/r)^6")
    for name in ("k", "r0"):
        bond.addPerBondParameter(name)
    for name in ("k", "theta0"):
        angle.addPerAngleParameter(name)
    for name in ("v0", "s1", "s2", "s3", "c1", "c2", "c3"):
        torsion.addPerTorsionParameter(name)
    for beads, *values in zip(c["bonds"].tolist(), c["bond_k"], c["bond_r0"], strict=True):
        bond.addBond(*beads, [float(v) for v in values])
    for beads, *values in zip(c["angles"].tolist(), c["angle_k"], c["angle_theta0"], strict=True):
        angle.addAngle(*beads, [float(v) for v in values])
    for term, beads in enumerate(c["dihedrals"].tolist()):
        tables = (c["dihedral_v0"][term, None], c["dihedral_sin"][term], c["dihedral_cos"][term])
        torsion.addTorsion(*beads, torch.cat(tables).tolist())
    repulsion.addPerParticleParameter("type")
    repulsion.addTabulatedFunction("sigma", openmm.Discrete2DFunction(3, 3, c["sigma"].reshape(-1).tolist()))
    for kind in c["types"].tolist():
        system.addParticle(1.0)
        repulsion.addParticle([kind])
    for beads in c["bonds"].tolist():
        repulsion.addExclusion(*beads)
    repulsion.setNonbondedMethod(openmm.CustomNonbondedForce.CutoffNonPeriodic)
    repulsion.setCutoffDistance(CUTOFF)
    repulsion.setUseSwitchingFunction(True)
    repulsion.setSwitchingDistance(SWITCH)
    for force in (bond, angle, torsion, repulsion):
        system.addForce(force)
    integrator = openmm.VerletIntegrator(0.001)
    context = openmm.Context(system, integrator, openmm.Platform.getPlatformByName("CPU"))

    def call() -> list[float]:
        energies = []
        for replica in pos:
            context.setPositions(replica)
            state = context.getState(getEnergy=True, getForces=True)
            state.getForces(asNumpy=True)
            energies.append(state.getPotentialEnergy()._value)
        return energies

    return call


def race(calls: dict[str, Callable[[], Any]], repeats: int, clock: Callable[[], float]) -> dict[str, float]:
    """Smallest time of each call, the calls taking turns."""
    seconds = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = clock()
            call()
            seconds[name] = min(seconds[name], clock() - start)
    return seconds


def main() -> None:
    """Run every number of replicas, print the table and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    c = coefficients(N_BEADS)
    c = {name: value for name, value in c.items() if not name.startswith("quartic")}
    terms = bonded_terms(N_BEADS, **c, cutoff=CUTOFF, switch=SWITCH, dtype=torch.float32)
    rows: list[dict[str, Any]] = []
    for n_replicas in REPLICAS:
        pos = chains(n_replicas)
        every, _ = radius_pairs(pos.reshape(-1, 3), torch.arange(n_replicas + 1) * N_BEADS, CUTOFF, SKIN)
        pairs, _ = without_pairs(every, c["bonds"], N_BEADS)
        single = pos.float()

        def plain(single: torch.Tensor = single, pairs: Any = pairs) -> Any:
            with use_route("reference"):
                return bonded_energy_forces(single, terms, pairs)

        calls = {
            "icml": lambda single=single, pairs=pairs: bonded_energy_forces(single, terms, pairs),
            "torch": plain,
            "openmm": openmm_call(pos.numpy(), c),
        }
        energies = calls["icml"]()[0].sum(1)
        torch.testing.assert_close(energies, torch.tensor(calls["openmm"]()).double(), rtol=1e-2, atol=1.0)
        seconds = race(calls, options.repeats, CLOCKS[options.clock])
        peers = {who: {"version": version(who), "seconds": seconds[who]} for who in ("torch", "openmm")}
        ratios = {who: seconds[who] / seconds["icml"] for who in peers}
        name = f"{n_replicas} replicas of {N_BEADS} beads"
        rows.append(
            {
                "case": name,
                "pairs": pairs.capacity,
                "ours": {"seconds": seconds["icml"]},
                "peers": peers,
                "ratios": ratios,
            }
        )
        each = 1e6 * seconds["icml"] / n_replicas
        beside = ", ".join(f"{who} {ratio:.1f}x" for who, ratio in ratios.items())
        print(f"{name:28} {1e3 * seconds['icml']:7.2f} ms ({each:5.0f} µs a replica); {beside}")
    environment = {"python": platform.python_version(), "threads": options.threads, "clock": options.clock}
    environment |= {"processor": platform.processor() or platform.machine()}
    options.out.mkdir(parents=True, exist_ok=True)
    report = {"benchmark": "bonded", "environment": environment, "rows": rows}
    (options.out / "bonded.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
