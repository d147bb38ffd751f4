"""Densities, cuts, quadratures and contour solvers against enumeration, closed forms and dense LAPACK."""

from __future__ import annotations

from itertools import combinations, pairwise

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_deepcontour import Contour, cirr, contour_quadrature, eigs, feast, kde_contours, ssm, winding_number
from icml_deepcontour.basins import watershed
from icml_deepcontour.contour_search import merge
from icml_deepcontour.contour_solvers import contour_eigs
from icml_deepcontour.datasets import plate, uniform_plate, waveguide
from icml_deepcontour.density import DEPTH, best_cuts, density, valleys
from icml_deepcontour.pencil import Pencil

RING = (Contour(0.0, 1.0), Contour(0.3, 2.0, aspect=0.4), Contour(1 + 1j, 0.5, aspect=0.7, angle=0.6))


@pytest.mark.parametrize("rule", ["trapezoid", "gauss"])
@pytest.mark.parametrize("contour", RING, ids=str)
def test_the_quadrature_is_one_inside_and_zero_outside(contour, rule):
    z, w = contour_quadrature(contour, 40, rule, half=False)
    inside = contour.center + 0.3 * contour.radius * np.exp(1j * contour.angle)
    outside = contour.center + 3 * contour.radius
    assert abs((w / (z - inside)).sum() - 1) < 1e-4
    assert abs((w / (z - outside)).sum()) < 1e-4
    if contour.symmetric:
        z, w = contour_quadrature(contour, 40, rule)
        assert abs((w / (z - inside)).real.sum() - 1) < 1e-4


def test_an_outside_eigenvalue_leaks_with_the_power_of_its_distance():
    """(rho / d)^(2 N) for the trapezoidal rule on a circle: 1 / (1 + x^(2N)) exactly."""
    for N in (4, 8, 16):
        z, w = contour_quadrature(Contour(0.0, 1.0), N)
        for x in (0.5, 1.1, 2.0):
            assert float((w / (z - x)).real.sum()) == pytest.approx(1 / (1 + x ** (2 * N)), rel=1e-9)


def test_nodes_follow_the_gap():
    assert Contour(0.0, 1.0, outside=1.01).nodes_wanted() == 16
    assert Contour(0.0, 1.0, outside=10.0).nodes_wanted() == 6
    assert Contour(0.0, 1.0, outside=2.5).nodes_wanted() == int(np.ceil(np.log(1e8) / (2 * np.log(2.5))))


def test_the_density_is_the_formula_of_the_paper():
    values, t = np.array([1.0, 2.0, 4.0]), np.array([0.5, 3.0])
    expected = [sum(np.exp(-7.0 * (a - v) ** 2 / 9.0) for v in values) for a in t]
    np.testing.assert_allclose(density(t, values, 7.0), expected, rtol=1e-14)


def test_valleys_lie_between_groups():
    values = np.r_[0.0:1.0:6j, 3.0:4.0:6j, 7.0:8.0:6j]
    cuts, heights = valleys(values, 200.0)
    assert cuts.tolist() == [6, 12]
    assert (heights < 0.05).all()


def cost_of(n, chosen, price, max_per):
    full = max(b - a for a, b in zip([0, *chosen], [*chosen, n], strict=True))
    return full / max_per + 10 * max(0.0, full / max_per - 1) + DEPTH * sum(price[c] for c in chosen)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(6, 30), st.integers(1, 8), st.integers(2, 12))
def test_dynamic_programming_finds_the_best_cuts_of_all_subsets(seed, n, count, max_per):
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, n), size=min(count, n - 1), replace=False))
    heights = rng.random(len(cuts))
    price = dict(zip(cuts.tolist(), heights.tolist(), strict=True))
    found = best_cuts(n, cuts, heights, max_per, 1)
    subsets = [list(s) for size in range(len(cuts) + 1) for s in combinations(cuts.tolist(), size)]
    best = min(cost_of(n, s, price, max_per) for s in subsets)
    assert cost_of(n, found, price, max_per) == pytest.approx(best, abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 200), st.sampled_from([0.0, 1e-3]), st.integers(5, 40))
