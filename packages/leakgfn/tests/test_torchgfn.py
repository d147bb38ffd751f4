"""torchgfn as a peer: its environments as ours, our network as its policy, and its own losses as an
oracle.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_leakgfn import (
    BracketEnv,
    HyperGridEnv,
    LeakGFN,
    check_edges,
    exact_flow,
    exact_policy_distribution,
    from_torchgfn,
    to_torchgfn,
)
from icml_leakgfn.worlds import HyperGridReward, bracket_reward

gfn = pytest.importorskip("gfn")


def hypergrid(height=4, ndim=2):
    from gfn.gym import HyperGrid

    return HyperGrid(ndim, height, validate_modes=False, store_all_states=True)


def test_its_grid_is_ours():
    theirs = from_torchgfn(hypergrid(5, 2))
    flows = exact_flow(theirs, theirs.reward())
    assert len(flows.graph) == 25
    check_edges(theirs, flows.graph.states)
    ours = HyperGridEnv(5, 2, forbidden=0.0, max_length=8)
    exact = exact_flow(ours, HyperGridReward(5))
    assert pytest.approx(exact.Z, rel=1e-6) == flows.Z
    order = {
        tuple(s): p for s, p in zip(exact.graph.states.tolist(), exact.probability.tolist(), strict=True)
    }
    for state, p in zip(flows.graph.states.tolist(), flows.probability.tolist(), strict=True):
        assert p == pytest.approx(order[tuple(state)], rel=1e-6)


def test_environments_without_a_known_length_ask_for_it():
    env = hypergrid()
    del env.ndim
    with pytest.raises(ValueError, match="give max_length: the longest trajectory of HyperGrid"):
        from_torchgfn(env)
    with pytest.raises(TypeError, match="int is no DiscreteEnv"):
        from_torchgfn(3)


def test_lengths_are_found_by_backward_steps():
    world = from_torchgfn(hypergrid(4, 2), max_length=6)
    world._values = 0
    assert world.length(np.array([[0, 0], [2, 3], [1, 0]])).tolist() == [0, 5, 1]


def test_we_train_on_its_environment():
    world = from_torchgfn(hypergrid())
    trained = LeakGFN(
        world, world.reward(), hidden=32, lr=1e-2, decay_steps=100, gamma=1.0, device="cpu"
    ).fit(100, 32)
    exact = exact_flow(world, world.reward())
    assert exact_policy_distribution(trained, graph=exact.graph).total_variation(exact) < 0.15


@pytest.mark.parametrize("env", [BracketEnv(4), HyperGridEnv(4, 2)], ids=["brackets", "grid"])
def test_its_sampler_draws_from_our_policy(env):
    from gfn.samplers import Sampler

    reward = bracket_reward if isinstance(env, BracketEnv) else HyperGridReward(4)
    trained = LeakGFN(env, reward, hidden=16, device="cpu").fit(10, 8)
    wrapped, policy = to_torchgfn(trained, cut_reward=0.25)
    torch.manual_seed(0)
    ends = Sampler(policy).sample_trajectories(wrapped, n=400).terminating_states
    found = exact_policy_distribution(trained)
    graph = found.graph
    number = {key: k for k, key in enumerate(env.key(graph.states))}
    rows = ends.tensor.numpy().astype(graph.states.dtype)
    counts = np.bincount([number[key] for key in env.key(rows)], minlength=len(graph)) / 400
    np.testing.assert_allclose(counts, found.finished + found.cut, atol=0.1)
    done = env.status(rows, env.max_length)
    assert wrapped.reward(ends)[torch.from_numpy(done == 1)].tolist() == pytest.approx(
        [0.25] * int((done == 1).sum())
    )


def test_our_trajectory_balance_learns_as_its():
    """The same grid, width, batch, rate and number of trajectories: total variation alike within noise."""
    from gfn.estimators import DiscretePolicyEstimator
    from gfn.gflownet import TBGFlowNet
    from gfn.preprocessors import KHotPreprocessor
    from gfn.utils.modules import MLP

    env = hypergrid(4, 2)
    world = from_torchgfn(env)
    exact = exact_flow(world, world.reward())
    steps, batch = 60, 32
    ours, theirs = [], []
    for seed in range(2):
        trained = LeakGFN(
            world,
            world.reward(),
            loss="tb",
            hidden=64,
            layers=2,
            lr=1e-3,
            explore=0.0,
            seed=seed,
            device="cpu",
        ).fit(steps, batch)
        ours.append(exact_policy_distribution(trained, graph=exact.graph).total_variation(exact))
        torch.manual_seed(seed)
        preprocessor = KHotPreprocessor(height=4, ndim=2)
        forward = MLP(preprocessor.output_dim, env.n_actions, hidden_dim=64, n_hidden_layers=2)
        pf = DiscretePolicyEstimator(forward, env.n_actions, preprocessor=preprocessor)
        pb = DiscretePolicyEstimator.uniform(env.n_actions, preprocessor=preprocessor)
        net = TBGFlowNet(pf, pb)
        optimizer = torch.optim.Adam(
            [{"params": forward.parameters()}, {"params": [net.logZ], "lr": 1e-1}], lr=1e-3
        )
        for _ in range(steps):
            trajectories = net.sample_trajectories(env, n=batch, save_logprobs=True)
            optimizer.zero_grad()
            loss = net.loss(env, trajectories, recalculate_all_logprobs=False)
            loss.backward()
            optimizer.step()
        theirs.append(_of_torchgfn(env, pf, world, exact))
    assert abs(np.mean(ours) - np.mean(theirs)) < 0.1
    assert max(np.mean(ours), np.mean(theirs)) < 0.35


def _of_torchgfn(env, policy, world, exact):
    """Total variation of its policy, by our dynamic programming."""

    class Theirs:
        env = world

        def log_policy(self, states, max_length, condition):
            given = world._states(states)
            with torch.no_grad():
                logits = policy(given)
            return torch.log_softmax(torch.where(given.forward_masks, logits, -torch.inf), 1).double().numpy()

    return exact_policy_distribution(Theirs(), world, graph=exact.graph).total_variation(exact)
