"""Neighbour lists against the measurement of every pair through every image that could matter."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_kernels import HalfList, half_list, list_is_stale, radius_pairs, without_pairs
from icml_kernels.molecules.radius_pairs.cases import CASES, rows_of
from icml_kernels.testing import use_route


@pytest.fixture(params=["auto", "reference"])
def route(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("ICML_KERNELS", request.param)
    return request.param


def brute_force(
    pos: np.ndarray, ptr: list[int], reach: float, cell: np.ndarray | None, pbc: np.ndarray | None
) -> tuple[list[tuple[int, ...]], np.ndarray]:
    """Rows (i, j, S) in order, and the distances; images well beyond the reach are tried."""
    rows, distances = [], []
    for b, (first, last) in enumerate(itertools.pairwise(ptr)):
        x = pos[first:last]
        images = np.zeros((1, 3), dtype=int)
        if cell is not None and pbc[b].any():
            # |d| >= |component of d along the reciprocal direction|, open axes taking no part.
            periodic = cell[b][pbc[b]]
            dual = np.linalg.pinv(periodic)
            spread = np.ptp(x @ dual, axis=0) if len(x) else np.zeros(len(periodic))
            limits = np.ceil(reach * np.linalg.norm(dual, axis=0) + spread).astype(int) + 1
            ranges = iter([range(-n, n + 1) for n in limits])
            images = np.array(list(itertools.product(*(next(ranges) if on else (0,) for on in pbc[b]))))
        translation = images @ (np.zeros((3, 3)) if cell is None else cell[b])
        for i in range(len(x)):
            for j in range(i, len(x)):
                d = np.linalg.norm(x[j] + translation - x[i], axis=1)
                for image in np.flatnonzero(d < reach):
                    shift = tuple(int(s) for s in images[image])
                    if i < j or shift > (0, 0, 0):
                        rows.append((first + i, first + j, *shift))
                        distances.append(d[image])
    order = sorted(range(len(rows)), key=rows.__getitem__)
    return [rows[p] for p in order], np.array([distances[p] for p in order])


def assert_transpose_fits(pairs: HalfList) -> None:
    n = int(pairs.ptr[-1])
    i, j = (part[:n] for part in pairs.ij())
    places = pairs.pair_t[:n].long()
    assert sorted(places.tolist()) == list(range(n))
    assert torch.equal(pairs.idx_t[:n].long(), i[places])
    owner = torch.repeat_interleave(torch.arange(pairs.n_atoms), pairs.ptr_t.diff().long())
    assert torch.equal(owner, j[places])
    key = owner * n + places
    assert bool((key.diff() > 0).all()), "the transpose is sorted by j and keeps the order of the list"


@pytest.mark.parametrize("seed", range(8))
def test_every_pair_and_image_of_random_triclinic_boxes_is_found(seed: int, route: str) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        n_replicas = int(rng.integers(1, 4))
        ptr = [0, *np.cumsum(rng.integers(0, 7, n_replicas)).tolist()]
        cell = np.eye(3) * rng.uniform(2.0, 6.0, 3) + rng.normal(0.0, 0.7, (n_replicas, 3, 3))
        pbc = rng.random((n_replicas, 3)) < 0.75
        pos = rng.normal(0.0, 6.0, (ptr[-1], 3))
        reach = float(rng.uniform(0.5, 3.5))
        skin = reach * float(rng.choice([0.0, 0.1]))
        pairs, shift = radius_pairs(
            torch.tensor(pos),
            torch.tensor(ptr),
            reach - skin,
            skin,
            cell=torch.tensor(cell),
            pbc=torch.tensor(pbc),
        )
        expected, distances = brute_force(pos, ptr, reach, cell, pbc)
        found = rows_of(pairs, shift)
        assert found == expected
        assert_transpose_fits(pairs)
        table = np.array(found, dtype=int).reshape(-1, 5)
        replica = np.searchsorted(ptr[1:], table[:, 0], side="right")
        d = pos[table[:, 1]] - pos[table[:, 0]] + np.einsum("ps,psx->px", table[:, 2:], cell[replica])
        np.testing.assert_allclose(np.linalg.norm(d, axis=1), distances, atol=1e-12)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case) -> None:
    results = []
    for one in ("auto", "reference"):
        with use_route(one):
            pairs, shift = case.bind(radius_pairs)(*case.arguments())
        results.append((*pairs.tensors(), torch.zeros(0) if shift is None else shift))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize(("n_beads", "n_replicas"), [(40, 3), (700, 1)])
def test_all_pairs_and_cell_list_of_open_replicas(n_beads: int, n_replicas: int, route: str) -> None:
    rng = np.random.default_rng(n_beads)
    pos = rng.normal(0.0, 1.5 * n_beads ** (1 / 3), (n_beads * n_replicas, 3))
    ptr = list(range(0, len(pos) + 1, n_beads))
    pairs, shift = radius_pairs(torch.tensor(pos), torch.tensor(ptr), 4.0, 0.5)
    assert shift is None
    i, j = np.triu_indices(len(pos), 1)
    near = (i // n_beads == j // n_beads) & (np.linalg.norm(pos[j] - pos[i], axis=1) < 4.5)
    assert rows_of(pairs, None) == [(a, b, 0, 0, 0) for a, b in zip(i[near], j[near], strict=True)]
    assert_transpose_fits(pairs)


def test_a_bead_meets_its_own_images_in_a_simple_cubic_lattice() -> None:
    # 6 neighbours at a, 12 at sqrt(2) a, 8 at sqrt(3) a, 6 at 2 a: half of them stand in the list.
    pairs, shift = radius_pairs(torch.zeros(1, 3), torch.tensor([0, 1]), 2.01, cell=torch.eye(3))
    lengths = shift.double().norm(dim=1)
    assert [int((lengths == d).sum()) for d in (1.0, 2**0.5, 3**0.5, 2.0)] == [3, 6, 4, 3]
    assert pairs.idx.tolist() == [0] * 16


def test_a_dummy_cell_without_periodic_axes_changes_nothing() -> None:
    pos = torch.randn(30, 3, generator=torch.Generator().manual_seed(1)) * 3
    ptr = torch.tensor([0, 30])
    alone, _ = radius_pairs(pos, ptr, 3.0)
    beside, shift = radius_pairs(pos, ptr, 3.0, cell=torch.eye(3), pbc=torch.zeros(3, dtype=torch.bool))
    assert shift is None
    assert rows_of(alone, None) == rows_of(beside, None)


def test_a_slab_straddles_its_open_axis() -> None:
    rng = np.random.default_rng(5)
    pos = rng.uniform(-1.0, 1.0, (40, 3)) * [6.0, 6.0, 2.0]
    pbc = np.array([[True, True, False]])
    expected = None
    for third in ([0.0, 0.0, 0.0], [0.0, 0.0, 1.0], [3.0, -2.0, 0.5]):
        cell = np.array([[[8.0, 0.0, 0.5], [1.0, 9.0, 0.0], third]])
        expected = expected or brute_force(pos, [0, 40], 3.0, cell, pbc)[0]
        pairs, shift = radius_pairs(
            torch.tensor(pos), torch.tensor([0, 40]), 3.0, cell=torch.tensor(cell), pbc=torch.tensor(pbc)
        )
        assert rows_of(pairs, shift) == expected


def test_one_cell_serves_all_replicas() -> None:
    pos = torch.rand(20, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64) * 4
    cell = torch.eye(3, dtype=torch.float64) * 4
    shared = radius_pairs(pos, torch.tensor([0, 10, 20]), 1.8, cell=cell)
    each = radius_pairs(
        pos, torch.tensor([0, 10, 20]), 1.8, cell=cell.expand(2, 3, 3), pbc=torch.ones(2, 3, dtype=torch.bool)
    )
    assert rows_of(*shared) == rows_of(*each)


def test_pairs_exactly_at_the_radius_are_left_out(route: str) -> None:
    pos = torch.tensor([[0.0, 0, 0], [3, 4, 0]], dtype=torch.float64)
    ptr = torch.tensor([0, 2])
    assert radius_pairs(pos, ptr, 5.0)[0].capacity == 0
    assert radius_pairs(pos, ptr, 5.0 + 1e-12)[0].capacity == 1


@pytest.mark.parametrize("cell", [None, torch.eye(3) * 9])
@pytest.mark.parametrize("ptr", [[0], [0, 0], [0, 1], [0, 0, 1, 1]])
def test_empty_and_lonely_replicas_have_no_pairs(
    ptr: list[int], cell: torch.Tensor | None, route: str
) -> None:
    pairs, _ = radius_pairs(torch.zeros(ptr[-1], 3), torch.tensor(ptr), 3.0, cell=cell)
    assert pairs.capacity == 0
    assert pairs.n_atoms == ptr[-1]


@pytest.mark.parametrize("periodic", [False, True])
def test_capacity_keeps_sizes_and_doubles_until_the_pairs_fit(periodic: bool, route: str) -> None:
    pos = torch.rand(12, 3, generator=torch.Generator().manual_seed(3)) * 3
    options = {"cell": torch.eye(3) * 3} if periodic else {}
    exact, exact_shift = radius_pairs(pos, torch.tensor([0, 12]), 1.4, **options)
    n = exact.capacity
    assert n > 8
    for capacity, size in ((4 * n, 4 * n), (n, n), (n - 1, 2 * (n - 1))):
        padded, shift = radius_pairs(pos, torch.tensor([0, 12]), 1.4, capacity=capacity, **options)
        assert padded.capacity == size
        assert rows_of(padded, shift) == rows_of(exact, exact_shift)
        assert torch.equal(padded.ptr_t, exact.ptr_t)
        assert int(padded.idx[n:].abs().sum()) == 0


def test_the_list_does_not_depend_on_the_threads() -> None:
    pos = torch.rand(3000, 3, generator=torch.Generator().manual_seed(4)) * 30
    threads, results = torch.get_num_threads(), []
    try:
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            pairs, shift = radius_pairs(pos, torch.tensor([0, 3000]), 4.0, cell=torch.eye(3) * 30)
            results.append((*pairs.tensors(), shift))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@given(st.integers(0, 2**31), st.floats(0.1, 2.0))
@settings(max_examples=30, deadline=None)
def test_a_list_with_a_skin_is_complete_until_it_is_stale(seed: int, skin: float) -> None:
    rng = np.random.default_rng(seed)
    pos = rng.uniform(0.0, 6.0, (40, 3))
    step = rng.normal(size=(40, 3))
    moved = pos + step / np.linalg.norm(step, axis=1, keepdims=True) * rng.uniform(0.0, 0.5 * skin, (40, 1))
    pairs, _ = radius_pairs(torch.tensor(pos), torch.tensor([0, 40]), 2.0, skin)
    assert not bool(list_is_stale(torch.tensor(moved), torch.tensor(pos), skin))
    now, _ = radius_pairs(torch.tensor(moved), torch.tensor([0, 40]), 2.0)
    assert set(rows_of(now, None)) <= set(rows_of(pairs, None))


def test_one_bead_that_moved_too_far_or_is_lost_makes_the_list_stale() -> None:
    pos = torch.zeros(5, 3, dtype=torch.float64)
    for displacement, stale in ((0.4999, False), (0.5001, True), (float("nan"), True), (float("inf"), True)):
        moved = pos.clone()
        moved[3, 1] = displacement
        assert bool(list_is_stale(moved, pos, 1.0)) is stale


def test_excluded_pairs_vanish_from_every_replica() -> None:
    pos = torch.rand(2, 6, 3, generator=torch.Generator().manual_seed(6)).reshape(-1, 3)
    pairs, _ = radius_pairs(pos, torch.tensor([0, 6, 12]), 9.0, capacity=100)
    excluded = torch.tensor([[1, 0], [2, 5]])
    kept, places = without_pairs(pairs, excluded, 6)
    every = [(a + r, b + r) for r in (0, 6) for a in range(6) for b in range(a + 1, 6)]
    named = {(0, 1), (2, 5), (6, 7), (8, 11)}
    assert [row[:2] for row in rows_of(kept, None)] == [row for row in every if row not in named]
    assert [every[p] for p in places.tolist()] == [row[:2] for row in rows_of(kept, None)]
    assert_transpose_fits(kept)
    nothing, _ = without_pairs(pairs, torch.zeros(0, 2, dtype=torch.int64), 6)
    assert rows_of(nothing, None) == rows_of(pairs, None)


def test_the_users_own_pairs_give_the_same_list() -> None:
    pos = torch.rand(25, 3, generator=torch.Generator().manual_seed(7)) * 4
    built, _ = radius_pairs(pos, torch.tensor([0, 25]), 1.5)
    i, j = built.ij()
    order = torch.randperm(len(i), generator=torch.Generator().manual_seed(8))
    given_by_hand = half_list(j[order], i[order], 25)
    assert all(torch.equal(a, b) for a, b in zip(built.tensors(), given_by_hand.tensors(), strict=True))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"pos": torch.full((4, 3), float("nan"))}, ValueError, "bead 0 stands at"),
        ({"pos": torch.zeros(4, 2)}, ValueError, "pos has shape"),
        ({"pos": torch.zeros(4, 3, dtype=torch.int64)}, TypeError, "dtype torch.int64"),
        ({"ptr": torch.tensor([0, 3])}, ValueError, "rise from 0 to the 4 beads"),
        ({"ptr": torch.tensor([0, 3, 2, 4])}, ValueError, "rise from 0"),
        ({"ptr": torch.tensor([0.0, 4.0])}, ValueError, "expected integers"),
        ({"cutoff": 0.0}, ValueError, "cutoff=0.0"),
        ({"cutoff": float("inf")}, ValueError, "cutoff=inf"),
        ({"skin": -1.0}, ValueError, "skin=-1.0"),
        ({"capacity": 0}, ValueError, "capacity=0"),
        ({"cell": torch.zeros(3, 3)}, ValueError, "span no volume"),
        ({"cell": torch.tensor([[1.0, 0, 0], [2, 0, 0], [0, 0, 1]])}, ValueError, "span no volume"),
        ({"cell": torch.full((3, 3), float("nan"))}, ValueError, "span no volume"),
        ({"cell": torch.eye(2)}, ValueError, r"cell has shape \[2, 2\]"),
        ({"cell": torch.eye(3), "pbc": torch.ones(2, dtype=torch.bool)}, ValueError, "pbc is torch.bool"),
        ({"pbc": torch.ones(3, dtype=torch.bool)}, ValueError, "there is no cell"),
        ({"pos": torch.full((4, 3), 1e9), "cell": torch.eye(3)}, ValueError, "cells away"),
    ],
)
def test_bad_input_is_named(change: dict, error: type[Exception], message: str) -> None:
    arguments = {"pos": torch.zeros(4, 3), "ptr": torch.tensor([0, 4]), "cutoff": 2.0, **change}
    with pytest.raises(error, match=message):
        radius_pairs(arguments.pop("pos"), arguments.pop("ptr"), arguments.pop("cutoff"), **arguments)


def test_excluded_beads_out_of_range_are_named() -> None:
    pairs, _ = radius_pairs(torch.zeros(4, 3), torch.tensor([0, 4]), 2.0)
    with pytest.raises(ValueError, match="excluded runs from 0 to 7"):
        without_pairs(pairs, torch.tensor([[0, 7]]), 4)
    with pytest.raises(ValueError, match="no replicas of 3 beads"):
        without_pairs(pairs, torch.tensor([[0, 1]]), 3)


@pytest.mark.parametrize("periodic", [False, True])
def test_the_operator_keeps_the_rules_of_pytorch(periodic: bool) -> None:
    pos = torch.rand(9, 3, generator=torch.Generator().manual_seed(9))
    cell = (
        (torch.eye(3, dtype=torch.float64)[None], torch.ones(1, 3, dtype=torch.bool))
        if periodic
        else (None, None)
    )
    result = torch.library.opcheck(
        torch.ops.icml.radius_pairs.default, (pos, torch.tensor([0, 9]), 0.4, *cell, 0), raise_exception=True
    )
    assert set(result.values()) == {"SUCCESS"}
