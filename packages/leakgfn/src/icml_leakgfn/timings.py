"""Seconds and memory: what the claims on costs measure."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import numpy as np
import torch
from torch import nn

from icml_leakgfn.networks import Flows
from icml_leakgfn.rollout import rollout
from icml_leakgfn.trainings import EIGHT_BLOCKS

_SIZES = {"hidden": 64, "message_steps": 4}

# Another process, since the peak of this one is that of everything it did before.
_MEMORY = """
import json, resource, sys
from icml_leakgfn.timings import solver_seconds
solver_seconds(2)
unit = 1 if sys.platform == "darwin" else 1024
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
seconds, states = solver_seconds({blocks})
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
print(json.dumps([seconds, states, peak - before, peak]))
"""


class TwoNetworks(nn.Module):
    """λ by a whole network of its own instead of a head on the common encoder.

    Args:
        chem: gives log F_chem and log F_stop.
        fraction: gives log λ.
    """

    def __init__(self, chem: nn.Module, fraction: nn.Module) -> None:
        super().__init__()
        self.chem, self.fraction = chem, fraction

    def forward(self, features: Any, remaining: Any = None, condition: Any = None) -> Flows:
        """Log flows of states."""
        one: Flows = self.chem(features, remaining, condition)
        return one._replace(log_fraction=self.fraction(features, remaining, condition).log_fraction)


def step_seconds(seed: int, steps: int, *, two_networks: bool = False) -> tuple[float, float]:
    """Median seconds of a training step on molecules, with both flows and of plain flow matching, in turns.

    Args:
        seed: of everything.
        steps: of each.
        two_networks: a network for each flow instead of a head.
    """
    from icml_leakgfn.molecules import MoleculeGenerator

    def build(loss: str, **options: Any) -> Any:
        return MoleculeGenerator(
            _size, loss=loss, seed=seed, device="cpu", on_error="floor", **(_SIZES | options)
        ).gfn

    plain = build("fm")
    leak = build("leak")
    if two_networks:
        second = build("leak").net
        leak.net.with_fraction = False
        leak = build("leak", net=TwoNetworks(leak.net, second))
    runs = {"leak": leak.fit(2, 8), "fm": plain.fit(2, 8)}
    # The same trajectories for both: what is compared is the cost of the losses.
    seconds: dict[str, list[float]] = {"leak": [], "fm": []}
    for step in range(steps):
        for loss, gfn in runs.items():
            gfn.generator.manual_seed(seed + step)
            begin = time.perf_counter()
            gfn.fit(1, 8)
            seconds[loss].append(time.perf_counter() - begin)
    return float(np.median(seconds["leak"])), float(np.median(seconds["fm"]))


def _size(mol: Any) -> float:
    """A score that costs nothing: heavy atoms over fifty."""
    return min(1.0, mol.GetNumHeavyAtoms() / 50)


def trajectory_rates(seed: int, loops: int) -> tuple[float, float]:
    """Trajectories a second: 256 at a time, and in a loop over batches of one."""
    from icml_leakgfn.molecules import MoleculeGenerator

    gfn = MoleculeGenerator(_size, seed=seed, device="cpu", hidden=64, message_steps=4).gfn
    generator = torch.Generator().manual_seed(seed)
    rollout(gfn.env, gfn.policy, 8, generator=generator)
    begin = time.perf_counter()
    rollout(gfn.env, gfn.policy, 256, generator=generator)
    together = 256 / (time.perf_counter() - begin)
    begin = time.perf_counter()
    for _ in range(loops):
        rollout(gfn.env, gfn.policy, 1, generator=generator)
    return together, loops / (time.perf_counter() - begin)


def solver_seconds(max_blocks: int) -> tuple[float, int]:
    """Seconds of the exact solver on molecules of eight fragments, and how many states it took in."""
    from icml_leakgfn.exact import exact_flow
    from icml_leakgfn.fragments import FragmentEnv

    env = FragmentEnv(EIGHT_BLOCKS, max_blocks, 2, stop="closed")
    reward = _Flat()
    exact_flow(FragmentEnv(EIGHT_BLOCKS, 2, 2, stop="closed"), reward)
    begin = time.perf_counter()
    flows = exact_flow(env, reward)
    return time.perf_counter() - begin, len(flows.graph)


def solver_memory(max_blocks: int) -> tuple[float, int, int, int]:
    """The same in a process of its own: seconds, states, bytes that were added, and its whole peak."""
    code = _MEMORY.replace("{blocks}", str(max_blocks))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    seconds, states, added, peak = json.loads(done.stdout.splitlines()[-1])
    return seconds, states, added, peak


class _Flat:
    """A reward of 1 for every molecule: the solver's own cost."""

    vectorised = True

    def __call__(self, items: list[Any]) -> np.ndarray:
        return np.ones(len(items))
