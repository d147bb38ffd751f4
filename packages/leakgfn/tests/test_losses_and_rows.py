"""Rows, losses and sampling, against flows that satisfy every equation by construction, and against loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_leakgfn import (
    BracketEnv,
    FragmentEnv,
    HyperGridEnv,
    LeakGFN,
    LeakLoss,
    MoleculeMetrics,
    exact_flow,
    rows_from_edges,
)
from icml_leakgfn.losses import (
    FlowMatchingLoss,
    detailed_balance,
    subtrajectory_balance,
    trajectory_balance,
)
from icml_leakgfn.networks import Flows
from icml_leakgfn.rewards import as_reward
from icml_leakgfn.rollout import even_policy, rollout, sample_masked
from icml_leakgfn.tables import constructed_flows
from icml_leakgfn.transitions import flow_batch, flow_rows
from icml_leakgfn.worlds import HyperGridReward, bracket_reward


def drawn(env, n, seed=0, **options):
    return rollout(env, even_policy, n, generator=torch.Generator().manual_seed(seed), **options)


@pytest.mark.parametrize("seed", range(3))
def test_flows_that_satisfy_all_equations_give_the_target_and_a_loss_of_0(seed):
    found = constructed_flows(seed)
    assert found.distance < 1e-12
    assert found.loss < 1e-20
    assert found.loss_of_others > 1e-3
    assert constructed_flows(seed, valid=False).distance > 0.05


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_masked_action_is_never_drawn(dtype):
    """10^7 draws with random masks; logits up to the limits of the type, flows of 0 as good as masked."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(5):
        mask = torch.rand(200_000, 4, generator=generator) < 0.4
        mask[:, 3] |= ~mask.any(dim=1)
        logits = (torch.randn(200_000, 4, generator=generator) * 30).to(dtype)
        logits[:, 1] = -torch.inf
        allowed = mask & (logits > -torch.inf)
        mask[~allowed.any(dim=1), 3] = True
        for _ in range(10):
            action = sample_masked(logits, mask, generator)
            assert bool((mask & (logits > -torch.inf)).gather(1, action[:, None]).all())


def test_other_types_of_numbers_are_refused():
    generator, mask = torch.Generator().manual_seed(0), torch.ones(1, 2, dtype=torch.bool)
    with pytest.raises(TypeError, match=r"logits are torch.int64 and the mask torch.bool"):
        sample_masked(torch.zeros(1, 2, dtype=torch.int64), mask, generator)
    with pytest.raises(TypeError, match=r"the mask torch.int64"):
        sample_masked(torch.zeros(1, 2), mask.long(), generator)
    edges, states = torch.zeros(1), torch.zeros(2)
    done, ptr, out = torch.tensor([0, 2]), torch.tensor([0, 0, 1]), torch.zeros(2, 1)
    with pytest.raises(TypeError, match=r"expected floating-point numbers, and integers for done"):
        rows_from_edges(edges.long(), edges, ptr, out, out, states, done, states)
    with pytest.raises(TypeError, match=r"done torch.float32"):
        rows_from_edges(edges, edges, ptr, out, out, states, done.float(), states)


def test_at_the_horizon_what_is_cut_off_does_not_stop():
    """As in the exact flows: closed slots are asked for, and min_blocks, so that CUT there has no stop."""
    env = FragmentEnv(["*c1ccc(*)cc1", "*N(*)*", "*C"], 3, 2, horizon=4)
    flat = as_reward(lambda mol: 1.0)
    batch = flow_batch(env, drawn(env, 200, walk=1.0), flat, log_cut=-math.inf)
    shape = (len(batch.states), env.n_actions - 1)
    zeros = torch.zeros(shape)
    flows = Flows(zeros, zeros, torch.zeros(shape[0]), torch.zeros(shape[0]))
    length = env.length(batch.states[: batch.rows])
    cut = (length == 4) & (batch.done == 1)
    assert cut.any()
    assert batch.mask[cut, -1].all()
    rows = flow_rows(env, batch, flows)
    assert (rows.outflow_chem[cut] < -1e9).all()
    assert (rows.outflow_chem[(length == 4) & (batch.done == 2)] == 0).all()
    objects = exact_flow(env, flat).graph
    ends = {key for key, fine in zip(env.key(objects.states), objects.objects(4), strict=True) if fine}
    for key, out, size in zip(env.key(batch.states), rows.outflow_chem, length, strict=False):
        if size == 4:
            assert (key in ends) == bool(out > -1e9)


