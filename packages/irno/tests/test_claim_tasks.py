"""What the claims stand on: budgets, checkpoints, who is counted; not their verdicts."""

from __future__ import annotations

import pytest
import torch
from icml_core import Run
from icml_irno import IRNO, Refiner, Training, TrainingOptions, claims_of_ablations
from icml_irno.claim_tasks import UNITS, budget_steps, ks_task, step_cost, trained_base, trained_corrector
from icml_irno.claims_of_refinement import _solved
from icml_irno.contraction import error_bound
from torch import nn

ARMS = {
    "detached": ("detached", 3, 0.01, 1.0),
    "one pass": ("detached", 1, 0.0, 1.0),
    "unrolled": ("unroll", 4, 0.01, 1.0),
    "half of unrolled": ("unroll", 4, 0.01, 0.5),
}


@pytest.mark.parametrize(("mode", "K", "beta", "budget"), ARMS.values(), ids=ARMS)
def test_arms_spend_their_budgets_to_one_percent(mode, K, beta, budget):
    cost = step_cost(mode, K, beta)
    steps = budget_steps("small", budget, cost)
    assert steps * cost == pytest.approx(budget * UNITS["small"], rel=0.01)


def test_the_cost_of_a_step_is_what_training_counts():
    # Passes without weights: K for unrolled, (K + 1) / 2 on average for detached, and the term at the truth.
    x = torch.randn(64, 1, 16, generator=torch.Generator().manual_seed(0))
    counts = {}
    for mode in ("unroll", "detached"):
        model = IRNO(lambda x: 0.5 * x, Refiner(1, 1, base_channels=4, depth=1, dims=1), alpha=0.3, K=3)
        options = TrainingOptions(mode=mode, max_steps=400, batch=4, lr=1e-3)
        counts[mode] = Training(model, (x, x), options=options).fit().rows[-1]["passes"] / 400 / 4
    assert counts["unroll"] == 4  # three iterates and the truth: four times 3 with gradient
    assert step_cost("unroll", 3, 0.01) == 12
    assert counts["detached"] == pytest.approx(1 + 1 + 1 / 3, abs=0.3)  # 1 without, 1 with, 1/3 of the truth
    assert step_cost("detached", 3, 0.01) == 1 + 3 + 1


def test_checkpoints_are_spread_over_the_steps(tmp_path):
    run = Run(tmp_path / "a", quiet=True, scale="smoke", device="cpu")
    task = ks_task(run, 0)
    base = trained_base(run, task)
    model, states = trained_corrector(run, task, base, "a", snapshots=4)
    assert len(states) == 4
    last = model.refiner.state_dict()
    assert all(torch.equal(states[-1][name], last[name]) for name in last)  # no validation: the last is kept
    assert not any(torch.equal(a["output.weight"], last["output.weight"]) for a in states[:-1])


class Fall(nn.Module):
    """x says by how much a step falls short: some samples converge soon, others late or never."""

    out_channels = 1

    def forward(self, xh: torch.Tensor) -> torch.Tensor:
        return -xh[:, :1] * (xh[:, 1:] - 1)


def test_calls_are_compared_on_samples_that_converge_by_both():
    model = IRNO(lambda x: torch.zeros_like(x), Fall(), alpha=1.0, K=3)
    quick, never = torch.full((3, 1, 8), 0.5), torch.full((1, 1, 8), 2.0)  # factors 1/2, and -1 for ever
    alone = _solved(model, quick)
    both = _solved(model, torch.cat([quick, never]))
    assert alone["converged_shares"] == [1.0, 1.0]
    assert both["plain_calls"] == alone["plain_calls"]
    assert both["anderson_calls"] == alone["anderson_calls"] < alone["plain_calls"]
    assert both["converged_shares"][1] == 0.75
    none = _solved(model, never)
    assert none["plain_calls"] == 100
    assert none["converged_shares"][1] == 0.0


def test_without_its_floor_the_bound_can_fail_where_open_loop_cannot():
    # Steps of one length: q = 1, e_k = e_0 - k alpha b, whatever b is. The bound holds; without b it does not
    # when the error grows.
    e0, b = torch.tensor([1.0]), torch.tensor([0.5])
    q = torch.ones(1)
    for k in range(1, 5):
        grown = 1 + k * 0.5
        assert float(error_bound(e0, b, q, 1.0, k)) == pytest.approx(grown)
        assert float(error_bound(e0, torch.zeros(1), q, 1.0, k)) < grown


def test_the_ablation_of_the_floor_is_measured(tmp_path):
    figures = {}
    for ablation in (None, "no-floor"):
        run = Run(tmp_path / str(ablation), quiet=True, scale="smoke", device="cpu", ablation=ablation)
        figures[ablation] = claims_of_ablations.floor(run, 0)
    for mode in ("detached", "unroll"):
        name = f"violations_{mode}"
        assert sum(figures["no-floor"][name]) >= sum(figures[None][name])
        assert figures["no-floor"][f"q_segment_{mode}"] == figures[None][f"q_segment_{mode}"]
