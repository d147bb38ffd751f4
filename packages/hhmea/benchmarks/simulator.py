"""Hodgkin-Huxley cells beside NEURON and jaxley: nanoseconds a compartment and step, and memory.

    python packages/hhmea/benchmarks/simulator.py [--quick] [--clock cpu]

An unbranched cell of 200 compartments with the squid's channels, dt 0.025 ms, double precision, one thread;
jaxley vmapped over the batch and compiled. Memory is what one gradient adds to a fresh process's peak.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")

import numpy as np
import torch
from icml_core.run import provenance, public, write_json
from icml_hhmea import Cell, IClamp, Section, simulate

DT = 0.025
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
Work = Callable[[], Any]


def cable(nodes: int) -> Cell:
    """An unbranched cell, whose conductances are free."""
    points = np.array([[0, 0, 0, 1.0], [10.0 * nodes, 0, 0, 1.0]])
    free = {"na": (0.5, 2.0), "k": (0.5, 2.0), "leak": (0.5, 2.0), "ra": (20.0, 200.0)}
    from icml_hhmea.morphology import discretise

    return Cell(discretise([Section(points)], counts=[nodes]), free=free).double()


def ours(nodes: int, batch: int, steps: int, gradient: bool) -> Work:
    """One call of ``simulate``."""
    cell = cable(nodes)
    theta = cell.bounds.sample(batch, torch.Generator().manual_seed(0))
    stim = IClamp(0, 0.5, 0.5, 1.0)

    def forward() -> Any:
        with torch.no_grad():
            return simulate(cell, theta, stim, steps * DT, DT, record=[0]).v

    def both() -> Any:
        leaf = theta.clone().requires_grad_()
        simulate(cell, leaf, stim, steps * DT, DT, record=[0]).v.sum().backward()
        return leaf.grad

    return both if gradient else forward


def neuron_work(nodes: int, batch: int, steps: int) -> Work:
    """NEURON runs the cells one after another; its loop is timed, building is not."""
    from neuron import h

    h.load_file("stdrun.hoc")
    s = h.Section(name="cable")
    s.L, s.diam, s.nseg, s.Ra, s.cm = 10.0 * nodes, 2.0, nodes, 35.4, 1.0
    s.insert("hh")
    h.usetable_hh, h.celsius, h.dt, h.secondorder = 0, 6.3, DT, 0
    clamp = h.IClamp(s(0.5 / nodes))
    clamp.delay, clamp.dur, clamp.amp = 0.5, 1.0, 0.5
    runs = max(1, min(batch, 8))

    def work() -> Any:
        for _ in range(runs):
            h.finitialize(-65)
            h.continuerun(steps * DT)
        return s, clamp

    work.runs = runs  # type: ignore[attr-defined]
    return work


def jaxley_work(nodes: int, batch: int, steps: int, gradient: bool) -> Work:
    """jaxley, vmapped over the batch, compiled, with its custom rule for the solve."""
    import jax

    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_platform_name", "cpu")
    import jax.numpy as jnp
    import jaxley as jx
    from jaxley.channels import HH

    cell = jx.Cell([jx.Branch(jx.Compartment(), ncomp=nodes)], parents=[-1])
    cell.insert(HH())
    cell.set("length", 10.0)
    cell.set("radius", 1.0)
    cell.set("axial_resistivity", 35.4)
    cell.branch(0).comp(0).record(verbose=False)
    current = jx.step_current(i_delay=0.5, i_dur=1.0, i_amp=0.5, delta_t=DT, t_max=steps * DT)
    cell.branch(0).comp(0).stimulate(current, verbose=False)
    for name in ("HH_gNa", "HH_gK", "HH_gLeak"):
        cell.make_trainable(name, verbose=False)
    start = cell.get_parameters()
    scale = jnp.asarray(np.random.default_rng(0).uniform(0.7, 1.4, (batch, len(start))))

    def value(factor: Any) -> Any:
        params = [{k: v * f for k, v in p.items()} for p, f in zip(start, factor, strict=True)]
        return jx.integrate(cell, params=params, delta_t=DT).sum()

    call = jax.jit(jax.vmap(jax.value_and_grad(value) if gradient else value))
    return lambda: jax.block_until_ready(call(scale))


def best(work: Work, clock: Callable[[], float], repeats: int) -> tuple[float, float]:
    """Seconds of the first call, and the least of later ones."""
    begin = clock()
    work()
    first = clock() - begin
    taken = []
    for _ in range(repeats):
        begin = clock()
        work()
        taken.append(clock() - begin)
    return first, min(taken)


def peak(who: str, nodes: int, batch: int, steps: int) -> int | None:
    """Bytes that one gradient adds to the peak of a fresh process after a small one."""
    command = [sys.executable, __file__, "--memory", who, str(nodes), str(batch), str(steps)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(done.stdout.split()[-1]) if done.returncode == 0 and done.stdout.split() else None


def memory(who: str, nodes: int, batch: int, steps: int) -> int:
    """See ``peak``; runs in the fresh process."""
    import resource

    make = ours if who == "ours" else jaxley_work
    make(10, 2, 4, True)()
    work = make(nodes, batch, steps, True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--memory", nargs=4)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.memory:
        print(memory(options.memory[0], *map(int, options.memory[1:])))
        return
    clock, repeats = CLOCKS[options.clock], 2 if options.quick else 5
    has = {name: importlib.util.find_spec(name) is not None for name in ("neuron", "jaxley")}
    print("left out:", ", ".join(n for n, there in has.items() if not there) or "nothing")
    cases = (
        [(50, 16, 40)] if options.quick else [(200, 1, 400), (200, 64, 400), (200, 256, 400), (200, 64, 1600)]
    )
    rows = []
    for nodes, batch, steps in cases:
        work = nodes * batch * steps
        figures: dict[str, dict[str, float | None]] = {}
        for kind, gradient in (("forward", False), ("gradient", True)):
            first, seconds = best(ours(nodes, batch, steps, gradient), clock, repeats)
            entry = {"seconds": seconds, "first_call": first, "ns": 1e9 * seconds / work}
            found: dict[str, dict[str, Any]] = {}
            if has["neuron"] and not gradient:
                theirs = neuron_work(nodes, batch, steps)
                _, taken = best(theirs, clock, repeats)
                taken *= batch / theirs.runs  # type: ignore[attr-defined]
                found["neuron"] = {"version": version("neuron"), "seconds": taken, "ns": 1e9 * taken / work}
            if has["jaxley"]:
                first, taken = best(jaxley_work(nodes, batch, steps, gradient), clock, repeats)
                found["jaxley"] = {
                    "version": version("jaxley"),
                    "seconds": taken,
                    "first_call": first,
                    "ns": 1e9 * taken / work,
                }
            if gradient:
                entry["peak_bytes"] = peak("ours", nodes, batch, steps)
                if has["jaxley"]:
                    found["jaxley"]["peak_bytes"] = peak("jaxley", nodes, batch, steps)
            ratios = {n: p["seconds"] / seconds for n, p in found.items()}
            if gradient and has["jaxley"] and found["jaxley"]["peak_bytes"]:
                ratios["memory of jaxley"] = entry["peak_bytes"] / found["jaxley"]["peak_bytes"]
            name = f"{kind}, {nodes} compartments, batch {batch}, {steps} steps"
            rows.append({"case": name, "ours": entry, "peers": found, "ratios": ratios})
            beside = ", ".join(f"{n} {p['ns']:.4g} ns" for n, p in found.items())
            told = ", ".join(f"{n} {r:.3g}" for n, r in ratios.items())
            print(f"{name:58} {entry['ns']:8.4g} ns   {beside}   times: {told}", flush=True)
            figures[kind] = entry
    if not options.quick:
        path = Path(__file__).parent / "results" / "simulator.json"
        path.parent.mkdir(exist_ok=True)
        environment = {**public(provenance()), "clock": options.clock}
        write_json(path, {"benchmark": "simulator", "environment": environment, "rows": rows})
    print(json.dumps({"cases": len(rows)}))


if __name__ == "__main__":
    main()