def test_a_reach_mask_holds_for_the_chemical_flow_within_the_horizon():
    env = BracketEnv(4, horizon=6)
    both = drawn(env, 200, walk=0.5, reach=True)
    batch = flow_batch(env, both, as_reward(bracket_reward), log_cut=-math.inf)
    assert (both.done == 2).all()
    zeros = torch.zeros(len(batch.states), 2)
    flows = Flows(zeros, zeros, zeros[:, 0], zeros[:, 0])
    rows = flow_rows(env, batch, flows, reach=True)
    able = env.may_finish(batch.states, 6 - env.length(batch.states))[: batch.rows] & batch.mask[:, :-1]
    out = able.sum(axis=1) + batch.mask[:, -1]
    inner = able.any(axis=1)
    np.testing.assert_allclose(rows.outflow_chem[inner].exp(), out[inner], rtol=1e-6)
    assert np.isfinite(rows.inflow_chem.numpy()[~batch.root]).all()


def test_draws_follow_the_flows():
    logits = torch.tensor([[1.0, 0.0, -1.0, 7.0]]).expand(200_000, -1)
    mask = torch.tensor([[True, True, True, False]]).expand(200_000, -1)
    action = sample_masked(logits, mask, torch.Generator().manual_seed(1))
    expected = torch.softmax(logits[0, :3], 0)
    np.testing.assert_allclose(torch.bincount(action, minlength=4)[:3] / 200_000, expected, atol=0.005)


def test_a_row_without_a_legal_action_raises_with_its_number():
    generator = torch.Generator().manual_seed(0)
    mask = torch.tensor([[True, True], [False, False]])
    with pytest.raises(ValueError, match="row 1 has no action"):
        sample_masked(torch.zeros(2, 2), mask, generator)
    with pytest.raises(ValueError, match="row 0, action 1 is nan"):
        sample_masked(torch.tensor([[0.0, math.nan]]), torch.ones(1, 2, dtype=torch.bool), generator)

    def broken(states, budget, condition, mask):
        return torch.full(mask.shape, math.nan), torch.zeros(mask.shape)

    with pytest.raises(ValueError, match="the states begin with"):
        rollout(BracketEnv(4), broken, 2, generator=generator)


@pytest.mark.parametrize(
    "env",
    [BracketEnv(6, horizon=9), HyperGridEnv(4, 2), FragmentEnv(["*c1ccc(*)cc1", "*N(*)*", "*C"], 4)],
    ids=["brackets", "grid", "fragments"],
)
def test_every_terminal_row_has_the_reward_of_its_own_state(env):
    """Trajectories of different lengths and budgets in one batch, some beyond their budgets."""
    worth = as_reward(
        lambda item: 1.0 + len(str(item)) if isinstance(item, (str, tuple)) else item.GetNumAtoms()
    )
    budget = np.arange(60) % 3 + env.max_length - 2
    batch_of = drawn(env, 60, budget=budget, walk=0.3)
    batch = flow_batch(env, batch_of, worth, log_cut=-math.inf, check=True)
    states = batch.states[: batch.rows]
    ended = np.flatnonzero(batch.stopped > 0)
    assert len(ended) > 3
    expected = worth.evaluate(env, states[ended]).log_reward
    np.testing.assert_array_equal(batch.log_reward[ended], expected)
    lengths = env.length(states[ended])
    assert len(set(lengths.tolist())) > 1
    assert batch.count.sum() == len(batch_of.states)
    assert batch.stopped.sum() <= len(batch_of)
    cut = (batch.done == 1) & ~batch.beyond
    assert np.isneginf(batch.log_end[cut]).all()
    # Every parent edge is a legal step to its row.
    index = np.repeat(np.arange(batch.rows), np.diff(batch.ptr))
    np.testing.assert_array_equal(env.apply(batch.states[batch.parent], batch.action), states[index])
    np.testing.assert_array_equal(batch.budget[batch.parent], batch.budget[: batch.rows][index])


