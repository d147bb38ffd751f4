"""The multiplicative weights pass against its definition, and against SciPy's linear programs."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_kernels import cover_costs, mwu_cover_pass, raised_cover, scaled_packing
from icml_kernels.testing import check_raw_ops, use_route
from scipy.optimize import linprog


def system(seed: int, edges: int = 30, triples: int = 80) -> tuple:
    """Random triples whose first edge is among the first third, and weights."""
    rng = np.random.default_rng(seed)
    third = edges // 3
    rows = [[rng.integers(third), *(third + rng.permutation(edges - third)[:2])] for _ in range(triples)]
    weight = torch.from_numpy(rng.choice([0.3, 0.5, 1.0, 2.7], edges))
    return torch.tensor(np.array(rows), dtype=torch.int32).reshape(-1, 3), weight


def run(rows: torch.Tensor, weight: torch.Tensor, step: float, phases: int) -> tuple:
    """Phases with rising thresholds."""
    lengths, packing = 1.0 / weight, torch.zeros(len(rows), dtype=torch.float64)
    threshold = float(lengths[rows.long()].sum(1).min())
    for _ in range(phases):
        threshold *= 1.0 + step
        lengths, packing = mwu_cover_pass(rows, weight, lengths, packing, threshold, step)
    return lengths, packing, threshold


@pytest.mark.parametrize("seed", range(4))
def test_bits_are_those_of_the_definition(seed):
    rows, weight = system(seed)
    results = []
    for route in ("auto", "reference"):
        with use_route(route):
            lengths, packing, threshold = run(rows, weight, 0.15, 20)
            results.append((lengths, packing, raised_cover(rows, lengths / threshold)))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))
    assert float(results[0][1].sum()) > 0


@pytest.mark.parametrize("seed", range(3))
def test_converges_to_the_linear_program(seed):
    rows, weight = system(seed)
    step, index = 0.05, rows.long().numpy()
    lengths, packing, threshold = run(rows, weight, step, int(np.log(3.2) / step**2) + 1)
    matrix = np.zeros((len(rows), len(weight)))
    np.add.at(matrix, (np.arange(len(rows))[:, None], index), 1.0)
    best = linprog(weight.numpy(), A_ub=-matrix, b_ub=-np.ones(len(rows)), method="highs").fun
    x = lengths.numpy() / threshold
    assert x[index].sum(1).min() >= 1 - 1e-12
    y = packing.numpy() / (packing.numpy() @ matrix / weight.numpy()).max()
    assert best * (1 - 2 * step) <= y.sum() <= best * (1 + 1e-9)
    assert best * (1 - 1e-9) <= weight.numpy() @ x <= best * (1 + 4 * step)


def test_phases_in_one_call_are_those_one_by_one():
    rows, weight = system(3)
    lengths, packing, _ = run(rows, weight, 0.15, 20)
    start = 1.0 / weight, torch.zeros(len(rows), dtype=torch.float64)
    first = float(start[0][rows.long()].sum(1).min()) * 1.15
    for route in ("auto", "reference"):
        with use_route(route):
            found = mwu_cover_pass(rows, weight, *start, first, 0.15, 20, trusted=True)
        assert torch.equal(found[0], lengths)
        assert torch.equal(found[1], packing)


def test_raised_cover_is_the_least_one():
    rows, _ = system(5)
    x = torch.from_numpy(np.random.default_rng(6).random(30))
    raised = raised_cover(rows, x)
    expected = x.clone()
    for first in set(rows[:, 0].tolist()):
        mine = rows[rows[:, 0] == first].long()
        expected[first] = max(0.0, float((1 - x[mine[:, 1]] - x[mine[:, 2]]).max()))
    assert torch.equal(raised, expected)


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_costs_are_those_of_the_raised_covers(route):
    rows, weight = system(9)
    others = torch.arange(10, 30)
    values = torch.from_numpy(np.random.default_rng(1).random((4, 20)))
    x = torch.zeros((4, 30), dtype=torch.float64)
    x[:, 10:] = values
    expected = torch.stack([(weight * raised_cover(rows, row)).sum() for row in x])
    with use_route(route):
        torch.testing.assert_close(cover_costs(rows, weight, others, values), expected)
    with pytest.raises(ValueError, match="expected \\[edges\\], \\[others\\]"):
        cover_costs(rows, weight, others, values[:, 1:])


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_scaled_packing_is_one_and_leaves_a_packing_alone(route):
    rows, weight = system(10)
    amounts = torch.from_numpy(np.random.default_rng(2).exponential(1.0, len(rows)))
    with use_route(route):
        found = scaled_packing(rows, weight, amounts)
        again = scaled_packing(rows, weight, found)
    load = torch.zeros_like(weight).index_add(0, rows.long().ravel(), found.repeat_interleave(3))
    assert (load <= weight * (1 + 1e-12)).all()
    assert float(load.max()) > 0.1
    torch.testing.assert_close(found, again)
    before = torch.zeros_like(weight).index_add(0, rows.long().ravel(), amounts.repeat_interleave(3))
    worst = (before / weight)[rows.long()].max(1).values.clamp(min=1)
    torch.testing.assert_close(found, amounts / worst)


def test_nothing_to_cover():
    rows = torch.zeros((0, 3), dtype=torch.int32)
    none = torch.zeros(0, dtype=torch.float64)
    assert [len(t) for t in mwu_cover_pass(rows, none, none, none, 1.0, 0.1)] == [0, 0]
    assert len(raised_cover(rows, none)) == 0


def test_raw_operators_are_well_formed():
    rows, weight = system(7)

    def both(rows, weight, lengths, packing):
        lengths, packing = mwu_cover_pass(rows, weight, lengths, packing, 20.0, 0.1)
        packing = scaled_packing(rows, weight, packing)
        costs = cover_costs(rows, weight, torch.arange(10, 30), lengths[None, 10:])
        return raised_cover(rows, lengths), packing, costs

    arguments = rows, weight, 1 / weight, torch.zeros(len(rows), dtype=torch.float64)
    assert check_raw_ops(both, arguments, order=0) == {
        "icml::cover_costs",
        "icml::mwu_cover_pass",
        "icml::raised_cover",
        "icml::scaled_packing",
    }


def test_bad_arguments_are_named():
    rows, weight = system(8)
    packing = torch.zeros(len(rows), dtype=torch.float64)
    with pytest.raises(TypeError, match="rows has dtype torch.int64; expected torch.int32"):
        mwu_cover_pass(rows.long(), weight, weight, packing, 1.0, 0.1)
    with pytest.raises(ValueError, match="expected \\[edges\\] twice"):
        mwu_cover_pass(rows, weight, weight[1:], packing, 1.0, 0.1)
    with pytest.raises(ValueError, match="not positive; leave edges of no weight out"):
        mwu_cover_pass(rows, 0 * weight, weight, packing, 1.0, 0.1)
    with pytest.raises(ValueError, match="step=0"):
        mwu_cover_pass(rows, weight, weight, packing, 1.0, 0)
    with pytest.raises(ValueError, match="an edge outside 0, …, 4"):
        raised_cover(rows, weight[:5])
