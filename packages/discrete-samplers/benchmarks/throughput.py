"""Trajectories a second of training: ours beside torchgfn, a bare loop of the same network, and one call a
step.

    python benchmarks/throughput.py [--quick] [--threads 1] [--clock wall|cpu]

The same energy, width, depth and batch, trajectory balance in both. torchgfn samples on-policy; ours is
timed on-policy (rollout, evaluation, update) and off-policy (replay, evaluation, update).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import torch
from icml_discrete_samplers import OffPolicyTrainer, from_callable
from icml_discrete_samplers.masked import (
    path_log_prob,
    path_log_prob_step_by_step,
    roll_back,
    rollout,
    schedule,
)
from icml_discrete_samplers.networks import MaskedMLP
from measuring import Report, arguments, seconds

BATCH, HIDDEN, LAYERS = 64, 256, 2


def coupling(D: int) -> torch.Tensor:
    """A random symmetric matrix."""
    g = torch.Generator().manual_seed(0)
    J = torch.randn(D, D, generator=g) / D
    return J + J.T


def ours(D: int, **options: Any) -> Callable[[], Any]:
    """One update of ours on a batch."""
    J = coupling(D)
    energy = from_callable(lambda x: ((x.float() @ J) * x).sum(1), D, 2)
    trainer = OffPolicyTrainer(
        energy,
        seed=0,
        k=1,
        batch=BATCH,
        prefill=2,
        network={"hidden": HIDDEN, "layers": LAYERS},
        mcmc=None,
        steps=10**6,
        **options,
    )
    return lambda: trainer.fit(1)


def torchgfn(D: int) -> Callable[[], Any]:
    """One update of torchgfn on a batch, on its discrete energy-based environment."""
    from gfn.estimators import DiscretePolicyEstimator
    from gfn.gflownet import TBGFlowNet
    from gfn.gym import DiscreteEBM
    from gfn.gym.discrete_ebm import IsingModel
    from gfn.utils.modules import MLP, DiscreteUniform

    env = DiscreteEBM(D, IsingModel(-coupling(D)))
    net = MLP(D, env.n_actions, hidden_dim=HIDDEN, n_hidden_layers=LAYERS)
    forward = DiscretePolicyEstimator(net, env.n_actions)
    # Uniform backward, as ours has it: nothing to learn and nothing to evaluate.
    backward = DiscretePolicyEstimator(DiscreteUniform(env.n_actions - 1), env.n_actions, is_backward=True)
    flow = TBGFlowNet(forward, backward)
    optimizer = torch.optim.AdamW(flow.parameters(), lr=1e-3)

    def step() -> None:
        trajectories = flow.sample_trajectories(env, n=BATCH, save_logprobs=True)
        optimizer.zero_grad()
        flow.loss_from_trajectories(env, trajectories, recalculate_all_logprobs=False).backward()
        optimizer.step()

    return step


def bare_loop(model: MaskedMLP) -> Callable[[], Any]:
    """What a rollout costs at least: the same layers, step after step, with multinomial draws and nothing
    else.
    """

    @torch.no_grad()
    def run() -> None:
        D = model.D
        order = torch.rand(BATCH, D).argsort(1)
        sums = model.weight_in[:, model.V].sum(0).expand(BATCH, -1)
        for t in range(D):
            site = order[:, t]
            h = torch.nn.functional.elu(sums + model.bias_in)
            for layer in model.hidden:
                h = torch.nn.functional.elu(layer(h))
            logits = (h[:, None] @ model.weight_out[site])[:, 0] + model.bias_out[site]
            symbol = torch.multinomial(logits.softmax(-1), 1)[:, 0]
            sums = sums + model.weight_in[site, symbol] - model.weight_in[site, model.V]

    return run


def main() -> None:
    """Run all cases."""
    given = arguments(__doc__ or "")
    report = Report("throughput", given)
    has_peer = importlib.util.find_spec("gfn") is not None
    if not has_peer:
        print("torchgfn is not installed; its column is left out")
    for D in (64,) if given.quick else (64, 128, 256):
        on = seconds(ours(D, buffer=None), given)
        trainer_step = ours(D, buffer="uniform", ratio=10**9)
        trainer_step()  # the first update is on-policy
        off = seconds(trainer_step, given)
        peers: dict[str, tuple[str, float]] = {}
        if has_peer:
            peers["torchgfn"] = (version("torchgfn"), seconds(torchgfn(D), given))
        report.add(f"on-policy update, D = {D}", on, peers, trajectories_per_second=BATCH / on)
        report.add(f"off-policy update, D = {D}", off, peers, trajectories_per_second=BATCH / off)
        model = MaskedMLP(D, 2, HIDDEN, LAYERS)
        g = torch.Generator().manual_seed(0)
        drawn = seconds(lambda m=model, g=g: rollout(m, BATCH, schedule(m.D, 1, g), g), given)
        report.add(f"rollout, D = {D}", drawn, {"bare loop": ("", seconds(bare_loop(model), given))})
        path = roll_back(torch.randint(0, 2, (BATCH, D), generator=g), 1, g)

        def evaluated(function: Any, m: Any = model, p: Any = path) -> Callable[[], Any]:
            return lambda: function(m, p).sum().backward()

        peer = ("", seconds(evaluated(path_log_prob_step_by_step), given))
        report.add(
            f"log F and its gradient, D = {D}",
            seconds(evaluated(path_log_prob), given),
            {"one call a step": peer},
        )


if __name__ == "__main__":
    main()