def test_every_prediction_lies_in_one_contour_and_cuts_keep_their_distance(seed, n, error, max_per):
    rng = np.random.default_rng(seed)
    values = np.sort(np.cumsum(rng.exponential(size=n)) + rng.normal())
    contours = kde_contours(values, q95=error, max_per=max_per, min_per=min(4, max_per))
    inside = np.stack([c.contains(values) for c in contours])
    assert (inside.sum(axis=0) == 1).all()
    assert [int(row.sum()) for row in inside] == [c.expected for c in contours]
    edges = [c.interval[0] for c in contours[1:]]
    if edges and error:
        assert np.abs(values[:, None] - np.array(edges)).min() >= error
    assert all(a.interval[1] == pytest.approx(b.interval[0]) for a, b in pairwise(contours))
    assert contours[0].interval[0] < values[0]
    assert contours[-1].interval[1] > values[-1]


def test_clusters_are_not_cut():
    values = np.sort(np.concatenate([np.full(3, v) + np.arange(3) * 1e-9 for v in np.arange(1.0, 30.0)]))
    edges = [c.interval[1] for c in kde_contours(values, q95=1e-6, max_per=12)[:-1]]
    assert len(edges) >= 5
    assert np.abs(values[:, None] - np.array(edges)).min() > 0.1


def test_complex_predictions_become_one_ellipse_a_basin():
    rng = np.random.default_rng(0)
    centers = np.array([0, 4, 4j, 5 + 5j])
    values = np.concatenate([c + 0.3 * (rng.normal(size=9) + 0.3j * rng.normal(size=9)) for c in centers])
    assert len(np.unique(watershed(values, 0.05))) == 4
    contours = kde_contours(values, max_per=12)
    inside = np.stack([c.contains(values) for c in contours])
    assert len(contours) == 4
    assert (inside.sum(axis=0) == 1).all()
    assert all(c.outside > c.radius * c.aspect for c in contours)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "at least one"),
        (([1.0, np.nan],), "finite"),
        (([1.0], [np.inf]), "q95"),
        (([1.0], None, 0.0), "w=0.0"),
        (([1.0], None, "auto", 3, 5), "min_per=5"),
        (([1.0], None, "auto", 5, 3, "square"), "shape='square'"),
    ],
)
def test_bad_predictions_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        kde_contours(*arguments)


def test_bad_contours_are_refused():
    with pytest.raises(ValueError, match="radius"):
        Contour(0.0, -1.0)
    with pytest.raises(ValueError, match="N=0"):
        contour_quadrature(Contour(0.0, 1.0), 0)
    with pytest.raises(ValueError, match="rule='simpson'"):
        contour_quadrature(Contour(0.0, 1.0), 4, "simpson")
    with pytest.raises(ValueError, match="method='magic'"):
        contour_eigs(np.eye(3), None, Contour(0.0, 1.0), method="magic")


SOLVERS = {"cirr": cirr, "ssm": ssm, "feast": feast}


@pytest.mark.parametrize("name", SOLVERS)
def test_contour_solvers_find_what_is_inside(name):
    given = plate(23, 1)
    exact = scipy.linalg.eigh(given.A.toarray(), given.B.toarray(), eigvals_only=True)
    low, high = (exact[4] + exact[5]) / 2, (exact[16] + exact[17]) / 2
    found = SOLVERS[name](given.A, given.B, Contour((low + high) / 2, (high - low) / 2, expected=12))
    np.testing.assert_allclose(found.values, exact[5:17], rtol=1e-7)
    assert found.unconverged == 0
    assert found.residuals.max() <= 1e-8
    gram = found.vectors.T @ (given.B @ found.vectors)
    np.testing.assert_allclose(gram, np.eye(12), atol=1e-6)
    assert abs(found.estimate - 12) < 8


@pytest.mark.parametrize("expected", [2, 30])
def test_a_subspace_that_is_too_small_grows(expected):
    given = uniform_plate(23)
    exact = scipy.linalg.eigh(given.A.toarray(), given.B.toarray(), eigvals_only=True)
    high = (exact[19] + exact[20]) / 2
    found = cirr(given.A, given.B, Contour(high / 2, high / 2, expected=expected))
    np.testing.assert_allclose(found.values, exact[:20], rtol=1e-7)


