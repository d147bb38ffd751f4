"""The half list against sets of pairs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_kernels import HalfList, half_list, transposed_list
from icml_kernels.molecules.cases import with_spare_places


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 12), st.randoms(use_true_random=False))
def test_both_orders_hold_every_pair_once(n_atoms, random):
    everything = [(i, j) for i in range(n_atoms) for j in range(i + 1, n_atoms)]
    chosen = random.sample(everything, random.randint(0, len(everything)))
    given_order = [p if random.random() < 0.5 else p[::-1] for p in chosen]
    i, j = (torch.tensor([p[k] for p in given_order], dtype=torch.int64) for k in (0, 1))
    pairs = half_list(i, j, n_atoms)
    forward = [
        (row, int(pairs.idx[p])) for row in range(n_atoms) for p in range(pairs.ptr[row], pairs.ptr[row + 1])
    ]
    assert forward == sorted(chosen)
    backward = [
        (int(pairs.idx_t[q]), row)
        for row in range(n_atoms)
        for q in range(pairs.ptr_t[row], pairs.ptr_t[row + 1])
    ]
    assert backward == sorted(chosen, key=lambda p: (p[1], p[0]))
    assert [forward[p] for p in pairs.pair_t] == backward
    assert [tuple(p) for p in torch.stack(pairs.ij(), 1).tolist()] == forward
    assert all(t.dtype == torch.int32 for t in pairs.tensors())
    again = transposed_list(pairs.ptr, pairs.idx)
    assert all(torch.equal(a, b) for a, b in zip(again.tensors(), pairs.tensors(), strict=True))


def test_order_tells_where_each_pair_came_from():
    i, j = torch.tensor([5, 0, 2]), torch.tensor([1, 3, 0])
    pairs, order = half_list(i, j, 6, return_order=True)
    assert (
        torch.stack([torch.minimum(i, j), torch.maximum(i, j)])[:, order].tolist()
        == torch.stack(pairs.ij()).tolist()
    )


def test_images_of_one_pair_stay_in_their_order():
    pairs, order = half_list(torch.tensor([0, 0, 0]), torch.tensor([1, 1, 1]), 2, return_order=True)
    assert order.tolist() == [0, 1, 2]
    assert pairs.ptr.tolist() == [0, 3, 3]


def test_spare_places_are_no_pairs():
    pairs = half_list(torch.tensor([0, 1]), torch.tensor([2, 2]), 3)
    padded = with_spare_places(pairs, 3)
    assert padded.capacity == 5
    assert padded.n_atoms == 3
    assert torch.stack(padded.ij()).tolist() == [[0, 1, 0, 0, 0], [2, 2, 0, 0, 0]]
    completed = transposed_list(padded.ptr, padded.idx)
    assert completed.ptr_t.tolist() == [0, 0, 0, 2]
    assert completed.pair_t[:2].tolist() == [0, 1]


def test_bad_pairs_are_named():
    with pytest.raises(ValueError, match=r"indices must lie in 0..2, got 0 to 3"):
        half_list(torch.tensor([0]), torch.tensor([3]), 3)
    with pytest.raises(ValueError, match="atom 1 is paired with itself"):
        half_list(torch.tensor([0, 1]), torch.tensor([2, 1]), 3)
    with pytest.raises(ValueError, match=r"vectors of one length, got shapes \(1,\) and \(2,\)"):
        half_list(torch.tensor([0]), torch.tensor([1, 2]), 3)


def test_a_list_moves_between_devices():
    pairs = half_list(torch.tensor([0]), torch.tensor([1]), 2)
    assert isinstance(pairs.to("meta"), HalfList)
    assert pairs.to("meta").idx.device.type == "meta"
