"""The continuous-filter convolutions beside plain torch, on the CPU: time, memory, growth with the size.

    python kernels/benchmarks/cfconv.py [--threads 2] [--out kernels/benchmarks/results]

Replicas of a compact chain of 269 beads with about 36 neighbours within 15 Å, 128 filters, float32, as in the
five-bead protein models of FlashSchNet (arXiv 2602.13140). Two peers in plain torch, which keep tensors of
pairs times filters: the filter network over directed edges, as the reference implementations compute it, and
the table over unordered pairs. Each time is the smallest of several, taken in turns; memory is the growth of
the process's peak, each in a process of its own. On a machine that others use, ``--threads 1 --clock cpu``
counts the time on the processor alone.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from icml_kernels import HalfList, cfconv_mlp, cfconv_table, half_list, pair_geometry
from icml_kernels.molecules.cfconv_mlp.reference import filter_derivatives
from icml_kernels.testing import use_route
from torch import Tensor

N_BEADS, FILTERS, N_BASIS, CUTOFF, INTERVALS = 269, 128, 64, 15.0, 1024
REPLICAS = (1, 8, 32)
DENSITY = 0.0042
TURN = 0.1  # seconds
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
NETWORK = (CUTOFF, "gaussian", 1.0, 0.0, "tanh", True, True)


def system(n_replicas: int) -> tuple[Tensor, HalfList, Tensor]:
    """Positions, pairs and distances of replicas of a shaken grid with the density of a compact protein."""
    generator = torch.Generator().manual_seed(0)
    side = math.ceil(N_BEADS ** (1 / 3))
    axis = torch.arange(side, dtype=torch.float32)
    grid = torch.cartesian_prod(axis, axis, axis)[:N_BEADS] * DENSITY ** (-1 / 3)
    positions = grid + 1.5 * torch.randn(n_replicas, N_BEADS, 3, generator=generator)
    a, b = torch.triu_indices(N_BEADS, N_BEADS, 1)
    near = (positions[:, a] - positions[:, b]).norm(dim=2) < CUTOFF
    replica, pair = torch.nonzero(near, as_tuple=True)
    pairs = half_list(a[pair] + replica * N_BEADS, b[pair] + replica * N_BEADS, n_replicas * N_BEADS)
    assert isinstance(pairs, HalfList)
    flat = positions.reshape(-1, 3)
    return flat, pairs, pair_geometry(flat, pairs)[0]


def weights() -> tuple[Tensor, ...]:
    """w1, b1, w2, b2, centers and widths of a random filter network."""
    generator = torch.Generator().manual_seed(1)
    centers = torch.linspace(0, CUTOFF, N_BASIS)
    widths = torch.full((N_BASIS,), 0.5 / float(centers[1]) ** 2)
    w1 = torch.randn(FILTERS, N_BASIS, generator=generator) / N_BASIS**0.5
    w2 = torch.randn(FILTERS, FILTERS, generator=generator) / FILTERS**0.5
    return w1, torch.zeros(FILTERS), w2, torch.zeros(FILTERS), centers, widths


def tabulated() -> Tensor:
    """The same network as a table."""
    nodes = torch.linspace(0, CUTOFF, INTERVALS + 1, dtype=torch.float64)
    w, dw, _ = filter_derivatives(nodes, *(t.double() for t in weights()), *NETWORK)
    return torch.stack([w, dw * (CUTOFF / INTERVALS)], dim=1).float()


def directed_edges(x: Tensor, r: Tensor, i: Tensor, j: Tensor, network: tuple[Tensor, ...]) -> Tensor:
    """SchNet's convolution as the reference implementations write it: every pair twice, one step a line."""
    w1, b1, w2, b2, centers, widths = network
    c = 0.5 * (torch.cos(r * (math.pi / CUTOFF)) + 1) * (r < CUTOFF)
    basis = torch.exp(-widths * (r[:, None] - centers) ** 2) * c[:, None]
    filters = torch.tanh(basis @ w1.T + b1) @ w2.T + b2
    messages = x[j] * filters * c[:, None]
    return torch.zeros_like(x).index_add(0, i, messages)


