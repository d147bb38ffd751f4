"""Predicted fill beside what SuperLU makes, and the refusal before anything is allocated."""

from __future__ import annotations

import time
import tracemalloc

import pytest
import scipy.sparse as sp
from icml_deepcontour import FillError, eigs
from icml_deepcontour.datasets import graph_laplacian, laplacian, plate
from icml_deepcontour.factorization import symmetric_lu
from icml_deepcontour.fill import INT32, check_fill, predict_fill


@pytest.mark.parametrize(
    "matrix",
    [
        plate(60, 0).A,
        laplacian((90, 90)),
        laplacian((14, 15, 16)),
        graph_laplacian(4000, 0).A,
        laplacian((2000,)),
    ],
    ids=["plate", "square", "box", "graph", "line"],
)
def test_prediction_is_within_a_factor_of_what_superlu_makes(matrix):
    matrix = sp.csc_array(matrix + 1e-3 * abs(matrix).max() * sp.eye_array(matrix.shape[0]))
    actual = symmetric_lu(matrix, "MMD_AT_PLUS_A").nnz
    assert 0.4 < predict_fill(matrix).entries / actual < 2.5


def test_a_box_that_does_not_fit_is_refused_at_once():
    A = laplacian((40, 40, 40))
    tracemalloc.start()
    begin = time.perf_counter()
    with pytest.raises(
        FillError, match=r"entries, .* GiB, above the limit.*nothing has been allocated"
    ) as caught:
        eigs(A, None, ("SA", 5), max_bytes=2e7)
    taken, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 3  # traced; below 1 s without
    assert caught.value.n_bytes > 2e7
    assert peak < caught.value.n_bytes / 2
    assert isinstance(caught.value, MemoryError)
    assert "factorize=" in str(caught.value)


def test_overflow_of_indices_has_its_own_text(monkeypatch):
    monkeypatch.setattr("icml_deepcontour.fill.INT32", 10_000)
    with pytest.raises(FillError, match="32-bit indices"):
        check_fill(laplacian((40, 40)), None)
    assert INT32 == 2**31 - 1


def test_what_surely_fits_is_not_looked_at():
    check_fill(laplacian((10, 10)), 1e9)
    with pytest.raises(FillError):
        check_fill(laplacian((30, 30)), 1e4)


def test_entries_and_not_bytes_are_compared_with_the_indices(monkeypatch):
    """n^2 entries fit 32-bit indices although their bytes are more than that."""
    n = 40
    monkeypatch.setattr("icml_deepcontour.fill.INT32", n**4 + 1)
    monkeypatch.setattr("icml_deepcontour.fill.predict_fill", lambda *a, **k: pytest.fail("looked at"))
    check_fill(laplacian((n, n)), 1e12)
