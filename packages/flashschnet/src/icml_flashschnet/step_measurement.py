"""One step, energies and forces of every replica, by several routes: the case for speed and memory."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Literal

import torch
from icml_core.errors import NeedsError
from icml_kernels.molecules.neighbors import HalfList
from torch import Tensor

from icml_flashschnet.cgschnet_baseline import CGSchNetBaseline, directed_edges
from icml_flashschnet.compact_chain import compact_chain
from icml_flashschnet.compression import compress
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig

Route = Literal["fused", "untabulated", "unfused", "baseline"]

ROUTES: Mapping[Route, str] = {
    "fused": "tabulated filters, compiled kernels over symmetric pairs",
    "untabulated": "filter networks evaluated at every pair, in compiled kernels",
    "unfused": "tabulated filters in plain torch, tensors of all pairs in memory, forces by autograd",
    "baseline": "CGSchNet in plain torch: edges, bases, filters, messages in memory, forces by autograd",
}

Step = Callable[[], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class StepCase:
    """Chains to evaluate, with the sizes of the paper's network.

    Attributes:
        n_beads: beads of a chain; 269 is the paper's protein (1ENH in five beads a residue).
        n_replicas: chains.
        seed: of weights and chains.
        device: where it runs.
        config: of the network.
    """

    n_beads: int = 269
    n_replicas: int = 4
    seed: int = 0
    device: str = "cpu"
    config: SchNetConfig = SchNetConfig()  # noqa: RUF009 frozen

    def steps(self, *routes: Route, dtype: torch.dtype = torch.float32) -> dict[Route, Step]:
        """A function for each route that computes energies and forces once; neighbour lists are ready."""
        seed = self.seed % 2**31
        model = FlashSchNet(self.config, seed=seed).to(self.device, dtype).requires_grad_(False)
        pos, types = compact_chain(
            self.n_beads, n_replicas=self.n_replicas, n_types=self.config.n_types, seed=seed
        )
        pos, types = pos.to(self.device, dtype), types.to(self.device)
        pairs = model.neighbours(pos, n_replicas=self.n_replicas)

        def step(route: Route) -> Step:
            if route == "baseline":
                edges, baseline = directed_edges(pairs), CGSchNetBaseline(model)
                return lambda: baseline.energy_forces(pos, types, edges, self.n_replicas)
            network = model if route == "untabulated" else compress(model)[0]
            if route == "unfused":
                network.kernel = "torch"
                return lambda: _by_autograd(network, pos, types, self.n_replicas, pairs)
            return lambda: network.energy_forces(
                pos, types, n_replicas=self.n_replicas, nlist=pairs, check=False
            )

        return {route: step(route) for route in routes}


def _by_autograd(
    network: FlashSchNet, pos: Tensor, types: Tensor, n_replicas: int, pairs: HalfList
) -> tuple[Tensor, Tensor]:
    pos = pos.detach().requires_grad_()
    energy = network(pos, types, n_replicas=n_replicas, nlist=pairs)
    (gradient,) = torch.autograd.grad(energy.sum(), pos)
    return energy.detach(), gradient.neg_()


def time_steps(
    steps: Mapping[Route, Step], *, repeats: int = 7, at_least: float = 0.05
) -> dict[Route, float]:
    """Median seconds of a step by each route, measured in turn, so that a slow moment hits all alike.

    Args:
        steps: functions from :meth:`StepCase.steps`.
        repeats: number of rounds; in each, a quick route runs several times.
        at_least: seconds that a route runs in each round.
    """
    counts = {}
    for route, step in steps.items():
        step()
        counts[route] = max(1, round(at_least / max(_seconds(step, 1), 1e-9)))
    rounds = [
        {route: _seconds(step, counts[route]) / counts[route] for route, step in steps.items()}
        for _ in range(repeats)
    ]
    return {route: median(r[route] for r in rounds) for route in steps}


def _seconds(step: Step, count: int) -> float:
    begin = time.perf_counter()
    for _ in range(count):
        _, forces = step()
    if forces.is_cuda:
        torch.cuda.synchronize(forces.device)
    return time.perf_counter() - begin


def peak_growth(case: StepCase, *routes: Route) -> dict[Route, int]:
    """Bytes by which memory grows at its peak during three steps of each route, in a process of its own.

    On a CPU this is the peak of the resident set (what the system had to provide, whoever allocated it)
    over its value before the first step, after a step of a tiny case has loaded and compiled everything.
    On a GPU it is the allocator's peak.

    Args:
        case: what is evaluated.
        routes: in the order in which they are measured. What an earlier route leaves in the heap can only
            make a later one look smaller.

    Raises:
        NeedsError: on a CPU, where the system does not tell the peak (it takes Linux).
    """
    if not case.device.startswith("cuda") and not sys.platform.startswith("linux"):
        raise NeedsError("Linux", hint="the peak of resident memory is read from /proc")
    request = {
        "n_beads": case.n_beads,
        "n_replicas": case.n_replicas,
        "seed": case.seed,
        "device": case.device,
        "routes": routes,
        "threads": torch.get_num_threads(),
    }
    done = subprocess.run(
        [sys.executable, "-m", "icml_flashschnet.memory_probe", json.dumps(request)],
        check=False,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        raise RuntimeError(f"the memory probe failed: {done.stderr.strip()[-2000:]}")
    return json.loads(done.stdout)