def calls(n_replicas: int) -> tuple[int, dict[str, Callable[[Tensor, Tensor], Tensor]], Tensor, Tensor]:
    """Number of pairs, the convolutions as functions of features and distances, and these two."""
    positions, pairs, r = system(n_replicas)
    x = torch.randn(len(positions), FILTERS, generator=torch.Generator().manual_seed(2))
    network, table = weights(), tabulated()
    centers, widths = network[4:]
    i, j = pairs.ij()
    first, second = torch.cat([i, j]), torch.cat([j, i])

    def exact(x: Tensor, r: Tensor) -> Tensor:
        return cfconv_mlp(x, r, pairs, *network[:4], centers=centers, widths=widths, cutoff=CUTOFF)

    def plain(function: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
        def call(x: Tensor, r: Tensor) -> Tensor:
            with use_route("reference"):
                return function(x, r)

        return call

    def from_table(x: Tensor, r: Tensor) -> Tensor:
        return cfconv_table(x, r, pairs, table, CUTOFF)

    return (
        pairs.capacity,
        {
            "table": from_table,
            "network": exact,
            "torch": lambda x, r: directed_edges(x, r.repeat(2), first, second, network),
            "torch, table": plain(from_table),
        },
        x,
        r,
    )


def with_gradient(
    function: Callable[[Tensor, Tensor], Tensor], route: str
) -> Callable[[Tensor, Tensor], Any]:
    """The value and its gradient by features and distances, as an energy and its forces need them."""

    def call(x: Tensor, r: Tensor) -> Any:
        x, r = x.detach().requires_grad_(), r.detach().requires_grad_()
        with use_route(route):
            return torch.autograd.grad(function(x, r).sum(), (x, r))

    return call


def tasks(n_replicas: int) -> tuple[int, dict[str, dict[str, Callable[[], Any]]]]:
    """What is timed: for value alone and value with gradient, every convolution as a call."""
    n_pairs, functions, x, r = calls(n_replicas)
    routes = {name: "reference" if name.startswith("torch") else "auto" for name in functions}
    value = {name: (lambda f=f: f(x, r)) for name, f in functions.items()}
    gradient = {
        name: (lambda f=f, name=name: with_gradient(f, routes[name])(x, r)) for name, f in functions.items()
    }
    return n_pairs, {"value": value, "value and gradient": gradient}


def race(
    functions: dict[str, Callable[[], Any]], budget: float, clock: Callable[[], float]
) -> dict[str, float]:
    """Smallest time of each call, the calls taking turns until the budget in seconds is spent."""
    seconds = dict.fromkeys(functions, math.inf)
    for function in functions.values():
        function()
    begin, rounds = time.perf_counter(), 0
    while rounds < 3 or time.perf_counter() - begin < budget:
        for name, function in functions.items():
            turn = clock()
            # A short call has several tries in its turn.
            while clock() - turn < TURN:
                start = clock()
                function()
                seconds[name] = min(seconds[name], clock() - start)
        rounds += 1
    return seconds


def peak_growth(n_replicas: int, task: str, name: str) -> int | None:
    """Bytes by which one call raises the resident memory of this process, where Linux tells them."""
    tasks(1)[1][task][name]()
    function = tasks(n_replicas)[1][task][name]
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not reset.exists():
        return None

    def kibibytes(field: str) -> int:
        return int(
            next(line for line in status.read_text().splitlines() if line.startswith(field)).split()[1]
        )

    reset.write_text("5")  # the peak starts anew from what is resident now
    before = kibibytes("VmRSS")
    function()
    return 1024 * max(0, kibibytes("VmHWM") - before)


def peak_of(n_replicas: int, task: str, name: str) -> int | None:
    """The same in a process of its own."""
    command = [sys.executable, __file__, "--peak", str(n_replicas), task, name]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def mebibytes(size: int | None) -> str:
    """A size for the table."""
    return "memory unknown" if size is None else f"{size / 2**20:.0f} MiB"


def main() -> None:
    """Run every size, print the table and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--budget", type=float, default=6.0, help="seconds for each row")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--peak", nargs=3, metavar=("REPLICAS", "TASK", "NAME"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        torch.set_num_threads(1)
        print(json.dumps(peak_growth(int(options.peak[0]), *options.peak[1:])))
        return
    torch.set_num_threads(options.threads)
    # Without it the tails of the basis are subnormal numbers, on which plain torch is ten times slower.
    torch.set_flush_denormal(True)
    rows: list[dict[str, Any]] = []
    for n_replicas in REPLICAS:
        n_pairs, timed = tasks(n_replicas)
        for task, functions in timed.items():
            seconds = race(functions, options.budget, CLOCKS[options.clock])
            memory = {name: peak_of(n_replicas, task, name) for name in functions}
            peers = [name for name in functions if name.startswith("torch")]
            for ours in ("table", "network"):
                case = f"{ours}, {task}, {n_replicas} x {N_BEADS} beads"
                ratios = {name: seconds[name] / seconds[ours] for name in peers}
                rows.append(
                    {
                        "case": case,
                        "pairs": n_pairs,
                        "ours": {"seconds": seconds[ours], "peak_bytes": memory[ours]},
                        "nanoseconds_per_pair": 1e9 * seconds[ours] / n_pairs,
                        "peers": {
                            name: {
                                "version": torch.__version__,
                                "seconds": seconds[name],
                                "peak_bytes": memory[name],
                            }
                            for name in peers
                        },
                        "ratios": ratios,
                    }
                )
                beside = ", ".join(
                    f"{name} {ratio:.1f}x the time, {mebibytes(memory[name])}"
                    for name, ratio in ratios.items()
                )
                each = 1e9 * seconds[ours] / n_pairs
                own = f"{1e3 * seconds[ours]:.2f} ms, {each:.0f} ns a pair, {mebibytes(memory[ours])}"
                print(f"{case}: {n_pairs} pairs, {own}; {beside}", flush=True)
    environment = {"python": platform.python_version(), "torch": torch.__version__}
    environment |= {"threads": options.threads, "clock": options.clock}
    environment |= {"processor": platform.processor() or platform.machine()}
    report = {"benchmark": "cfconv", "environment": environment, "rows": rows}
    options.out.mkdir(parents=True, exist_ok=True)
    (options.out / "cfconv.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
