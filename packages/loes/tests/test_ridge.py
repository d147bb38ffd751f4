"""Leave-one-out errors against fits without each example; factorisations of degenerate Gram matrices."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_loes.ridge import (
    dual_residual,
    leave_one_out,
    leave_one_out_columns,
    shifted_cholesky,
    weighted_gram,
)
from sklearn.linear_model import Ridge


def data(n: int, dim: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=g, dtype=torch.float64) + 0.7
    return x, torch.randn(n, 2, generator=g, dtype=torch.float64)


def by_gram(x, *args, **options):
    return leave_one_out(x @ x.T, *args, **options)


@pytest.mark.parametrize("of", [by_gram, leave_one_out_columns])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("n", "dim"), [(12, 4), (8, 20), (3, 1)])
def test_each_left_out_prediction_is_that_of_a_fit_without_it(n, dim, weighted, of):
    x, y = data(n, dim)
    w = torch.rand(n, generator=torch.Generator().manual_seed(1), dtype=torch.float64) + 0.5
    w = w / w.mean() if weighted else torch.ones_like(w)
    found = of(x, y, w, grid=(0.2,))
    lam = 0.2 * float(weighted_gram(x @ x.T, w).diagonal().sum()) / (n - 1)
    errors = []
    for i in range(n):
        rest = np.arange(n) != i
        ridge = Ridge(alpha=lam).fit(x[rest].numpy(), y[rest].numpy(), sample_weight=w[rest].numpy())
        predicted = ridge.predict(x[i : i + 1].numpy())[0]
        np.testing.assert_allclose(found.prediction[i].numpy(), predicted, rtol=1e-8, atol=1e-10)
        errors.append(float(w[i]) * ((predicted - y[i].numpy()) ** 2).mean())
    assert found.loss == pytest.approx(np.mean(errors), rel=1e-8)


def test_the_best_ridge_of_the_grid_is_taken():
    x, y = data(30, 5)
    losses = {lam: leave_one_out(x @ x.T, y, grid=(lam,)).loss for lam in (1e-3, 0.1, 10.0)}
    found = leave_one_out(x @ x.T, y, grid=tuple(losses))
    assert found.loss == min(losses.values())
    assert losses[found.lam] == found.loss


def test_columns_and_gram_matrix_give_one_error_where_columns_repeat():
    x, y = data(30, 4)
    x = torch.cat([x, x[:, :2], torch.zeros(30, 1, dtype=torch.float64)], 1)
    dual, primal = by_gram(x, y), leave_one_out_columns(x, y)
    assert dual.lam == primal.lam
    assert dual.loss == pytest.approx(primal.loss, rel=1e-10)
    torch.testing.assert_close(dual.prediction, primal.prediction)


def test_dual_residual_is_that_of_a_primal_ridge():
    x, y = data(20, 6)
    x, y = x - x.mean(0), y - y.mean(0)
    ridge = Ridge(alpha=0.4, fit_intercept=False).fit(x.numpy(), y.numpy())
    expected = y.numpy() - ridge.predict(x.numpy())
    np.testing.assert_allclose(dual_residual(x @ x.T, y, 0.4).numpy(), expected, rtol=1e-10, atol=1e-12)


def test_weighted_gram_is_that_of_weighted_rows():
    x, _ = data(9, 4)
    w = torch.rand(9, dtype=torch.float64, generator=torch.Generator().manual_seed(2)) + 0.1
    rows = (x - (w @ x) / w.sum()) * w.sqrt()[:, None]
    for offset in (0.0, 5.0):
        torch.testing.assert_close(weighted_gram((x + offset) @ (x + offset).T, w), rows @ rows.T)


def test_a_matrix_that_rounding_made_indefinite_is_factorised():
    x, _ = data(12, 3)
    k = 1e9 * (x @ x.T)
    k = k - 1e-4 * torch.eye(12, dtype=torch.float64)  # as far from definite as rounding of 1e9 goes
    factor = shifted_cholesky(k, 1e-6)
    assert bool(torch.isfinite(factor).all())
    torch.testing.assert_close(factor @ factor.mT, k, rtol=1e-6, atol=1e-3)
    assert torch.equal(factor, factor.tril())


def test_bad_input():
    x, y = data(5, 2)
    with pytest.raises(ValueError, match="above 0"):
        dual_residual(x @ x.T, y, 0.0)
    with pytest.raises(ValueError, match="zero"):
        leave_one_out(torch.zeros(5, 5, dtype=torch.float64), y)
    with pytest.raises(ValueError, match="at least two"):
        leave_one_out(torch.ones(1, 1, dtype=torch.float64), y[:1])
    with pytest.raises(ValueError, match="zero"):
        leave_one_out_columns(torch.zeros(5, 3, dtype=torch.float64), y)
    with pytest.raises(ValueError, match="at least two"):
        leave_one_out_columns(torch.ones(1, 1, dtype=torch.float64), y[:1])