@pytest.mark.parametrize("name", ["cirr", "ssm", "feast"])
def test_complex_eigenvalues_of_a_lossy_waveguide(name):
    guide = waveguide(16, 2, loss=0.5)
    exact = np.linalg.eigvals(guide.A.toarray())
    first = exact[np.argsort(exact.real)][:5]
    contours = kde_contours(first * (1 + 1e-6), max_per=6)
    values, vectors = eigs(guide.A, None, ("contour", contours), backend=name)
    inside = exact[np.any([c.contains(exact) for c in contours], axis=0)]
    order = np.lexsort((inside.imag, inside.real))
    np.testing.assert_allclose(values, inside[order], rtol=1e-7)
    residual = np.linalg.norm(guide.A @ vectors - vectors * values, axis=0) / np.linalg.norm(
        guide.A @ vectors, axis=0
    )
    assert residual.max() < 1e-8


@pytest.mark.parametrize("solver", [cirr, feast])
def test_unsymmetric_matrices_with_a_contour_off_the_axis(solver):
    rng = np.random.default_rng(3)
    A = sp.csc_array(rng.normal(size=(60, 60)) * (rng.random((60, 60)) < 0.3))
    exact = np.linalg.eigvals(A.toarray())
    for contour in (Contour(1 + 1j, 1.5, expected=8), Contour(0.0, 2.0, expected=16, aspect=0.6)):
        found = solver(A, None, contour, nodes=24)
        wanted = exact[contour.contains(exact)]
        assert len(found.values) == len(wanted) > 2
        assert max(np.abs(wanted - v).min() for v in found.values) < 1e-6


def test_complex_hermitian_pencil_uses_the_adjoint_for_the_lower_half():
    rng = np.random.default_rng(1)
    dense = rng.normal(size=(60, 60)) + 1j * rng.normal(size=(60, 60))
    A = dense + dense.conj().T
    exact = np.linalg.eigvalsh(A)
    low, high = (exact[20] + exact[21]) / 2, (exact[27] + exact[28]) / 2
    found = cirr(A, None, Contour((low + high) / 2, (high - low) / 2, expected=7))
    np.testing.assert_allclose(found.values, exact[21:28], rtol=1e-8)


def test_the_winding_number_counts():
    guide = waveguide(8, 2, loss=0.5)
    exact = np.linalg.eigvals(guide.A.toarray())
    contour = Contour(-300.0, 400.0)
    assert winding_number(guide.A, None, contour, 128) == int(contour.contains(exact).sum())


@pytest.mark.parametrize("backend", ["cirr", "feast", "ssm"])
@pytest.mark.parametrize("which", [("SA", 14), ("range", 2e3, 3e4), ("below", 1e4)], ids=str)
def test_contour_back_ends_answer_the_same_requests(backend, which):
    given = plate(23, 2)
    expected, _ = eigs(given.A, given.B, which)
    guesses = scipy.linalg.eigh(given.A.toarray(), given.B.toarray(), eigvals_only=True)[:30] * 1.001
    for predictor in (None, guesses):
        values, _, stats = eigs(
            given.A, given.B, which, backend=backend, predictor=predictor, return_stats=True
        )
        np.testing.assert_allclose(values, expected, rtol=1e-7)
        assert stats.count.exact
        assert stats.residuals.max() <= 1e-8


def test_wrong_predictions_are_mended_by_slices():
    given = plate(23, 3)
    expected, _ = eigs(given.A, given.B, ("SA", 12))
    for factor in (0.3, 3.0):
        values, _ = eigs(given.A, given.B, ("SA", 12), backend="cirr", predictor=expected * factor)
        np.testing.assert_allclose(values, expected, rtol=1e-7)


def test_merging_keeps_double_eigenvalues_and_drops_copies():
    A = Pencil.of(sp.diags_array([1.0, 2.0, 2.0, 3.0]))
    found = [contour_eigs(A, None, Contour(c, 1.2, expected=3), 1e-8) for c in (1.4, 2.1)]
    values, vectors = merge(A, found)
    np.testing.assert_allclose(values, [1, 2, 2, 3], rtol=1e-10)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(4), atol=1e-10)
