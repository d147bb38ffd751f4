"""Elastic distances against the definition, a plain Python loop, and enumeration of all paths."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from icml_kernels import elastic_alignment, elastic_cross
from icml_kernels.series.elastic_cross import cpu
from icml_kernels.testing import check_raw_ops, use_route


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rising(*shape: int, seed: int = 0) -> torch.Tensor:
    steps = torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (steps + 0.05).cumsum(-1)


def plain(x, y, metric, *, nu=0.05, lam=1.0, reach=math.inf, cost="norm"):
    """The recurrence as it is printed, with infinity outside the band."""

    def distance(u, v):
        squares = float(((u - v) ** 2).sum())
        return squares if cost == "squared" else math.sqrt(squares)

    a, b = np.vstack([0 * x[:1], x]), np.vstack([0 * y[:1], y])
    table = np.full((len(a), len(b)), math.inf)
    table[0, 0] = 0
    for i in range(1, len(a)):
        for j in range(1, len(b)):
            if abs(i - j) > reach:
                continue
            if metric == "dtw":
                table[i, j] = distance(a[i], b[j]) + min(
                    table[i - 1, j - 1], table[i - 1, j], table[i, j - 1]
                )
            else:
                match = distance(a[i], b[j]) + distance(a[i - 1], b[j - 1]) + 2 * nu * abs(i - j)
                up, left = distance(a[i], a[i - 1]), distance(b[j], b[j - 1])
                table[i, j] = min(
                    table[i - 1, j - 1] + match,
                    table[i - 1, j] + up + nu + lam,
                    table[i, j - 1] + left + nu + lam,
                )
    return table[-1, -1]


@pytest.mark.parametrize("metric", ["dtw", "twed"])
@pytest.mark.parametrize("channels", [1, 2, 3, 6])
@pytest.mark.parametrize("window", [None, 2, 0.5])
def test_numba_equals_the_definition(metric, channels, window):
    x, y = random(3, 7, channels), random(5, 6, channels, seed=1)
    lengths = torch.tensor([7, 5, 6]), torch.tensor([6, 6, 4, 5, 6])
    if window == 2:
        lengths = torch.tensor([7, 5, 6]), torch.tensor([6, 6, 5, 5, 6])
    options = {"window": window, "x_lengths": lengths[0], "y_lengths": lengths[1]}
    for moments in ({}, {"x_times": rising(3, 7), "y_times": rising(5, 6, seed=2)}):
        with use_route("reference"):
            expected = elastic_cross(x, y, metric, **options, **moments)
        torch.testing.assert_close(
            elastic_cross(x, y, metric, **options, **moments), expected, rtol=1e-12, atol=1e-12
        )


@pytest.mark.parametrize("metric", ["dtw", "twed"])
def test_missing_channels_are_left_out(metric):
    x, y = random(2, 5, 3), random(3, 4, 3, seed=1)
    x[0, 2, 1] = y[1, 3, 0] = float("nan")
    x[1, 1] = float("nan")
    with use_route("reference"):
        expected = elastic_cross(x, y, metric, masked=True)
    torch.testing.assert_close(elastic_cross(x, y, metric, masked=True), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("metric", ["dtw", "twed"])
@pytest.mark.parametrize("reach", [1, 3, math.inf])
def test_windows_are_closed_outside(metric, reach):
    """Other libraries let the path creep along the edge of the window; here infinity stands there."""
    for seed in range(5):
        x, y = random(1, 9, 2, seed=seed), random(1, 8, 2, seed=seed + 50)
        found = elastic_cross(x, y, metric, window=None if math.isinf(reach) else int(reach))
        assert float(found) == pytest.approx(
            plain(x[0].numpy(), y[0].numpy(), metric, reach=reach), rel=1e-12
        )
        assert float(found) >= float(elastic_cross(x, y, metric)) - 1e-12


def test_a_window_of_the_whole_length_changes_nothing():
    x = random(4, 12, 1)
    assert torch.equal(elastic_cross(x, x, window=1.0), elastic_cross(x, x))


def test_squares_are_summed_where_asked():
    x, y = random(1, 6, 2), random(1, 5, 2, seed=1)
    found = elastic_cross(x, y, "dtw", cost="squared")
    assert float(found) == pytest.approx(plain(x[0].numpy(), y[0].numpy(), "dtw", cost="squared"), rel=1e-12)


def test_nothing_is_written_outside_the_work_space():
    """Series of very different lengths in one block, beside the same pairs alone."""
    x, y = random(3, 40, 1), random(70, 40, 1, seed=1)
    generator = torch.Generator().manual_seed(2)
    lengths = (
        torch.randint(30, 41, (3,), generator=generator),
        torch.randint(30, 41, (70,), generator=generator),
    )
    whole = elastic_cross(x, y, x_lengths=lengths[0], y_lengths=lengths[1], window=10)
    for a in range(3):
        for b in range(0, 70, 7):
            alone = elastic_cross(x[a : a + 1, : lengths[0][a]], y[b : b + 1, : lengths[1][b]], window=10)
            assert float(alone) == float(whole[a, b])


def test_padding_may_hold_anything():
    x, y = random(2, 6, 1), random(2, 6, 1, seed=1)
    lengths = torch.tensor([4, 6])
    expected = elastic_cross(x, y, x_lengths=lengths)
    x[0, 4:] = float("nan")
    assert torch.equal(elastic_cross(x, y, x_lengths=lengths), expected)


def test_bits_do_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(cpu, "_FEW_CELLS", 1)
    x, y = random(5, 20, 2).float(), random(90, 15, 2, seed=1).float()
    one = elastic_cross(x, y, threads=1)
    for threads in (2, 3, 7):
        assert torch.equal(elastic_cross(x, y, threads=threads), one)


def test_float32_is_as_good_as_it_can_be():
    x = random(40, 100, 1)
    exact = elastic_cross(x, x)
    found = elastic_cross(x.float(), x.float()).double()
    assert float(((found - exact).abs() / exact.clamp(min=1)).max()) < 2e-6


def test_a_wrong_kernel_is_caught(monkeypatch):
    """On machines where compiled loops give garbage the definition runs, with one warning."""
    cpu.kernel_is_right.cache_clear()
    x = random(2, 5, 1)
    with use_route("reference"):
        expected = elastic_cross(x, x)
    monkeypatch.setattr(cpu, "_pairs", lambda *arguments: None)
    with pytest.warns(RuntimeWarning, match="wrong on this machine"):
        found = elastic_cross(x, x)
    torch.testing.assert_close(found, expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        elastic_cross(x, x)
    cpu.kernel_is_right.cache_clear()


def test_raw_operators_are_well_formed():
    assert check_raw_ops(lambda x, y: elastic_cross(x, y), (random(2, 4, 1), random(3, 3, 1)), order=0) == {
        "icml::elastic_cross"
    }


@pytest.mark.parametrize("metric", ["dtw", "twed"])
def test_path_table_and_distance_agree(metric):
    for n in range(1, 9):
        for m in range(1, 9):
            x, y = random(n, 2, seed=n), random(m, 2, seed=100 + m)
            found = elastic_alignment(x, y, metric)
            assert found.path[0].tolist() == [0, 0]
            assert found.path[-1].tolist() == [n - 1, m - 1]
            assert found.path_cost() == pytest.approx(found.value, abs=1e-12)
            assert float(elastic_cross(x[None], y[None], metric)) == pytest.approx(found.value, abs=1e-12)


@pytest.mark.parametrize("metric", ["dtw", "twed"])
def test_no_path_is_cheaper(metric):
    """Every path of two short series, enumerated."""
    x, y = random(4, 1), random(5, 1, seed=1)
    found = elastic_alignment(x, y, metric)

    def costs(i, j, last):
        if metric == "dtw":
            here = float(found.costs[i, j])
        elif last == "match":
            here = float(found.costs[i, j]) + (float(found.costs[i - 1, j - 1]) if i and j else 0.0)
        else:
            here = float(found.deletions[0][i] if last == "x" else found.deletions[1][j])
        if (i, j) == (3, 4):
            yield here
            return
        for di, dj, kind in ((1, 1, "match"), (1, 0, "x"), (0, 1, "y")):
            if i + di < 4 and j + dj < 5:
                yield from (here + rest for rest in costs(i + di, j + dj, kind))

    assert min(costs(0, 0, "match")) == pytest.approx(found.value, abs=1e-12)


def test_bad_arguments_are_named():
    x = random(2, 5, 1)
    with pytest.raises(ValueError, match="metric='lcss' is not one of dtw, twed"):
        elastic_cross(x, x, "lcss")
    with pytest.raises(ValueError, match="nu=-1 must be at least 0"):
        elastic_cross(x, x, nu=-1)
    with pytest.raises(ValueError, match="leaves no path between lengths 5 and 2; it needs at least 3"):
        elastic_cross(x, x[:, :2], window=1)
    with pytest.raises(ValueError, match="x has 1 channels but y has 2"):
        elastic_cross(x, random(2, 5, 2))
    with pytest.raises(ValueError, match="x has nan in series 1 at position 2, channel 0"):
        elastic_cross(torch.where(torch.arange(10).reshape(2, 5, 1) == 7, float("nan"), x), x)
    with pytest.raises(ValueError, match="series 0 has 0.5 at position 1"):
        elastic_cross(x[:1], x, x_times=torch.tensor([[1.0, 0.5, 2, 3, 4]], dtype=torch.float64))
    with pytest.raises(TypeError, match="window='wide'"):
        elastic_cross(x, x, window="wide")
    with pytest.raises(ValueError, match="TWED is defined with norms"):
        elastic_cross(x, x, "twed", cost="squared")
    with pytest.raises(ValueError, match="series without points"):
        elastic_cross(x[:, :0], x)
