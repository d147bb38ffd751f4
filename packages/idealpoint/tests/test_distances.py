"""Distances as users call them: against aeon and tslearn, with gaps, threads and blocks."""

from __future__ import annotations

import time

import aeon.distances
import numpy as np
import pytest
import torch
import tslearn.metrics
from icml_idealpoint import alignment, as_series, dtw, pairwise, soft_dtw, soft_twed, twed
from icml_idealpoint.claim_oracles import hard_twed
from icml_idealpoint.distances import blocks
from icml_idealpoint.simulation import aeon_series


def series(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


@pytest.mark.parametrize("channels", [1, 3])
def test_distances_equal_aeon(channels):
    X, Y = series(4, 12, channels), series(3, 12, channels, seed=1)
    a, b = X.transpose(0, 2, 1), Y.transpose(0, 2, 1)
    for i in range(4):
        for j in range(3):
            expected = aeon.distances.twe_distance(a[i], b[j], nu=0.05, lmbda=0.7)
            assert twed(X[i], Y[j], 0.05, 0.7) == pytest.approx(expected, abs=1e-8)
            assert hard_twed(X[i], Y[j], 0.05, 0.7) == pytest.approx(expected, abs=1e-8)
            expected = aeon.distances.dtw_distance(a[i], b[j])
            assert dtw(X[i], Y[j], cost="squared") == pytest.approx(expected, abs=1e-8)


def test_a_root_gives_tslearn():
    x, y = series(15, 2), series(11, 2, seed=1)
    assert dtw(x, y, cost="squared", root=True) == pytest.approx(tslearn.metrics.dtw(x, y), abs=1e-8)


def test_signed_soft_values_equal_tslearn():
    x, y = series(6, 1), series(7, 1, seed=1)
    expected = tslearn.metrics.soft_dtw(x, y, gamma=1.5)
    found = soft_dtw(torch.from_numpy(x)[None], torch.from_numpy(y)[None], 1.5)
    assert expected < 0 or expected > 0
    assert float(found) == pytest.approx(expected, abs=1e-8)
    near = soft_dtw(torch.from_numpy(x)[None], torch.from_numpy(x)[None], 1.5)
    assert float(near) < 0
    assert float(near) == pytest.approx(tslearn.metrics.soft_dtw(x, x, gamma=1.5), abs=1e-8)


def test_real_series_of_unequal_length_equal_aeon():
    words, _ = aeon_series("JapaneseVowels")
    chosen = words[:5]
    assert len({len(w) for w in chosen}) > 1
    found = pairwise(chosen, metric="twed", nu=0.01, lam=0.5)
    for i, x in enumerate(chosen):
        for j, y in enumerate(chosen):
            expected = aeon.distances.twe_distance(x.T, y.T, nu=0.01, lmbda=0.5)
            assert found[i, j] == pytest.approx(expected, abs=1e-8)


def test_a_constant_shift_changes_nothing():
    """The first points are always matched, so that the point at index 0 never shows."""
    x, y = series(9), series(8, seed=1)
    assert twed(x + 100, y + 100) == pytest.approx(twed(x, y), abs=1e-9)


def test_dropping_a_point_moves_twed_little():
    """At most 2 (|dx| + nu dt) + lam for an inner point, with the true times kept."""
    rng = np.random.default_rng(3)
    for _ in range(300):
        n, m, nu, lam = rng.integers(4, 12), rng.integers(2, 12), rng.random() * 0.2, rng.random()
        x, y = rng.normal(size=n), rng.normal(size=m)
        k = int(rng.integers(1, n - 1))
        gap = x.copy()
        gap[k] = np.nan
        moved = abs(twed(gap, y, nu, lam, nan="drop") - twed(x, y, nu, lam))
        assert moved <= 2 * (abs(x[k] - x[k - 1]) + nu) + lam + 1e-9


def test_dropped_points_keep_the_times_of_the_others():
    found = as_series([[1.0, np.nan, 3.0]], nan="drop")
    assert found.times is not None
    assert found.times.tolist() == [[1.0, 3.0]]
    assert found.values[0, :, 0].tolist() == [1.0, 3.0]


def test_masked_channels_are_scaled():
    x, y = np.array([[3.0, np.nan]]), np.array([[0.0, 5.0]])
    assert dtw(x, y, nan="mask") == pytest.approx(3 * np.sqrt(2))


def test_blocks_equal_the_whole(tmp_path):
    X, Y = series(23, 9), series(17, 8, seed=1)
    whole = pairwise(X, Y)
    out = np.memmap(tmp_path / "d", dtype="float64", mode="w+", shape=(23, 17))
    assert np.array_equal(pairwise(X, Y, out=out, block=5), whole)


def test_indices_do_not_overflow():
    """Two million series: the last block is far beyond 2^31 entries."""
    last = None
    for last in blocks(2_000_000, 2_000_000, 250_000):
        assert last[0].start >= 0
        assert last[1].stop <= 2_000_000
    assert last is not None
    assert last[0].stop * last[1].stop == 4_000_000_000_000


@pytest.mark.parametrize(("rows", "columns"), [(1, 300), (300, 1), (40, 40)])
def test_jobs_change_nothing_but_time(rows, columns):
    X, Y = series(rows, 60), series(columns, 50, seed=1)
    assert np.array_equal(pairwise(X, Y, n_jobs=1), pairwise(X, Y, n_jobs=2))


def test_pairwise_of_compiled_loops_starts_at_once():
    X = series(3, 10)
    pairwise(X)
    begin = time.process_time()
    pairwise(X)
    assert time.process_time() - begin < 0.05


@pytest.mark.parametrize("loss", [soft_twed, soft_dtw])
def test_divergence_is_zero_for_equal_series_of_unequal_lengths(loss):
    x = torch.from_numpy(series(2, 100, 1))
    lengths = torch.tensor([99, 100])
    found = loss(x, x, divergence=True, lengths_x=lengths, lengths_y=lengths)
    assert float(found.abs().max()) < 1e-9
    other = torch.from_numpy(series(2, 100, 1, seed=4)).requires_grad_()
    value = loss(x, other, divergence=True, lengths_x=lengths, lengths_y=torch.tensor([100, 99]))
    (gradient,) = torch.autograd.grad(value.sum(), other)
    assert bool((value > 0).all())
    assert float(gradient[1, 99:].abs().max()) == 0.0


def test_alignment_of_real_series():
    series_, _ = aeon_series("GunPoint")
    found = alignment(series_[0], series_[1], nu=0.01, lam=0.1)
    assert found.path_cost() == pytest.approx(twed(series_[0], series_[1], 0.01, 0.1), abs=1e-9)


def test_layouts_agree():
    X = series(3, 4, 7)
    assert np.allclose(pairwise(X, layout="nct"), pairwise(X.transpose(0, 2, 1)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: as_series([[1.0, np.nan]]), "NaN in series 0 at position 1"),
        (lambda: as_series([[1.0], [np.inf]]), "infinity in series 1 at position 0"),
        (lambda: as_series([[1.0], []]), "series 1 has shape .* at least one point"),
        (lambda: as_series([np.ones((3, 1)), np.ones((3, 2))]), r"numbers of channels: \[1, 2\]"),
        (lambda: as_series([[1.0, 2.0]], times=[[2.0, 1.0]]), "must increase"),
        (lambda: as_series([]), "holds no series"),
        (lambda: pairwise([[1.0]], nu=-1.0), "nu=-1 must be at least 0"),
        (lambda: pairwise([[1.0]], lam=-1.0), "lam=-1 must be at least 0"),
        (lambda: pairwise([[1.0]], dtype="float16"), "dtype='float16'"),
        (lambda: pairwise([[1.0]], n_jobs=0), "n_jobs=0"),
        (lambda: pairwise([[1.0, 2, 3, 4]], [[1.0]], window=0.5), "leaves no path"),
        (lambda: soft_twed(torch.ones(1, 2, 1), torch.ones(1, 2, 1), gamma=0.0), "gamma=0 must be positive"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_series_of_one_point():
    assert twed([2.0], [5.0]) == pytest.approx(3.0)
    assert dtw([2.0], [5.0]) == pytest.approx(3.0)
