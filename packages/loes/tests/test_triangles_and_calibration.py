"""Areas against the cross product and Heron, draws, and stratified splits."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_loes import calibration_split
from icml_loes.triangles import class_means, draw_triples, mean_area, triangle_areas


@settings(max_examples=25, deadline=None)
@given(dim=st.integers(2, 6), shift=st.floats(-50, 50), seed=st.integers(0, 99))
def test_areas_are_herons(dim, shift, seed):
    points = torch.randn(3, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + shift
    a, b, c = (float((points[i] - points[j]).norm()) for i, j in ((0, 1), (1, 2), (2, 0)))
    s = (a + b + c) / 2
    heron = math.sqrt(max(s * (s - a) * (s - b) * (s - c), 0))
    found = triangle_areas(points @ points.T, torch.tensor([[0, 1, 2]]))
    assert float(found) == pytest.approx(heron, rel=1e-5, abs=1e-4)


def test_area_in_three_dimensions_is_half_the_cross_product():
    points = torch.tensor([[0.0, 0, 0], [2, 0, 0], [0, 3, 0]], dtype=torch.float64)
    assert float(triangle_areas(points @ points.T, torch.tensor([[0, 1, 2]]))) == pytest.approx(3.0)


def test_degenerate_triples_have_no_area():
    points = 1e6 * torch.randn(4, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    triples = torch.tensor([[0, 0, 1], [1, 2, 1], [3, 2, 2], [1, 1, 1]])
    assert triangle_areas(points @ points.T, triples).tolist() == [0.0] * 4


@pytest.mark.parametrize(("classes", "count"), [(2, 0), (3, 9), (10, 30), (100, 200)])
def test_number_of_sampled_triples(classes, count):
    found = draw_triples(classes, "sample:200", torch.Generator().manual_seed(0))
    assert found.shape == (count, 3)
    assert draw_triples(classes, "sample", torch.Generator().manual_seed(0)).tolist() == found.tolist()


def test_all_triples_are_the_expectation_of_distinct_ones():
    points = torch.randn(5, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gram = points @ points.T
    every = draw_triples(5, "all")
    assert len(every) == math.comb(5, 3)
    drawn = torch.randint(5, (40_000, 3), generator=torch.Generator().manual_seed(1))
    distinct = drawn[[len(set(t)) == 3 for t in drawn.tolist()]]
    assert float(mean_area(gram, every)) == pytest.approx(float(mean_area(gram, distinct)), rel=0.01)


@pytest.mark.parametrize("bad", ["every", "sample:0", "sample:x", "all:3", "sample:-1"])
def test_unknown_triangles_are_refused(bad):
    with pytest.raises(ValueError, match="triangles="):
        draw_triples(5, bad)


def test_too_many_classes_for_all():
    with pytest.raises(ValueError, match="61 classes are 35990"):
        draw_triples(61, "all")


def test_class_means_average():
    x = torch.randn(7, 3, dtype=torch.float64)
    labels = torch.tensor([0, 1, 1, 2, 0, 2, 2])
    for c, mean in enumerate(class_means(labels, 3) @ x):
        torch.testing.assert_close(mean, x[labels == c].mean(0))


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(2, 30), min_size=1, max_size=6), seed=st.integers(0, 9), data=st.data())
def test_splits_are_stratified_disjoint_and_of_the_asked_size(counts, seed, data):
    labels = np.repeat(np.arange(len(counts)) * 3, counts)
    n_cal = data.draw(st.integers(2 * len(counts), len(labels)))
    chosen, rest = calibration_split(labels, n_cal, seed=seed)
    assert len(chosen) == n_cal
    assert sorted([*chosen, *rest]) == list(range(len(labels)))
    for c, count in zip(np.unique(labels), counts, strict=True):
        there = int((labels[chosen] == c).sum())
        assert there >= 2
        assert abs(there - count * n_cal / len(labels)) < 2 + 2 * len(counts)


def test_splits_depend_on_the_seed_alone():
    labels = np.arange(40) % 4
    first, again, other = (calibration_split(labels, 16, seed=s)[0] for s in (0, 0, 1))
    assert first.tolist() == again.tolist() != other.tolist()


def test_rare_classes_and_small_sets_are_named():
    with pytest.raises(ValueError, match=r"class 'b' \(1\)"):
        calibration_split(np.array(["a", "a", "a", "b"]), 3, seed=0)
    with pytest.raises(ValueError, match="n_cal=3 is too small for 2 classes; 4"):
        calibration_split([0, 0, 0, 1, 1, 1], 3, seed=0)
    with pytest.raises(ValueError, match="n_cal=9 of 6"):
        calibration_split([0, 0, 0, 1, 1, 1], 9, seed=0)


def test_real_targets_are_split_at_random():
    chosen, rest = calibration_split(np.linspace(0, 1, 10), 4, seed=0)
    assert len(chosen) == 4
    assert len(rest) == 6
