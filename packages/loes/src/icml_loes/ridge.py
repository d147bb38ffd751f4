"""Ridge regression on Gram matrices: residuals, and errors of leaving each example out, in closed form.

    residual of T = lam (K + lam I)^-1 T,   K = X X^T of centred columns, T of centred targets
    left-out residual of example i = r_i / (1 - h_ii),   H = 1 1^T / n + K (K + lam I)^-1

The dual form of ridge regression; the second line is exact for a fixed X and an intercept without penalty
(Golub, Heath and Wahba 1979, section 2). All solves are in float64: a ridge of 1e-6 or 1e-3 lies below the
rounding of a float32 Gram matrix of norm 1e4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

LOO_GRID = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
"""Ridges that leave-one-out chooses among, relative to the mean eigenvalue."""


def shifted_cholesky(
    k: Float[Tensor, "*batch n n"], shift: float | Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch n n"]:
    """Cholesky factor of K + shift I, K positive semi-definite; what rounding made negative is lifted to 0.

    Raises:
        ValueError: a shift that is not positive.
    """
    amount = torch.as_tensor(shift, dtype=k.dtype, device=k.device)
    if not bool((amount > 0).all()):
        raise ValueError(f"the ridge is {shift}; it must be above 0")
    shifted = k.clone()
    shifted.diagonal(dim1=-2, dim2=-1).add_(amount[..., None])
    factor, info = torch.linalg.cholesky_ex(shifted)
    if bool((info != 0).any()):
        values, vectors = torch.linalg.eigh(k)
        lifted = (values.clamp_min(0) + amount[..., None]).sqrt()
        # Q of the QR decomposition of (V sqrt(L))^T leaves an upper R with R^T R = K + shift I.
        upper = torch.linalg.qr((vectors * lifted[..., None, :]).mT, mode="r")[1]
        factor = (upper * upper.diagonal(dim1=-2, dim2=-1).sign()[..., :, None]).mT
    return factor


def dual_residual(
    k: Float[Tensor, "*batch n n"], targets: Float[Tensor, "n outputs"], lam: float
) -> Float[Tensor, "*batch n outputs"]:
    """lam (K + lam I)^-1 T: what the ridge regression leaves of centred targets.

    Raises:
        ValueError: ``lam`` is not positive.
    """
    factor = shifted_cholesky(k, lam)
    wanted = targets.expand(*k.shape[:-2], *targets.shape)
    return lam * torch.cholesky_solve(wanted, factor)


@dataclass(frozen=True)
class LeftOut:
    """Errors of leaving one example out, at the best ridge.

    Attributes:
        loss: mean squared error over examples and outputs, weighted.
        lam: the ridge, relative to the mean eigenvalue of K.
        prediction: of each example by the fit without it.
    """

    loss: float
    lam: float
    prediction: Float[Tensor, "n outputs"]


def leave_one_out(
    k: Float[Tensor, "n n"],
    targets: Float[Tensor, "n outputs"],
    weights: Float[Tensor, " n"] | None = None,
    grid: tuple[float, ...] = LOO_GRID,
) -> LeftOut:
    """Leave-one-out predictions of weighted ridge regression with an intercept, the best ridge of a grid.

    Args:
        k: Gram matrix of any centring; it is centred by the weighted mean here.
        targets: Y, not centred.
        weights: of the examples, of mean 1; all 1 by default.
        grid: ridges, relative to the mean of the n - 1 eigenvalues that centring leaves.

    Raises:
        ValueError: K is zero; fewer than two examples.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=torch.float64)
        >>> leave_one_out(x @ x.T, x, grid=(1e-9,)).loss < 1e-12
        True
    """
    w = _example_weights(k, weights)
    centred = weighted_gram(k, w)
    scaled_targets = (targets - (w @ targets) / w.sum()) * w.sqrt()[:, None]

    def fitted(lam: float) -> tuple[Tensor, Tensor]:
        inverse = torch.cholesky_inverse(shifted_cholesky(centred, lam))
        return lam * (inverse @ scaled_targets), 1 - lam * inverse.diagonal()

    return _best_ridge(fitted, float(centred.diagonal().sum()), targets, w, grid)


def leave_one_out_columns(
    x: Float[Tensor, "n columns"],
    targets: Float[Tensor, "n outputs"],
    weights: Float[Tensor, " n"] | None = None,
    grid: tuple[float, ...] = LOO_GRID,
) -> LeftOut:
    """What ``leave_one_out`` gives for K = X X^T, from one decomposition of X^T X: for fewer columns than
    rows.

    Args:
        x: columns of any centring; they are centred by the weighted mean here.
        targets: Y, not centred.
        weights: of the examples, of mean 1; all 1 by default.
        grid: ridges, relative to the mean of the n - 1 eigenvalues of K that centring leaves.

    Raises:
        ValueError: X is constant; fewer than two examples.

    Example:
        >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]], dtype=torch.float64)
        >>> leave_one_out_columns(x, x, grid=(1e-9,)).loss < 1e-12
        True
    """
    w = _example_weights(x, weights)
    root = w.sqrt()[:, None]
    scaled_targets = (targets - (w @ targets) / w.sum()) * root
    values, vectors = torch.linalg.eigh((centred := (x - (w @ x) / w.sum()) * root).mT @ centred)
    values, scores = values.clamp_min(0), centred @ vectors
    squares, moments = scores.square(), scores.mT @ scaled_targets

    def fitted(lam: float) -> tuple[Tensor, Tensor]:
        shrunk = 1 / (values + lam)
        return scaled_targets - scores @ (shrunk[:, None] * moments), squares @ shrunk

    return _best_ridge(fitted, float(values.sum()), targets, w, grid)


def _example_weights(like: Tensor, weights: Tensor | None) -> Tensor:
    if len(like) < 2:
        raise ValueError("leaving one example out needs at least two")
    return like.new_ones(len(like)) if weights is None else weights.to(like)


def _best_ridge(
    fitted: Callable[[float], tuple[Tensor, Tensor]],
    trace: float,
    targets: Tensor,
    w: Tensor,
    grid: tuple[float, ...],
) -> LeftOut:
    """Least left-out error; ``fitted`` gives residuals and the leverages of K without the intercept's."""
    mean = trace / (len(w) - 1)
    if not mean > 0:
        raise ValueError("the Gram matrix is zero: the features are constant")
    best: LeftOut | None = None
    for relative in grid:
        residual, leverage = fitted(relative * mean)
        # The intercept's share of h_ii is w_i / sum(w).
        kept = (1 - leverage - w / w.sum()).clamp_min(torch.finfo(w.dtype).eps)
        left_out = residual / kept[:, None]
        loss = float(left_out.square().sum() / (w.sum() * targets.shape[1]))
        if best is None or loss < best.loss:
            best = LeftOut(loss, relative, targets - left_out / w.sqrt()[:, None])
    assert best is not None
    return best


def weighted_gram(
    k: Float[Tensor, "*batch n n"], weights: Float[Tensor, " n"]
) -> Float[Tensor, "*batch n n"]:
    """S H K H^T S: the Gram matrix of rows sqrt(w_i) (x_i - weighted mean), from that of any centring."""
    share = weights / weights.sum()
    row = torch.einsum("n,...nm->...m", share, k)
    whole = torch.einsum("...m,m->...", row, share)
    centred = k - row[..., None, :] - row[..., :, None] + whole[..., None, None]
    root = weights.sqrt()
    return centred * root[:, None] * root[None, :]
