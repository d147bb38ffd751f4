"""`eigs` against dense LAPACK: every request, clusters, zero modes, guesses of any quality, constraints."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_deepcontour import EigenConvergenceError, TooManyEigenvaluesError, eigs
from icml_deepcontour.datasets import (
    elastic_block,
    graph_laplacian,
    laplacian,
    piezo,
    plate,
    uniform_plate,
    waveguide,
)
from scipy.sparse import csgraph
from scipy.sparse.linalg import LinearOperator, splu


def dense(given):
    B = None if given.B is None else given.B.toarray()
    return scipy.linalg.eigh(given.A.toarray(), B, eigvals_only=True)


def assert_right(A, B, exact, result, rtol=1e-8):
    values, vectors, stats = result
    np.testing.assert_allclose(values, exact, rtol=rtol, atol=rtol * abs(exact).max(initial=0))
    assert stats.residuals.max(initial=0) <= 1e-8
    assert stats.orthogonality < 1e-9
    assert stats.count is not None
    assert stats.count.exact
    B = sp.eye_array(A.shape[0]) if B is None else B
    small = vectors.conj().T @ (A @ vectors)
    np.testing.assert_allclose(small, np.diag(exact), atol=1e-8 * max(abs(exact).max(initial=0), 1e-300))


REQUESTS = [("SA", 30), ("range", 1e4, 9e4), ("below", 4e4), ("nearest", 5e4, 12), ("range", -5.0, 100.0)]


@pytest.mark.parametrize("which", REQUESTS, ids=str)
@pytest.mark.parametrize("seed", [0, 1])
def test_every_request_equals_dense_lapack(which, seed):
    given = plate(26, seed)
    exact = dense(given)
    wanted = {
        "SA": lambda k: exact[:k],
        "range": lambda a, b: exact[(exact >= a) & (exact < b)],
        "below": lambda b: exact[exact < b],
        "nearest": lambda s, k: np.sort(exact[np.argsort(abs(exact - s))[:k]]),
    }[which[0]](*which[1:])
    result = eigs(given.A, given.B, which, backend="slice", return_stats=True)
    assert_right(given.A, given.B, wanted, result)
    assert result[1].shape == (676, len(wanted))


@settings(max_examples=15, deadline=None)
@given(st.integers(0, 2**31), st.integers(520, 640), st.integers(1, 12), st.booleans())
def test_random_indefinite_pencils(seed, n, k, with_b):
    rng = np.random.default_rng(seed)
    A = sp.random_array((n, n), density=0.01, rng=rng, data_sampler=rng.standard_normal)
    A = sp.csc_array(A + A.T + sp.diags_array(rng.standard_normal(n)))
    B = sp.diags_array(rng.uniform(0.5, 2, n)) if with_b else None
    exact = scipy.linalg.eigh(A.toarray(), None if B is None else B.toarray(), eigvals_only=True)[:k]
    assert_right(A, B, exact, eigs(A, B, ("SA", k), return_stats=True))


def test_free_block_six_zero_modes_and_pairs():
    block = elastic_block((6, 5, 5))
    exact = dense(block)[:20]
    result = eigs(block.A, block.B, ("SA", 20), return_stats=True)
    assert_right(block.A, block.B, exact, result)
    assert (np.abs(result[0][:6]) < 1e-9).all()
    assert result[0][6] > 1e-3


def test_neumann_square_double_pairs():
    n = 25
    A = laplacian((n, n), neumann=True)
    line = 4 * n**2 * np.sin(np.pi * np.arange(n) / (2 * n)) ** 2
    exact = np.sort((line[:, None] + line).ravel())
    for which, wanted in ((("SA", 11), exact[:11]), (("range", 0.0, 200.0), exact[exact < 200])):
        assert_right(A, None, wanted, eigs(A, None, which, return_stats=True))


def test_planted_triples_are_complete_from_every_start():
    rng = np.random.default_rng(0)
    n = 600
    values = np.sort(rng.uniform(10, 1000, n))
    for at, gap in ((3, 1e-5), (12, 1e-7)):
        values[at : at + 3] = values[at] * (1 + gap * np.arange(3))
    values.sort()
    mix = sp.diags_array([np.full(n - 1, 0.3)], offsets=[1], shape=(n, n)) * 0.0
    q = sp.csc_array(sp.eye_array(n) + mix)
    A = sp.csc_array(q @ sp.diags_array(values) @ q.T)
    # A random orthogonal mixture of neighbours, so that the eigenvectors are no unit vectors.
    turn = sp.block_diag([scipy.linalg.qr(rng.normal(size=(4, 4)))[0] for _ in range(n // 4)], format="csc")
    order = rng.permutation(n)
    A = sp.csc_array(turn @ A[order][:, order] @ turn.T)
    A = (A + A.T) / 2
    for seed in range(20):
        found, _, stats = eigs(A, None, ("SA", 18), random_state=seed, return_stats=True)
        np.testing.assert_allclose(found, values[:18], rtol=1e-11)
        assert stats.count.exact


def test_a_cluster_may_be_cut_by_k():
    """18 values of which the last belong to a pair: any member will do, and nothing below may be missing."""
    given = uniform_plate(25)
    exact = dense(given)
    for k in (2, 5, 6, 10):
        values, _, stats = eigs(given.A, given.B, ("SA", k), backend="slice", return_stats=True)
        np.testing.assert_allclose(values, exact[:k], rtol=1e-8)
        assert stats.count.exact
    assert (1, 3) in eigs(given.A, given.B, ("SA", 6), backend="slice", return_stats=True)[2].clusters


@pytest.mark.parametrize("k", range(1, 11))
def test_gram_matrix_of_low_rank(k):
    """504 x 504 of rank 78: the smallest eigenvalue 0 has multiplicity 426."""
    root = np.random.default_rng(0).normal(size=(504, 78))
    A = root @ root.T
    exact = np.linalg.eigvalsh(A)
    values, vectors, stats = eigs(A, None, ("SA", k), return_stats=True)
    np.testing.assert_allclose(values, 0.0, atol=1e-9 * exact[-1])
    assert stats.residuals.max() <= 1e-8
    if k in (1, 5, 10):
        top, _ = eigs(-A, None, ("SA", k))
        np.testing.assert_allclose(-top, exact[::-1][:k], rtol=1e-9)
    assert np.abs(vectors.T @ vectors - np.eye(k)).max() < 1e-10


@pytest.mark.parametrize("off", [0.0, 1e-15, 1e-13, 1e-9])
@pytest.mark.parametrize("make", [plate, lambda n, seed: uniform_plate(n)], ids=["plate", "double values"])
def test_nearest_to_an_eigenvalue_itself(make, off):
    """The factors are singular there to all digits, and one theta drowns the others."""
    given = make(26, 1)
    exact = dense(given)
    for at, k in ((0, 1), (20, 12), (55, 4)):
        sigma = float(exact[at] * (1 + off))
        values, _, stats = eigs(given.A, given.B, ("nearest", sigma, k), backend="slice", return_stats=True)
        wanted = np.sort(np.abs(exact - sigma))[:k]
        np.testing.assert_allclose(np.sort(np.abs(values - sigma)), wanted, atol=1e-8 * sigma)
        assert stats.residuals.max() <= 1e-8
        assert stats.count.exact


@pytest.mark.parametrize("normed", [True, False])
def test_graph_of_neighbours_as_scikit_learn_makes_it(normed):
    """Ten thousand points in three far clouds: three zero modes, A singular, no option needed."""
    points = np.random.default_rng(0).normal(size=(10_000, 2)) + 100.0 * (np.arange(10_000)[:, None] % 3)
    neighbours = pytest.importorskip("sklearn.neighbors")
    graph = neighbours.kneighbors_graph(points, 10, include_self=True)
    A = csgraph.laplacian(sp.csr_array((graph + graph.T) / 2), normed=normed)
    parts = csgraph.connected_components(graph)[0]
    assert parts >= 3
    values, vectors, stats = eigs(A, None, ("SA", parts + 4), return_stats=True)
    np.testing.assert_allclose(values[:parts], 0.0, atol=1e-11)
    assert values[parts] > 1e-6
    assert stats.count.exact
    assert stats.residuals.max() <= 1e-8
    assert np.linalg.norm(A @ vectors - vectors * values, axis=0).max() < 1e-9


def test_negative_spectra_need_no_shift_from_the_user():
    guide = waveguide(26, 4)
    exact = dense(guide)
    assert exact[0] < -100
    assert_right(guide.A, None, exact[:9], eigs(guide.A, None, ("SA", 9), return_stats=True))
    far = sp.csc_array(guide.A + 1e6 * sp.eye_array(676))
    result = eigs(far, None, ("SA", 9), return_stats=True)
    np.testing.assert_allclose(result[0], exact[:9] + 1e6, rtol=1e-10)


def test_disconnected_graphs_have_a_zero_for_every_part():
    one = graph_laplacian(300, 1)
    A = sp.csc_array(sp.block_diag([one.A] * 3))
    values, _ = eigs(A, None, ("SA", 8))
    np.testing.assert_allclose(values, np.linalg.eigvalsh(A.toarray())[:8], atol=1e-9)


def test_complex_hermitian_pencil():
    given = plate(24, 0)
    rng = np.random.default_rng(0)
    phase = sp.diags_array(np.exp(1j * rng.uniform(0, 6, 576)))
    A = sp.csc_array(phase @ given.A @ phase.conj().T)
    exact = dense(given)[:12]
    values, vectors, stats = eigs(A, given.B, ("SA", 12), return_stats=True)
    np.testing.assert_allclose(values, exact, rtol=1e-8)
    assert stats.count.exact
    largest = vectors[np.argmax(abs(vectors), axis=0), np.arange(12)]
    np.testing.assert_allclose(largest, abs(largest), atol=1e-12)


def test_singular_b_leaves_infinite_eigenvalues_out():
    given, condensed = piezo(16, 2), piezo(16, 2, condensed=True)
    exact = dense(condensed)[:15]
    values, _vectors, stats = eigs(given.A, given.B, ("SA", 15), return_stats=True)
    np.testing.assert_allclose(values, exact, rtol=1e-8)
    assert stats.infinite == int((given.B.diagonal() == 0).sum())
    assert stats.count.exact
    assert stats.orthogonality < 1e-9
    inside, _, found = eigs(given.A, given.B, ("range", float(exact[3]), float(exact[9])), return_stats=True)
    np.testing.assert_allclose(inside, exact[3:9], rtol=1e-8)
    assert found.count.n == 6


def beam(elements, joined=True):
    """Clamped-free Euler beam [w, slope], EI = rho A = length = 1; cut in the middle without `joined`."""
    h = 1 / elements
    k = np.array([[12, 6 * h, -12, 6 * h], [6 * h, 4 * h**2, -6 * h, 2 * h**2], [-12, -6 * h, 12, -6 * h],
                  [6 * h, 2 * h**2, -6 * h, 4 * h**2]]) / h**3  # fmt: skip
    m = np.array([[156, 22 * h, 54, -13 * h], [22 * h, 4 * h**2, 13 * h, -3 * h**2], [54, 13 * h, 156, -22 *
    h],
                  [-13 * h, -3 * h**2, -22 * h, 4 * h**2]]) * h / 420  # fmt: skip
    nodes = elements + (1 if joined else 2)
    K, M = (sp.lil_array((2 * nodes, 2 * nodes)) for _ in range(2))
    for e in range(elements):
        first = e if joined or e < elements // 2 else e + 1
        place = np.arange(2 * first, 2 * first + 4)
        K[np.ix_(place, place)] += k
        M[np.ix_(place, place)] += m
    return sp.csc_array(K), sp.csc_array(M)


def test_a_rigid_joint_by_constraints_equals_the_unsplit_beam():
    elements = 24
    K, M = beam(elements)
    exact, _ = eigs(K[2:, 2:], M[2:, 2:], ("SA", 6), backend="slice")
    # Cantilever: cos(x) cosh(x) = -1.
    roots = np.array([1.8751040687, 4.6940911330, 7.8547574382])
    np.testing.assert_allclose(exact[:3], roots**4, rtol=1e-4)
    split_k, split_m = beam(elements, joined=False)
    n = split_k.shape[0]
    left, right = 2 * (elements // 2), 2 * (elements // 2) + 2
    rows = [({left: 1.0, right: -1.0}), ({left + 1: 1.0, right + 1: -1.0}), ({0: 1.0}), ({1: 1.0})]
    rows.append({left: 2.0, right: -2.0})  # said twice: recognised
    C = sp.lil_array((len(rows), n))
    for i, row in enumerate(rows):
        for j, value in row.items():
            C[i, j] = value
    values, vectors, stats = eigs(
        split_k, split_m, ("SA", 6), eliminate=C, backend="slice", return_stats=True
    )
    np.testing.assert_allclose(values, exact, rtol=1e-8)
    assert vectors.shape == (n, 6)
    assert abs(C @ vectors).max() < 1e-12 * abs(vectors).max()
    for matrix, diagonal in ((split_k, values), (split_m, np.ones(6))):
        small = vectors.T @ (matrix @ vectors)
        scale = np.sqrt(np.outer(diagonal, diagonal))
        assert np.abs(small / scale - np.eye(6)).max() < 1e-8
    assert stats.count.exact


@pytest.mark.parametrize("kind", ["exact", "noisy", "garbage", "few", "huge", "equal"])
def test_guesses_cost_time_never_correctness(kind):
    given = plate(26, 5)
    exact = dense(given)
    rng = np.random.default_rng(0)
    guesses = {
        "exact": exact[:35],
        "noisy": exact[:35] * (1 + 0.05 * rng.standard_normal(35)),
        "garbage": rng.uniform(1e-3, 1e9, 35),
        "few": exact[:3],
        "huge": exact[:35] * 1e3,
        "equal": np.full(30, exact[10]),
    }[kind]
    for which, wanted in (
        (("SA", 30), exact[:30]),
        (("range", 1e4, 6e4), exact[(exact >= 1e4) & (exact < 6e4)]),
    ):
        result = eigs(given.A, given.B, which, predictor=guesses, backend="slice", return_stats=True)
        assert_right(given.A, given.B, wanted, result)


def test_many_eigenvalues_are_found_in_slices_bit_for_bit_with_any_workers():
    given = plate(32, 6)
    exact = dense(given)[:150]
    results = [eigs(given.A, given.B, ("SA", 150), workers=w, return_stats=True) for w in (1, 2, 4)]
    assert results[0][2].slices >= 2
    assert_right(given.A, given.B, exact, results[0])
    for values, vectors, _ in results[1:]:
        assert np.array_equal(values, results[0][0])
        assert np.array_equal(vectors, results[0][1])


def test_the_same_input_gives_the_same_bits_and_signs():
    given = plate(26, 7)
    first, second = (eigs(given.A, given.B, ("SA", 12)) for _ in range(2))
    assert np.array_equal(first[1], second[1])
    vectors = first[1]
    assert (vectors[np.argmax(abs(vectors), axis=0), np.arange(12)] > 0).all()


def drifting_plates(n, steps, seed):
    """Pencils whose stiffness changes by up to 1 % from one to the next."""
    rng = np.random.default_rng(seed)
    line = np.arange(1, n + 1) / (n + 1)
    x, y = np.meshgrid(line, line, indexing="ij")
    D = 1 + 0.5 * np.sin(2 * np.pi * (x + 0.3)) * np.cos(2 * np.pi * (y + 0.1))
    L = laplacian((n, n))
    for _ in range(steps):
        A = sp.csc_array(L @ sp.diags_array(D.ravel()) @ L)
        yield sp.csc_array((A + A.T) / 2)
        i, j = rng.integers(1, 4, size=2)
        D = D * (1 + 0.01 * np.cos(2 * np.pi * (i * x + j * y + rng.uniform())))


def test_a_basis_of_the_last_pencil_saves_solves_and_a_stale_one_costs_no_pair():
    n, k = 25, 12
    B = plate(n, 8).B
    last = None
    warm = cold = 0
    for step, A in enumerate(drifting_plates(n, 20, 0)):
        plain = eigs(A, B, ("SA", k), backend="slice", return_stats=True)
        if last is not None:
            chained = eigs(A, B, ("SA", k), X0=last, backend="slice", return_stats=True)
            warm, cold = warm + chained[2].solves, cold + plain[2].solves
            exact = plain[0]
            if step % 6 == 0:
                exact = scipy.linalg.eigh(
                    A.toarray(), B.toarray(), eigvals_only=True, subset_by_index=[0, k - 1]
                )
            assert_right(A, B, exact, chained)
        last = plain[2].basis
    assert warm < 0.8 * cold
    rng = np.random.default_rng(0)
    for start in (
        rng.normal(size=(n**2, 20)),
        np.ones((n**2, 1)),
        last[:, :3],
        np.repeat(last[:, :1], 9, axis=1),
    ):
        assert_right(A, B, plain[0], eigs(A, B, ("SA", k), X0=start, backend="slice", return_stats=True))


def test_an_empty_window_has_an_empty_answer():
    given = plate(26, 9)
    values, vectors, stats = eigs(given.A, given.B, ("range", -10.0, 1.0), return_stats=True, backend="slice")
    assert values.shape == (0,)
    assert vectors.shape == (676, 0)
    assert (stats.count.n, stats.count.exact) == (0, True)
    assert eigs(given.A, given.B, ("below", -1.0), backend="slice")[0].shape == (0,)


def test_factors_of_the_users_own():
    given = plate(26, 10)
    calls = []

    def factorize(sigma):
        lu = splu(sp.csc_array(given.A - sigma * given.B))
        calls.append(sigma)
        return lu.solve, int((np.linalg.eigvalsh((given.A - sigma * given.B).toarray()) < 0).sum())

    exact = dense(given)[:8]
    assert_right(
        given.A, given.B, exact, eigs(given.A, given.B, ("SA", 8), factorize=factorize, return_stats=True)
    )
    assert calls
    values, _, stats = eigs(
        given.A, given.B, ("SA", 8), factorize=lambda s: (factorize(s)[0], None), return_stats=True
    )
    np.testing.assert_allclose(values, exact, rtol=1e-8)
    assert not stats.count.exact
    assert "negative_count" in stats.count.reason


def test_an_order_of_elimination_serves_the_next_pencil():
    first, second = plate(26, 11), plate(26, 12)
    stats = eigs(first.A, first.B, ("SA", 8), backend="slice", return_stats=True)[2]
    result = eigs(second.A, second.B, ("SA", 8), backend="slice", ordering=stats.ordering, return_stats=True)
    assert_right(second.A, second.B, dense(second)[:8], result)


def test_everything_of_a_small_pencil():
    given = plate(6, 0)
    exact = dense(given)
    values, vectors = eigs(given.A, given.B, ("SA", 36))
    np.testing.assert_allclose(values, exact, rtol=1e-9)
    assert vectors.shape == (36, 36)
    assert eigs(sp.csc_array([[3.0]]), None, ("SA", 1))[0].tolist() == [3.0]


def test_no_convergence_carries_what_was_found(monkeypatch):
    from icml_deepcontour import slices

    monkeypatch.setattr(slices, "ENLARGEMENTS", 0)
    real = slices.Slicer._iterate

    def hurried(self, run, wanted, total, strict):
        for _ in range(3):
            run.step()
        ritz = run.ritz()
        return ritz, slices.converged(ritz, wanted, run, self.allowed(run, ritz, strict))[0], False

    given = plate(26, 13)
    monkeypatch.setattr(slices.Slicer, "_iterate", hurried)
    with pytest.raises(EigenConvergenceError, match="reached tol") as caught:
        eigs(given.A, given.B, ("SA", 30), backend="slice")
    assert len(caught.value.eigenvalues) == caught.value.eigenvectors.shape[1] < 30
    monkeypatch.setattr(slices.Slicer, "_iterate", real)
    assert len(eigs(given.A, given.B, ("SA", 30), backend="slice")[0]) == 30


PLATE = plate(23, 0)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"which": ("SM", 3)}, ValueError, "which="),
        ({"which": ("SA", 0)}, ValueError, "k must be a whole number"),
        ({"which": ("SA", 1000)}, ValueError, "at most 529 eigenvalues"),
        ({"which": ("range", 3.0, 1.0)}, ValueError, "give a < b"),
        ({"which": ("range", 0.0, np.inf)}, ValueError, "not finite"),
        ({"which": ("below", "x")}, ValueError, "is no number"),
        ({"which": "SA"}, ValueError, "expected"),
        ({"backend": "magic"}, ValueError, "backend='magic' is none of"),
        ({"tol": 0.0}, ValueError, "tol=0.0"),
        ({"workers": 0}, ValueError, "workers=0"),
        ({"max_count": 0}, ValueError, "max_count=0"),
        ({"predictor": [np.nan]}, ValueError, "finite predicted eigenvalues"),
        ({"fields": np.ones((1, 4, 4))}, ValueError, "fields= is read by a Predictor"),
        ({"X0": np.ones((3, 2))}, ValueError, r"X0 has shape \[3, 2\]"),
        ({"X0": np.full((529, 2), np.nan)}, ValueError, "X0 has entries"),
        ({"backend": "cirr", "X0": np.ones((529, 2))}, ValueError, "X0= has no use"),
        ({"backend": "cirr", "which": ("nearest", 1.0, 3)}, ValueError, "nearest"),
        ({"eliminate": np.ones((1, 3))}, ValueError, "eliminate has shape"),
        ({"eliminate": sp.eye_array(529)}, ValueError, "leaves no unknown free"),
        ({"ordering": np.zeros(529)}, ValueError, "expected a permutation"),
        ({"sigma": 0.0}, TypeError, "sigma"),
        ({"factorize": lambda s: (3, 0)}, TypeError, "solve is not callable"),
        ({"which": ("below", 1e12), "max_count": 100}, TooManyEigenvaluesError, "529 eigenvalues by inertia"),
    ],
)
def test_bad_options_are_refused_before_work_starts(options, error, message):
    with pytest.raises(error, match=message):
        eigs(PLATE.A, PLATE.B, **{"which": ("SA", 3), **options})


def test_operators_are_refused_with_what_to_pass_instead():
    operator = LinearOperator((529, 529), matvec=lambda x: x)
    with pytest.raises(TypeError, match="factorize=f"):
        eigs(operator, None, ("SA", 3))


def test_hermitian_requests_refuse_other_matrices():
    with pytest.raises(ValueError, match=r'not Hermitian.*backend="cirr"'):
        eigs(sp.csc_array(np.triu(np.ones((5, 5)))), None, ("SA", 2))
