"""What may be called exact: pivots not trusted, singular B, clusters far from 0, growth, copies."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from icml_deepcontour import Contour, FillError, TooManyEigenvaluesError, certify, eigs
from icml_deepcontour.datasets import plate, waveguide
from icml_deepcontour.factorization import Factorizer, ShiftedFactor
from icml_deepcontour.inertia import CLEAR, Count, Definiteness, count_below, definiteness
from icml_deepcontour.pencil import Pencil
from icml_deepcontour.slices import Slicer, independent
from icml_deepcontour.smallest import _equal_to_last


def saddle(n=80, m=20):
    """[[H, C^T], [C, 0]]: zeros on the diagonal, so that no pivot may be taken there."""
    rng = np.random.default_rng(0)
    C = sp.random_array((m, n), density=0.1, rng=rng) + sp.eye_array(m, n)
    return sp.csc_array(sp.block_array([[sp.diags_array(rng.uniform(1, 9, n)), C.T], [C, None]]))


@pytest.fixture
def untrusted(monkeypatch):
    """Factorizations that solve, and whose count is said not to be exact."""
    real = Factorizer.__call__

    def call(self, shift, *, spacing=None):
        found = real(self, shift, spacing=spacing)
        return ShiftedFactor(found.shift, 0, False, "not trusted", found.solve, found.entries)

    monkeypatch.setattr(Factorizer, "__call__", call)


def test_contours_between_ends_that_cannot_be_counted(monkeypatch):
    monkeypatch.setattr("icml_deepcontour.factorization.DENSE", 0)
    monkeypatch.setattr("icml_deepcontour.factorization.UNSTABLE", 0.0)
    A = saddle()
    exact = np.linalg.eigvalsh(A.toarray())
    for which in (("range", float(exact[5] - 0.01), float(exact[12])), ("below", float(exact[12]))):
        with pytest.raises(ValueError, match=r"cannot be counted.*lose too many digits"):
            eigs(A, None, which, backend="cirr")


def test_good_pairs_are_kept_where_no_end_can_be_counted(untrusted):
    given = plate(23, 2)
    exact = scipy.linalg.eigh(given.A.toarray(), given.B.toarray(), eigvals_only=True)
    values, vectors, stats = eigs(
        given.A, given.B, ("SA", 14), backend="cirr", predictor=exact[:15], return_stats=True
    )
    np.testing.assert_allclose(values, exact[:14], rtol=1e-8)
    assert vectors.shape == (529, 14)
    assert (stats.count.n, stats.count.exact, stats.count.reason) == (14, False, "not trusted")


def singular_b(definite):
    """A, B of rank 22 in 30 rows, and the finite eigenvalues by a Schur complement in null(B)."""
    rng = np.random.default_rng(0)
    root = rng.normal(size=(30, 22))
    dense = rng.normal(size=(30, 30))
    A = dense @ dense.T + np.eye(30) if definite else dense + dense.T
    q = scipy.linalg.qr(root)[0]
    a = q.T @ A @ q
    reduced = a[:22, :22] - a[:22, 22:] @ np.linalg.solve(a[22:, 22:], a[22:, :22])
    small = q[:, :22].T @ root
    return A, root @ root.T, scipy.linalg.eigh(reduced, small @ small.T, eigvals_only=True)


@pytest.mark.parametrize("definite", [True, False])
def test_lapack_is_not_believed_where_b_is_singular(definite):
    A, B, exact = singular_b(definite)
    values, vectors, stats = eigs(A, B, ("SA", 5), return_stats=True)
    assert stats.backend == "slice"
    assert stats.infinite == 8
    np.testing.assert_allclose(values, exact[:5], rtol=1e-7)
    np.testing.assert_allclose(vectors.T @ B @ vectors, np.eye(5), atol=1e-8)
    kind = definiteness(Pencil.of(A, B), Factorizer(Pencil.of(A, B)))
    q = scipy.linalg.null_space(B)
    assert (kind.infinite, kind.base, kind.exact) == (
        8,
        int((np.linalg.eigvalsh(q.T @ A @ q) < 0).sum()),
        True,
    )


def test_lapack_is_counted_by_inertia(monkeypatch):
    given = plate(12, 0)
    exact = scipy.linalg.eigh(given.A.toarray(), given.B.toarray(), eigvals_only=True)
    for which, n in (
        (("SA", 9), 9),
        (("range", 0.0, float(exact[7])), 7),
        (("nearest", float(exact[20]), 6), 6),
    ):
        stats = eigs(given.A, given.B, which, return_stats=True)[2]
        assert (stats.backend, stats.count.n, stats.count.exact) == ("dense", n, True)
        assert stats.factorizations > 0
    real = scipy.linalg.eigh

    def forgetful(a, b=None, **options):
        w, x = real(a, b, **options)
        return np.delete(w, 4), np.delete(x, 4, axis=1)

    monkeypatch.setattr("icml_deepcontour.eigensolver.scipy.linalg.eigh", forgetful)
    values, _, stats = eigs(given.A, given.B, ("SA", 9), return_stats=True)
    assert stats.backend == "slice"
    np.testing.assert_allclose(values, exact[:9], rtol=1e-8)


def test_null_vectors_that_cannot_be_counted_are_not_proved(untrusted):
    A, B, _ = singular_b(True)
    pencil = Pencil.of(A, B)
    assert not definiteness(pencil, Factorizer(pencil)).exact


@pytest.mark.parametrize("seed", range(12))
def test_far_counts_need_pivots_above_rounding(seed):
    """A is 1e-14 on null(B): at far shifts its sign is rounding, which is refused or proves nothing."""
    rng = np.random.default_rng(seed)
    q = scipy.linalg.qr(rng.normal(size=(12, 12)))[0]
    A = q @ np.diag([*rng.uniform(1, 2, 8), 1e-14, 1e-14, 1e-14, 1e-14]) @ q.T
    B = q[:, :8] @ q[:, :8].T
    pencil = Pencil.of((A + A.T) / 2, (B + B.T) / 2)
    try:
        kind = definiteness(pencil, Factorizer(pencil))
    except np.linalg.LinAlgError as error:
        assert "share a null vector" in str(error)
    else:
        assert not kind.exact
    assert CLEAR > 1


@pytest.mark.parametrize("warm", [False, True])
def test_values_far_from_zero_are_told_apart(warm):
    given = plate(23, 3)
    base = sp.csc_array(sp.diags_array(np.sqrt(1 / given.B.diagonal())))
    A = sp.csc_array(1e-3 * (base @ given.A @ base))
    A = sp.csc_array((A + A.T) / 2)
    exact = np.linalg.eigvalsh(A.toarray())[:8]
    far = sp.csc_array(A + 1e9 * sp.eye_array(529))
    rng = np.random.default_rng(0)
    options = {"X0": rng.normal(size=(529, 10))} if warm else {}
    values, _, stats = eigs(far, None, ("SA", 8), backend="slice", return_stats=True, **options)
    np.testing.assert_allclose(values - 1e9, exact, atol=2e-3)
    assert stats.count.exact
    assert abs(max(stats.shifts) - 1e9) < 1e7


def test_the_run_of_equal_values_at_the_end():
    assert _equal_to_last(np.array([1.0, 2.0, 3.0, 3.05, 3.1]), 0.06) == 2
    assert _equal_to_last(np.array([1.0, 2.0]), 0.5) == 1
    assert _equal_to_last(np.array([1.0, 1.0]), 0.5) == 0


def chain():
    """Three coupled rows with eigenvalues near 1, 2 and 3."""
    return sp.diags_array([[1e-3, 1e-3], [1.0, 2.0, 3.0], [1e-3, 1e-3]], offsets=(-1, 0, 1))


def test_a_count_where_rounding_is_large_needs_both_sides_to_agree(monkeypatch):
    pencil, kind = Pencil.of(chain()), Definiteness(0, 0, True)
    real = Factorizer.__call__

    def rough(self, shift, *, spacing=None):
        return replace(real(self, shift, spacing=spacing), rounding=1e-2)

    monkeypatch.setattr(Factorizer, "__call__", rough)
    assert count_below(pencil, Factorizer(pencil), kind, 2.5) == Count(2, True)
    found = count_below(pencil, Factorizer(pencil), kind, 2.005)
    assert not found.exact
    assert "rounding moves eigenvalues by up to" in found.reason


def test_rounding_is_that_of_the_lightest_coupled_row():
    n = 30
    stiff = sp.csc_array(
        sp.diags_array([np.full(n - 1, -1.0), np.full(n, 2.0), np.full(n - 1, -1.0)], offsets=(-1, 0, 1))
    )
    heavy, light = np.ones(n), np.ones(n)
    light[7] = 1e-6
    roundings = [Factorizer(Pencil.of(stiff, sp.diags_array(m)))(0.5).rounding for m in (heavy, light)]
    assert roundings[1] > 1e4 * roundings[0]


def test_a_singular_bound_is_not_moved_far_in_silence(monkeypatch):
    pencil = Pencil.of(chain())
    real = Factorizer.__call__

    def moved(self, shift, *, spacing=None):
        return real(self, 1.95 if abs(shift - 2.5) < 1e-6 else shift, spacing=spacing)

    kind = Definiteness(0, 0, True)
    assert count_below(pencil, Factorizer(pencil), kind, 2.5) == Count(2, True)
    monkeypatch.setattr(Factorizer, "__call__", moved)
    found = count_below(pencil, Factorizer(pencil), kind, 2.5)  # 1.95 has one below, and 2.5 two
    assert not found.exact
    assert found.reason


def test_pivots_are_compared_with_their_own_rows():
    count = certify(sp.diags_array([1.0, 1e16]), None, 0.5, 2.0)
    assert (count.n, count.exact) == (1, True)


def test_two_vectors_that_are_one_prove_nothing():
    pencil = Pencil.of(np.eye(4))
    x = np.eye(4)[:, [0, 1, 1]]
    assert not independent(pencil, x, Count(3, True)).exact
    assert independent(pencil, np.eye(4)[:, :3], Count(3, True)).exact


def test_options_of_the_dense_path_are_heard():
    given = plate(12, 1)
    with pytest.raises(TooManyEigenvaluesError, match="144 eigenvalues"):
        eigs(given.A, given.B, ("below", 1e12), max_count=100)
    with pytest.raises(FillError):
        eigs(given.A, given.B, ("SA", 3), max_bytes=100)
    with pytest.raises(ValueError, match="expected a permutation"):
        eigs(given.A, given.B, ("SA", 3), ordering=np.zeros(144))
    order = eigs(given.A, given.B, ("SA", 3), return_stats=True)[2].ordering
    assert sorted(order) == list(range(144))
    for which in (("nearest", 3.0, 2), ("contour", Contour(0.0, 1.0))):
        with pytest.raises(ValueError, match="predictor= has no use"):
            eigs(given.A, given.B, which, predictor=[1.0, 2.0])


def test_quantiles_of_the_errors_reach_the_contours(monkeypatch):
    given = plate(23, 2)
    exact = scipy.linalg.eigh(given.A.toarray(), given.B.toarray(), eigvals_only=True)[:10]

    class Known:
        def predict(self, fields):
            return exact[None], 0.01 * exact

    seen = []
    from icml_deepcontour import contour_search

    real = contour_search.kde_contours
    monkeypatch.setattr(
        contour_search, "kde_contours", lambda v, q=None, **o: seen.append(q) or real(v, q, **o)
    )
    values, _ = eigs(
        given.A, given.B, ("SA", 8), backend="cirr", predictor=Known(), fields=np.ones((1, 4, 4))
    )
    np.testing.assert_allclose(values, exact[:8], rtol=1e-8)
    np.testing.assert_allclose(seen[0], 0.01 * exact[:8])


def test_other_pencils_are_estimated_by_winding_numbers():
    """Twelve eigenvalues in [1, 2], the others from 10 on; the contour expects one of them."""
    exact = np.concatenate([np.linspace(1, 2, 12), np.arange(10.0, 40.0)]) + 0.1j
    A = sp.csc_array(sp.diags_array(exact) + sp.diags_array(np.full(41, 0.1), offsets=1, shape=(42, 42)))
    contour = Contour(1.5 + 0.1j, 2.0, expected=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        values, _, stats = eigs(A, None, ("contour", contour), return_stats=True)
    np.testing.assert_allclose(values, exact[:12], rtol=1e-4)
    assert (stats.count.n, stats.count.exact, stats.count.missed) == (12, False, 0)
    assert "estimated: winding numbers" in stats.count.reason


def test_too_few_inside_a_contour_are_warned_of(monkeypatch):
    monkeypatch.setattr("icml_deepcontour.contour_search.turns", lambda *a: (99, 0.1))
    guide = waveguide(8, 2, loss=0.5)
    with pytest.warns(RuntimeWarning, match="count 99 eigenvalues"):
        stats = eigs(guide.A, None, ("contour", Contour(-300.0, 400.0)), return_stats=True)[2]
    assert stats.count.missed == 99 - stats.residuals.size


def test_a_range_counts_its_own_vectors():
    pencil = Pencil.of(plate(12, 0).A)
    slicer = Slicer(pencil, Factorizer(pencil), Definiteness(0, 0, False), tol=1e-8, seed=0)
    assert "null vectors" in slicer.unproved