def test_rows_are_the_sums_of_a_loop_over_edges():
    env = HyperGridEnv(4, 2, max_length=4)
    gfn = LeakGFN(env, HyperGridReward(4), hidden=8, dtype=torch.float64, device="cpu")
    batch = flow_batch(env, drawn(env, 30, walk=0.3), gfn.reward, log_cut=-math.inf)
    flows = gfn.evaluate(batch.states, batch.budget)
    rows = flow_rows(env, batch, flows)
    chem, fraction, stop = (
        flows.chem.detach().exp(),
        flows.log_fraction.detach().exp(),
        flows.stop.detach().exp(),
    )
    for row in range(batch.rows):
        state = batch.states[row : row + 1]
        into = [0.0, 0.0]
        for parent, action, _ in zip(*env.parents(state), strict=True):
            match = (batch.states == parent).all(axis=1) & (batch.budget == batch.budget[row])
            at = int(np.flatnonzero(match)[0])
            into[0] += float(chem[at, action] * fraction[at, action])
            into[1] += float(chem[at, action])
        np.testing.assert_allclose(rows.inflow_valid[row].detach().exp(), into[0], rtol=1e-12)
        np.testing.assert_allclose(rows.inflow_chem[row].detach().exp(), into[1], rtol=1e-12)
        legal = torch.from_numpy(env.mask(state)[0])
        length, budget = int(env.length(state)[0]), int(batch.budget[row])
        out = (chem[row] * legal[:-1]).sum() + stop[row] * legal[-1]
        np.testing.assert_allclose(rows.outflow_chem[row].detach().exp(), out, rtol=1e-12)
        if length < budget:
            out = (chem[row] * fraction[row] * legal[:-1]).sum() + stop[row] * legal[-1]
            np.testing.assert_allclose(rows.outflow_valid[row].detach().exp(), out, rtol=1e-12)


def small_rows(done):
    zeros = torch.zeros(1, dtype=torch.float64)
    return rows_from_edges(
        zeros, zeros, torch.tensor([0, 0, 1]), torch.zeros(2, 1, dtype=torch.float64),
        torch.full((2, 1), -0.5, dtype=torch.float64), torch.zeros(2, dtype=torch.float64),
        torch.tensor(done), torch.tensor([-math.inf, -1.0], dtype=torch.float64),
    )  # fmt: skip


def test_a_cut_off_state_ends_the_valid_flow_and_is_interior_to_the_chemical_one():
    """By hand: inflow 1 of both flows; a state with one action of F_chem = 1, λ = e^-1/2."""
    loss = LeakLoss(-30.0, gamma=10.0, alpha=0.1)
    cut = loss(small_rows([0, 1]))
    assert float(cut.terminal) == pytest.approx(1.0)  # (0 - log R)^2 with log R = -1
    assert float(cut.conservation) == pytest.approx(0.25)  # 0 - log(e^-1/2): no stop edge where it is cut off
    assert float(cut.chemical) == pytest.approx(0.0)  # no stop edge either: inflow 1, outflow 1
    assert float(cut.total) == pytest.approx(10 + 0.25)
    inner = loss(small_rows([0, 0]))
    assert float(inner.terminal) == 0
    assert float(inner.conservation) == pytest.approx(math.log(math.exp(-0.5) + 1) ** 2)
    assert float(inner.chemical) == pytest.approx(math.log(2) ** 2)
    finished = loss(small_rows([0, 2]))
    assert float(finished.conservation) == 0
    assert float(finished.terminal) == pytest.approx((1 + 1) / 2)  # inflow and stop, both 1 instead of 1/e
    assert float(LeakLoss(-30.0, anchor=False)(small_rows([0, 2])).chemical) == 0


def test_plain_flow_matching_takes_the_cut_off_state_for_terminal():
    parts = FlowMatchingLoss(-30.0, gamma=1.0)(small_rows([0, 1]))
    assert float(parts.terminal) == pytest.approx(1.0)
    assert float(parts.conservation) == 0


def test_a_row_that_ends_without_a_reward_is_refused():
    rows = small_rows([0, 2])._replace(log_end=torch.full((2,), math.nan, dtype=torch.float64))
    with pytest.raises(ValueError, match="a row ends without a reward"):
        LeakLoss(-9.0)(rows)
    with pytest.raises(ValueError, match="log_eps=-inf must be finite"):
        LeakLoss(-math.inf)
    with pytest.raises(ValueError, match="must not be negative"):
        LeakLoss(-9.0, gamma=-1)


