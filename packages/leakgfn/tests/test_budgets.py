"""Several budgets and several ways to an object: exact tables, hindsight, equal shares of parents."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_leakgfn import (
    BracketEnv,
    DualHead,
    FlatEncoder,
    FragmentEnv,
    HyperGridEnv,
    LeakGFN,
    LeakLoss,
    PreferenceReward,
    exact_flow,
    exact_policy_distribution,
    rows_from_edges,
)
from icml_leakgfn.hindsight import relabelled
from icml_leakgfn.networks import BudgetFilm, Flows
from icml_leakgfn.rewards import as_reward
from icml_leakgfn.rollout import even_policy, rollout
from icml_leakgfn.tables import exact_tables, loss_of_tables
from icml_leakgfn.trainings import spearman_ceiling
from icml_leakgfn.transitions import flow_batch, flow_rows
from icml_leakgfn.worlds import HyperGridReward, bracket_reward
from scipy.stats import spearmanr

BLOCKS = ["*c1ccc(*)cc1", "*N(*)*", "*C", "*F"]


def heavy(mol):
    return mol.GetNumHeavyAtoms() / 10


WORLDS = {
    "brackets": (BracketEnv(8, horizon=10), bracket_reward, range(3, 9)),
    "horizon": (BracketEnv(8), bracket_reward, range(3, 9)),
    "grid": (HyperGridEnv(4, 2, seed=3), HyperGridReward(4), range(2, 6)),
    "closed": (FragmentEnv(BLOCKS, 4, stop="closed", horizon=5), heavy, range(2, 5)),
    "capped": (FragmentEnv(BLOCKS, 4, horizon=5), heavy, range(2, 5)),
    "cap": (FragmentEnv(BLOCKS, 4, truncation="cap", horizon=5), heavy, range(2, 5)),
}


@pytest.mark.parametrize("name", WORLDS)
@pytest.mark.parametrize("seed", range(2))
def test_exact_tables_by_budget_have_no_loss_and_mistaken_ones_have(name, seed):
    """Whether a miss of one network for all budgets is a fault: its equations hold exactly, on ways of any
    budget, relabelled ones and walks beyond; and tables that take the budget for one more are told apart.
    """
    env, reward, budgets = WORLDS[name]
    table = exact_tables(env, reward, budgets)
    log_eps = math.log(0.1)
    assert loss_of_tables(table, reward, budgets, seed=seed, log_eps=log_eps) < 1e-20
    if name != "cap":  # every state of L_max blocks is an object there, as with one more
        assert loss_of_tables(table, reward, budgets, seed=seed, log_eps=log_eps, shift=1) > 1e-3


@pytest.mark.parametrize("name", WORLDS)
def test_hindsight_keeps_ways_and_rewards_and_changes_budgets(name):
    env, reward, budgets = WORLDS[name]
    generator = torch.Generator().manual_seed(0)
    ways = rollout(env, even_policy, 60, generator=generator, walk=0.3)
    low, high = min(budgets), max(budgets)
    other = relabelled(env, ways, (low, high), generator, copies=2)
    assert len(other) == 120
    np.testing.assert_array_equal(other.states, np.concatenate([ways.states] * 2))
    np.testing.assert_array_equal(other.action, np.concatenate([ways.action] * 2))
    assert set(other.budget.tolist()) == set(budgets)
    assert (env.length(other.ends)[~other.walks] <= other.budget[~other.walks]).all()
    scorer = as_reward(reward)
    batch = flow_batch(env, other, scorer, log_cut=-math.inf, check=True)
    ended = np.flatnonzero(batch.stopped > 0)
    expected = scorer.evaluate(env, batch.states[ended]).log_reward
    np.testing.assert_array_equal(batch.log_reward[ended], expected)
    # A way through a state at which its budget ends is cut off or finished there, not interior.
    length = env.length(batch.states[: batch.rows])
    at_budget = (length == batch.budget[: batch.rows]) & ~batch.beyond
    assert at_budget.any()
    assert (batch.done[at_budget] != 0).all()


def test_hindsight_teaches_budgets_that_no_trajectory_had():
    """Drawn under one budget alone, the others are met all the same."""
    env = BracketEnv(6)
    exact = {length: exact_flow(env, bracket_reward, max_length=length) for length in (2, 4, 6)}
    options = {"hidden": 64, "lr": 1e-2, "gamma": 1.0, "uniform": 0.2, "score_all": True, "alpha": 1.0}
    apart = {}
    for further in (0, 2):
        gfn = LeakGFN(
            env, bracket_reward, budgets=(2, 6), hindsight=further, decay_steps=150, device="cpu", **options
        )
        gfn._explore = lambda n, gfn=gfn: rollout(
            env, gfn.policy, n, generator=gfn.generator, budget=6, uniform=0.2, log_probs=False
        )
        gfn.fit(150, 32)
        found = {k: exact_policy_distribution(gfn, graph=v.graph, max_length=k) for k, v in exact.items()}
        apart[further] = max(found[k].total_variation(exact[k]) for k in (2, 4))
    assert apart[2] < 0.1
    assert apart[0] > 2 * apart[2]


def test_hindsight_without_several_budgets_is_refused():
    for options in ({"hindsight": 1}, {"hindsight": 1, "budgets": (2, 4), "loss": "fm"}, {"hindsight": -1}):
        with pytest.raises(ValueError, match=r"hindsight=-?1: further budgets need loss='leak' and budgets="):
            LeakGFN(BracketEnv(4), bracket_reward, **options)
    env = FragmentEnv(BLOCKS, 4, truncation="cap", stop="closed")
    with pytest.raises(ValueError, match="truncation='cap' with stop='closed'"):
        LeakGFN(env, heavy, budgets=(2, 4))


def test_a_film_scales_and_shifts_by_the_budget():
    film = BudgetFilm(3, 4)
    h, r = torch.randn(5, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 3])
    assert torch.equal(film(h, r), film(h, torch.zeros(5, dtype=torch.int64)))  # at first all are alike
    assert all(float(table.weight.detach().abs().max()) > 0 for table in (film.gain, film.shift))
    with torch.no_grad():
        film.gain.weight.copy_(torch.arange(4.0)[:, None].expand(4, 4))
        film.shift.weight.fill_(0.5)
    torch.testing.assert_close(film(h, r), h * (1 + r[:, None]) + 0.5)


def test_only_the_fraction_is_told_the_budget():
    net = DualHead(FlatEncoder(5, hidden=8), 2, hidden=8, budgets=4)
    with torch.no_grad():
        net.film.gain.weight.normal_(generator=torch.Generator().manual_seed(1))
    x = {"vector": torch.eye(5)}
    one, other = net(x, torch.full((5,), 1)), net(x, torch.full((5,), 4))
    assert torch.equal(one.chem, other.chem)
    assert torch.equal(one.stop, other.stop)
    assert bool((one.log_fraction != other.log_fraction).all())


def diamond(share):
    """Two ways into one state that ends: log flows of the edges are log of share and of 1 - share."""
    zero = torch.zeros(4, dtype=torch.float64)
    into = torch.tensor([share, 1 - share, share, 1 - share], dtype=torch.float64).log()
    out = torch.tensor([[share, 1 - share], [share, 0], [1 - share, 0], [0, 0]], dtype=torch.float64)
    return rows_from_edges(
        into,
        torch.zeros_like(into),
        torch.tensor([0, 0, 1, 2, 4]),
        out.log().clamp_min(-200),
        torch.zeros_like(out),
        zero,
        torch.tensor([0, 0, 0, 2]),
        zero,
        may_stop=torch.tensor([False, False, False, True]),
    )


def test_equal_shares_are_asked_of_parents_and_change_no_other_part():
    """By hand: shares a and 1 - a of two parents; the term is the mean of log(2a)^2 and log(2 - 2a)^2, and of
    edges alone in their state 0.
    """
    loss = LeakLoss(-60.0, uniform_backward=2.0)
    even, uneven = loss(diamond(0.5)), loss(diamond(0.9))
    assert float(even.total) < 1e-20
    expected = (math.log(1.8) ** 2 + math.log(0.2) ** 2) / 2 / 3
    assert float(uneven.backward) == pytest.approx(expected, rel=1e-9)
    assert float(uneven.total) == pytest.approx(2 * expected, rel=1e-9)
    assert float(LeakLoss(-60.0)(diamond(0.9)).total) < 1e-20
    with pytest.raises(ValueError, match="needs rows with edges"):
        loss(diamond(0.5)._replace(edges=None))


def fitted_flows(batch, env, loss, weight, seed):
    """Flows of every edge and stop, found by minimising the loss from random ones, without a network."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(batch.states), env.n_actions - 1)
    free = [
        torch.randn(size, generator=generator, dtype=torch.float64).requires_grad_()
        for size in (shape, shape, shape[:1])
    ]

    def flows():
        return Flows(free[0], torch.nn.functional.logsigmoid(free[1]), free[2], free[2])

    search = torch.optim.LBFGS(
        free, max_iter=120, tolerance_grad=1e-12, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure():
        search.zero_grad()
        value = loss(flow_rows(env, batch, flows(), single_edges=weight > 0)).total
        value.backward()
        return value

    search.step(closure)
    return flows(), float(closure().detach())


def test_the_fraction_is_determined_in_a_grid_by_equal_shares():
    """Without a network: every flow that has no loss has the exact λ where parents have equal shares, and
    flows without that term have no loss either, and other λ.
    """
    env = HyperGridEnv(3, 2, max_length=2, seed=3)
    reward = HyperGridReward(3)
    exact = exact_flow(env, reward)
    ways = rollout(env, even_policy, 300, generator=torch.Generator().manual_seed(0), walk=0.5)
    batch = flow_batch(env, ways, as_reward(reward), log_cut=-math.inf, score_all=True)
    assert len(batch.states) == len(exact.graph) == 9
    number = {key: row for row, key in enumerate(env.key(batch.states))}
    edges = np.flatnonzero((exact.graph.length[exact.graph.child] <= 2) & ~np.isnan(exact.lambda_star))
    row = [number[key] for key in env.key(exact.graph.states[exact.graph.parent[edges]])]
    for weight in (0.0, 1.0):
        loss = LeakLoss(math.log(1e-6), gamma=1.0, alpha=1.0, uniform_backward=weight)
        apart = []
        for seed in range(3):
            found, left = fitted_flows(batch, env, loss, weight, seed)
            assert left < 1e-8
            learnt = found.log_fraction.detach().exp().numpy()[row, exact.graph.action[edges]]
            apart.append(np.abs(learnt - exact.lambda_star[edges]).max())
        if weight:
            assert max(apart) < 1e-5
        else:
            assert min(apart) > 0.05


def test_the_ceiling_of_ties_is_that_of_the_best_ranking():
    exact = np.array([0.0] * 30 + [1.0] * 20 + list(np.linspace(0.1, 0.9, 15)))
    best = np.argsort(np.argsort(exact, kind="stable"), kind="stable").astype(float)
    assert spearman_ceiling(exact) == pytest.approx(spearmanr(best, exact).statistic, rel=1e-12)
    assert spearman_ceiling(np.arange(9.0)) == 1.0


def test_five_conditions_on_molecules():
    """Preferences for large and for small molecules: each exact target is met, and the ends are as far apart
    as the exact ones.
    """
    env = FragmentEnv(["*c1ccc(*)cc1", "*N*", "*C"], 3, stop="closed")
    reward = PreferenceReward(
        [lambda mol: mol.GetNumHeavyAtoms() / 4, lambda mol: 3 / mol.GetNumHeavyAtoms()],
        concentration=0.5,
    )
    gfn = LeakGFN(
        env, reward, net="mlp", hidden=64, lr=1e-2, gamma=1.0, alpha=1.0, uniform=0.2, score_all=True,
        reach_mask=True, decay_steps=250, device="cpu",
    ).fit(250, 32)  # fmt: skip
    targets, ends = [], []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        weights = torch.tensor([share, 1 - share])
        exact = exact_flow(env, reward, condition=weights)
        found = exact_policy_distribution(gfn, graph=exact.graph, condition=weights)
        assert found.total_variation(exact) < 0.05
        targets.append(exact.probability)
        ends.append(found.finished)
    wanted = 0.5 * np.abs(targets[0] - targets[-1]).sum()
    assert wanted > 0.3
    assert 0.5 * np.abs(ends[0] - ends[-1]).sum() == pytest.approx(wanted, abs=0.05)
