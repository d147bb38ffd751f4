"""Trajectories a second, drawn and learnt from: ours beside torchgfn, and beside a loop over batches of one.

    python benchmarks/throughput.py [--quick] [--threads 1] [--clock wall|cpu]

The same grid, width, depth, batch and loss, and no exploration. torchgfn is left out where it is not
installed. Ratios say how many times as long the peer takes for as many trajectories.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from icml_leakgfn import HyperGridEnv, LeakGFN, MoleculeGenerator
from icml_leakgfn.rollout import rollout
from icml_leakgfn.worlds import HyperGridReward

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
HEIGHT, NDIM, HIDDEN, BATCH = 8, 3, 128, 64
DEPTH = 3  # hidden layers between input and output, of both


def ours(loss: str) -> Callable[[], Any]:
    """One training step of ours on a batch."""
    env = HyperGridEnv(HEIGHT, NDIM, forbidden=0.0, max_length=NDIM * (HEIGHT - 1))
    kind: Any = loss
    # On policy, as torchgfn; two hidden layers of the encoder and one of each head make DEPTH.
    gfn = LeakGFN(
        env, HyperGridReward(HEIGHT), loss=kind, hidden=HIDDEN, layers=DEPTH - 1, explore=0.0, device="cpu"
    )
    return lambda: gfn.fit(1, BATCH)


def theirs(loss: str) -> Callable[[], Any]:
    """One training step of torchgfn on a batch."""
    from gfn.estimators import DiscretePolicyEstimator, ScalarEstimator
    from gfn.gflownet import DBGFlowNet, FMGFlowNet, SubTBGFlowNet, TBGFlowNet
    from gfn.gym import HyperGrid
    from gfn.preprocessors import KHotPreprocessor
    from gfn.utils.modules import MLP

    env = HyperGrid(NDIM, HEIGHT, validate_modes=False)
    hot = KHotPreprocessor(height=HEIGHT, ndim=NDIM)

    def mlp(outputs: int) -> Any:
        return MLP(hot.output_dim, outputs, hidden_dim=HIDDEN, n_hidden_layers=DEPTH)

    forward = DiscretePolicyEstimator(mlp(env.n_actions), env.n_actions, preprocessor=hot)
    backward = DiscretePolicyEstimator.uniform(env.n_actions, preprocessor=hot)
    if loss == "tb":
        net: Any = TBGFlowNet(forward, backward)
    elif loss == "fm":
        net = FMGFlowNet(forward)
    else:
        flow = ScalarEstimator(mlp(1), preprocessor=hot)
        kind: Any = {"db": DBGFlowNet, "subtb": SubTBGFlowNet}[loss]
        net = kind(forward, backward, flow)
    optimizer = torch.optim.Adam(net.parameters(), lr=5e-4)

    def step() -> None:
        trajectories = net.sample_trajectories(env, n=BATCH, save_logprobs=loss != "fm")
        optimizer.zero_grad()
        net.loss_from_trajectories(env, trajectories, recalculate_all_logprobs=False).backward()
        optimizer.step()

    return step


def molecules(batch: int, trajectories: int) -> Callable[[], Any]:
    """Trajectories of molecules with a graph network, so many at a time."""
    gfn = MoleculeGenerator(lambda mol: 1.0, hidden=128, device="cpu").gfn
    generator = torch.Generator().manual_seed(0)

    def draw() -> None:
        for _ in range(trajectories // batch):
            rollout(gfn.env, gfn.policy, batch, generator=generator)

    return draw


def seconds(call: Callable[[], Any], clock: Callable[[], float], repeats: int) -> float:
    """Median of some calls, after two that are not counted."""
    call()
    call()
    taken = []
    for _ in range(repeats):
        begin = clock()
        call()
        taken.append(clock() - begin)
    return sorted(taken)[len(taken) // 2]


def main() -> None:
    """Run all cases, writing after each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    clock, repeats = CLOCKS[given.clock], 3 if given.quick else 15
    peer = importlib.util.find_spec("gfn") is not None
    if not peer:
        print("torchgfn is not installed; its column is left out")
    environment = {"python": platform.python_version(), "torch": torch.__version__, "threads": given.threads}
    report: dict[str, Any] = {"benchmark": "throughput", "environment": environment, "rows": []}

    def row(case: str, count: int, own: float, peers: dict[str, tuple[str, float]]) -> None:
        report["rows"].append(
            {
                "case": case,
                "trajectories": count,
                "ours": {"seconds": own, "peak_bytes": None},
                "peers": {n: {"version": v, "seconds": t, "peak_bytes": None} for n, (v, t) in peers.items()},
                "ratios": {n: t / own for n, (_, t) in peers.items()},
            }
        )
        times = ", ".join(f"{n} {t / own:.1f} times" for n, (_, t) in peers.items())
        print(f"{case}: {count / own:.0f} trajectories/s; {times}", flush=True)
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "throughput.json").write_text(json.dumps(report, indent=2) + "\n")

    for loss in ("tb", "db", "subtb", "fm"):
        own = seconds(ours(loss), clock, repeats)
        others = {}
        if peer:
            others["torchgfn"] = (version("torchgfn"), seconds(theirs(loss), clock, repeats))
        row(f"training, grid {HEIGHT}^{NDIM}, {loss}, batch {BATCH}", BATCH, own, others)
    count = 16 if given.quick else 256
    together = seconds(molecules(count, count), clock, 3)
    alone = seconds(molecules(1, count // 16), clock, 3) * 16
    row("molecules of 105 blocks, 256 at a time", count, together, {"batches of one": ("", alone)})


if __name__ == "__main__":
    main()
