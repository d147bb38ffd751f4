"""Soft elastic barycentres: the series with the least weighted mean distance from given ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize

from icml_idealpoint.ideal_point import Distance
from icml_idealpoint.series import Gaps, Layout, SeriesSet, as_series


@dataclass(frozen=True)
class Barycenter:
    """A barycentre.

    Attributes:
        series: the barycentre.
        loss: the weighted mean of its distances.
        grad_norm: of the loss, 0 at a stationary point.
        n_iter: iterations of L-BFGS.
        problem: what makes it verifiable: its distance, temperature and weights.
    """

    series: Float[np.ndarray, "length channels"]
    loss: float
    grad_norm: float
    n_iter: int
    problem: tuple[Distance, float, np.ndarray]

    def verify(self, X: Any) -> None:
        """Check the loss, and that no given series resampled to this length is better.

        Raises:
            ValueError: the loss is another one, or a given series has a lower one.
        """
        distance, gamma, weights = self.problem
        items = as_series(X)
        found = _loss(items, self.series, distance, gamma, weights)
        if not abs(found - self.loss) <= 1e-6 * max(1.0, abs(found)):
            raise ValueError(f"the loss is {found:.8g}, not {self.loss:.8g}")
        for k in range(len(items)):
            other = _loss(
                items, resampled(items.points(k).numpy(), len(self.series)), distance, gamma, weights
            )
            if other < found - 1e-9 * max(1.0, abs(found)):
                raise ValueError(
                    f"series {k} has a lower loss, {other:.8g}, than the barycentre, {found:.8g}"
                )


class SoftBarycenter:
    """Find barycentres by L-BFGS from the best of the given series.

    Args:
        metric: ``"twed"`` or ``"dtw"``.
        gamma: temperature, in units of the values.
        nu, lam, window, smoothing: of the distance.
        length: points of the barycentre; the median length by default.
        max_iter: iterations.

    Raises:
        ValueError: bad numbers or an unknown metric.
    """

    def __init__(
        self,
        metric: Literal["twed", "dtw"] = "twed",
        *,
        gamma: float = 0.1,
        nu: float = 0.01,
        lam: float = 1.0,
        window: float | int | None = None,
        smoothing: float = 1e-2,
        length: int | None = None,
        max_iter: int = 100,
    ) -> None:
        if metric not in ("twed", "dtw"):
            raise ValueError(f"metric={metric!r} is neither 'twed' nor 'dtw'")
        if length is not None and length < 1:
            raise ValueError(f"length={length} must be at least 1")
        self.distance = Distance(f"soft_{metric}", nu, lam, window, smoothing)
        self.gamma, self.length, self.max_iter = gamma, length, max_iter

    def solve(
        self, X: Any, *, weights: Any = None, layout: Layout = "ntc", nan: Gaps = "raise"
    ) -> Barycenter:
        """The barycentre of X.

        Raises:
            TypeError, ValueError: bad series, or weights that are negative, all 0 or not one a series.
        """
        items = as_series(X, layout=layout, nan=nan)
        share = np.ones(len(items)) if weights is None else np.asarray(weights, dtype=np.float64)
        if (
            share.shape != (len(items),)
            or not np.isfinite(share).all()
            or (share < 0).any()
            or share.sum() == 0
        ):
            raise ValueError(
                f"weights must be {len(items)} numbers of at least 0, not all 0; got {share.tolist()[:8]}"
            )
        share = share / share.sum()
        length = self.length or int(items.lengths.median())
        starts = [resampled(items.points(k).numpy(), length) for k in np.argsort(-share)[:8]]
        first = min(starts, key=lambda start: _loss(items, start, self.distance, self.gamma, share))
        shape = first.shape
        weight = torch.from_numpy(share)

        def value_and_gradient(flat: np.ndarray) -> tuple[float, np.ndarray]:
            ideal = torch.from_numpy(flat.reshape(1, *shape)).requires_grad_()
            loss = (self.distance(items, ideal, self.gamma)[0] * weight).sum()
            (gradient,) = torch.autograd.grad(loss, ideal)
            return float(loss.detach()), gradient.numpy().ravel()

        done = minimize(
            value_and_gradient, first.ravel(), jac=True, method="L-BFGS-B", options={"maxiter": self.max_iter}
        )
        norm = float(np.linalg.norm(done.jac))
        return Barycenter(
            done.x.reshape(shape), float(done.fun), norm, int(done.nit), (self.distance, self.gamma, share)
        )


def barycenter(
    X: Any, weights: Any = None, metric: Literal["twed", "dtw"] = "twed", **options: Any
) -> Barycenter:
    """:class:`SoftBarycenter` in one call; options are its arguments.

    Example:
        >>> barycenter([[0.0, 1.0, 2.0], [0.0, 1.0, 2.0]]).series.shape
        (3, 1)
    """
    return SoftBarycenter(metric, **options).solve(X, weights=weights)


def resampled(
    series: Float[np.ndarray, "points channels"], length: int
) -> Float[np.ndarray, "length channels"]:
    """The series at ``length`` equally spaced places, by straight lines; NaN is bridged."""
    old = np.linspace(0, 1, len(series)) if len(series) > 1 else np.zeros(1)
    new = np.linspace(0, 1, length)
    columns = []
    for column in series.T:
        known = ~np.isnan(column)
        columns.append(np.interp(new, old[known], column[known]) if known.any() else np.zeros(length))
    return np.stack(columns, axis=1)


def _loss(
    items: SeriesSet, series: np.ndarray, distance: Distance, gamma: float, weights: np.ndarray
) -> float:
    near = distance(items, torch.from_numpy(np.ascontiguousarray(series))[None], gamma)[0]
    return float((near * torch.from_numpy(weights)).sum())