def test_balances_are_those_of_loops():
    generator = torch.Generator().manual_seed(0)
    flow, forward, back = (torch.randn(3, 5, generator=generator, dtype=torch.float64) for _ in range(3))
    reward, z = torch.randn(3, generator=generator, dtype=torch.float64), torch.tensor([0.3]).double()
    length = torch.tensor([5, 3, 1])
    for t in (flow, forward, back):
        t[torch.arange(5) >= length[:, None]] = 0
    steps, pieces = [], []
    for k in range(3):
        n = int(length[k])
        ends = [*flow[k, 1:n].tolist(), float(reward[k])]
        steps += [(float(flow[k, t] + forward[k, t] - back[k, t]) - ends[t]) ** 2 for t in range(n)]
        at = [*flow[k, :n].tolist(), float(reward[k])]
        total = weight = 0.0
        for i in range(n):
            for j in range(i + 1, n + 1):
                gain = float((forward[k, i:j] - back[k, i:j]).sum())
                total += 0.9 ** (j - i) * (at[i] + gain - at[j]) ** 2
                weight += 0.9 ** (j - i)
        pieces.append(total / weight)
    assert float(detailed_balance(flow, forward, back, reward, length)) == pytest.approx(np.mean(steps))
    assert float(subtrajectory_balance(flow, forward, back, reward, length)) == pytest.approx(np.mean(pieces))
    whole = (z + forward.sum(1) - reward - back.sum(1)) ** 2
    assert float(trajectory_balance(z.expand(3), forward, back, reward)) == pytest.approx(float(whole.mean()))
    with pytest.raises(ValueError, match=r"decay=0 must lie"):
        subtrajectory_balance(flow, forward, back, reward, length, 0)


@pytest.mark.parametrize("loss", ["leak", "fm", "tb", "db", "subtb"])
@pytest.mark.parametrize("log_reward", [-300.0, 300.0])
def test_rewards_of_300_orders_give_finite_losses(loss, log_reward):
    env = BracketEnv(4)
    gfn = LeakGFN(env, lambda word: log_reward, log=True, loss=loss, hidden=8, device="cpu")
    gfn.fit(3, 8)
    assert all(math.isfinite(row["loss"]) for row in gfn.history_)


def test_a_walk_goes_on_beyond_its_budget_and_others_do_not():
    env = BracketEnv(4, horizon=10)
    one = drawn(env, 200)
    assert env.length(one.states).max() == 4
    both = drawn(env, 200, walk=0.5)
    longest = np.array([env.length(both.states[both.trajectory == t]).max() for t in range(200)])
    assert longest[both.walks].max() == 10
    assert longest[~both.walks].max() == 4
    assert (both.done[longest < env.horizon] > 0).all()


def test_what_is_capped_is_finished():
    env = FragmentEnv(["*c1ccc(*)cc1", "*N(*)*", "*C"], 3, truncation="cap")
    ended = drawn(env, 200)
    assert (env.status(ended.ends, 3) == 1).any()
    assert (ended.done == 2).all()
    gfn = LeakGFN(env, lambda mol: 1.0, hidden=8, message_steps=1, replay=0.5, device="cpu").fit(5, 16)
    assert all(row["cut"] == 0 for row in gfn.history_)
    stored = np.concatenate([entry.ends for entry in gfn.buffer.entries])
    assert (env.status(stored, 3) == 1).any()
    figures = MoleculeMetrics().evaluate(gfn.sample(30, seed=0))
    assert figures["cut"] == 0


def test_a_graph_network_is_told_how_many_blocks_there_are():
    env = FragmentEnv(["*c1ccc(*)cc1", "*N(*)*", "*C"], 4)
    gfn = LeakGFN(env, lambda mol: 1.0, hidden=8, message_steps=1, device="cpu")
    states = drawn(env, 20).states
    features = env.features(states)
    before = gfn.net(features, torch.zeros(len(states), dtype=torch.int64))
    moved = {**features, "length": (features["length"] + 1) % 5}
    after = gfn.net(moved, torch.zeros(len(states), dtype=torch.int64))
    for one, other in zip(before[:3], after[:3], strict=True):
        assert bool((one != other).reshape(len(states), -1).any(dim=1).all())


def test_within_reach_nothing_is_cut_off():
    for env in (BracketEnv(6), FragmentEnv(["*c1ccc(*)cc1", "*N(*)*", "*C"], 5, stop="closed")):
        assert (drawn(env, 300).done == 1).any()
        assert (drawn(env, 300, reach=True).done == 2).all()


def test_bracket_rewards_are_those_of_the_words():
    assert bracket_reward(["()", "()()", "(())"]).tolist() == pytest.approx([4 / 1.5, 9 / 2, 4 / 2])
