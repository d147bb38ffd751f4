"""The greedy step in n x n Gram matrices: for n up to the width of what is chosen.

    K_S = sum of K_j over the chosen,   P = eps (K_S + eps I)^-1,   Kt_l = P K_l P
    residual of R = lam (Kt_l + lam I)^-1 R,   centroids of Xt_l have the Gram matrix A Kt_l A^T

Each equals its counterpart of the paper: X (X^T X + eps I)^-1 X^T = X X^T (X X^T + eps I)^-1. Widths may
differ between layers, since only sums of Gram matrices occur.

Where the chosen leave next to nothing, tr Kt_l = <P P^T, K_l> is far below lam, and neither Kt_l nor its
factor is needed: the residual is the geometric series R - Kt_l R / lam + ..., to rounding after a few terms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_loes.ridge import LOO_GRID, leave_one_out, shifted_cholesky
from icml_loes.triangles import mean_area

CHUNK_BYTES = 256 << 20
"""Candidates are worked on in groups of so many bytes of Gram matrices."""
SERIES_BELOW = 1e-2
"""Part of lam below which the trace of a complement must lie for the geometric series."""


class DualComplements:
    """Candidates' losses and areas in the orthogonal complement of the chosen layers.

    Args:
        gram: gives K_l, centred (and weighted), float64.
        roots: square roots of the examples' weights; K_l maps them to 0.
        centroids: A, averaging unweighted examples within classes; None where there is no triangle.
        reg: lam of the ridge.
        orth_reg: eps, or ``"auto"``: relative to the mean eigenvalue of K_S, by leave-one-out on ``targets``.
        targets: centred Y in weighted form, which ``"auto"`` needs.
    """

    def __init__(
        self,
        gram: Callable[[int], Float[Tensor, "n n"]],
        roots: Float[Tensor, " n"],
        centroids: Float[Tensor, "classes n"] | None,
        *,
        reg: float,
        orth_reg: float | str,
        targets: Float[Tensor, "n outputs"] | None,
    ) -> None:
        self._gram, self._roots, self._reg, self._orth_reg = gram, roots, reg, orth_reg
        self._targets = targets
        self._centroids = None if centroids is None else centroids / roots
        self._chosen: Tensor | None = None
        self._projector: Tensor | None = None
        self._square: Tensor | None = None
        self.rank = 0
        self.left_over = 1.0
        self.epsilon = orth_reg if isinstance(orth_reg, float) else 0.0

    def add(self, layer: int) -> None:
        """Take a layer into what candidates are orthogonal to."""
        k = self._gram(layer)
        self._chosen = k.clone() if self._chosen is None else self._chosen + k
        values, vectors = torch.linalg.eigh(self._chosen)
        tiny = len(values) * torch.finfo(values.dtype).eps * float(values[-1])
        values = torch.where(values > tiny, values, 0.0)
        self.rank = int((values > 0).sum())
        if isinstance(self._orth_reg, str):
            self.epsilon = self._left_out_epsilon(values)
        projector = (vectors * (self.epsilon / (values + self.epsilon))) @ vectors.mT
        # The mean's direction belongs to no candidate; without it nothing of it is rounded into one.
        unit = self._roots / self._roots.norm()
        self._projector = projector - torch.outer(projector @ unit, unit)
        self._square = self._projector @ self._projector.mT

    def losses(
        self,
        candidates: Sequence[int],
        residual: Float[Tensor, "n outputs"] | None,
        triples: Int[Tensor, "triples 3"],
    ) -> tuple[Float[Tensor, " candidates"], Float[Tensor, " candidates"]]:
        """Mean squared error of the ridge on each candidate's complement, and the mean area of its
        centroids."""
        if residual is None:
            nothing = self._roots.new_zeros(len(candidates))
            return nothing, nothing
        whole = torch.stack([self._gram(c).diagonal().sum() for c in candidates])
        left = whole if self._square is None else torch.stack([self._trace(c) for c in candidates])
        self.left_over = float((left / whole).max())
        ratio = float(left.max()) / self._reg
        if ratio < SERIES_BELOW:
            areas = torch.cat([self._small_areas(c, triples) for c in candidates])
            found = [self._series(c, residual, ratio).square().mean() for c in candidates]
            return torch.stack(found), areas
        losses, areas_of = [], []
        size = max(1, CHUNK_BYTES // (8 * len(self._roots) ** 2))
        for first in range(0, len(candidates), size):
            k = torch.stack([self._complement(c) for c in candidates[first : first + size]])
            areas_of.append(self._areas(k, triples))
            repeated = residual.expand(len(k), *residual.shape)
            solved = torch.cholesky_solve(repeated, shifted_cholesky(k, self._reg))
            losses.append((self._reg * solved).square().mean((1, 2)))
        return torch.cat(losses), torch.cat(areas_of)

    def prediction(self, layer: int, residual: Float[Tensor, "n outputs"]) -> Float[Tensor, "n outputs"]:
        """Ridge prediction of the residual from the layer's complement, weighted."""
        if self._square is not None and (ratio := float(self._trace(layer)) / self._reg) < SERIES_BELOW:
            return residual - self._series(layer, residual, ratio)
        factor = shifted_cholesky(self._complement(layer), self._reg)
        return residual - self._reg * torch.cholesky_solve(residual, factor)

    def _complement(self, layer: int) -> Tensor:
        k = self._gram(layer)
        if self._projector is None:
            return k
        half = self._projector.mT @ k
        return half @ self._projector

    def _trace(self, layer: int) -> Float[Tensor, ""]:
        """tr Kt_l, without Kt_l."""
        assert self._square is not None
        return torch.vdot(self._square.flatten(), self._gram(layer).flatten()).clamp_min(0.0)

    def _series(self, layer: int, residual: Tensor, ratio: float) -> Float[Tensor, "n outputs"]:
        """lam (Kt_l + lam I)^-1 R, for |Kt_l| of at most ``ratio`` times lam."""
        assert self._projector is not None
        total, term, size = residual.clone(), residual, ratio
        while size > torch.finfo(residual.dtype).eps:
            inner = self._gram(layer) @ (self._projector @ term)
            term = (self._projector.mT @ inner) / -self._reg
            total += term
            size *= ratio
        return total

    def _small_areas(self, layer: int, triples: Tensor) -> Float[Tensor, " one"]:
        """``_areas`` of one candidate, from its centroids alone."""
        k = self._gram(layer)
        if self._centroids is None or len(triples) == 0 or self._projector is None:
            return k.new_zeros(1)
        sent = self._projector @ self._centroids.mT
        return mean_area((sent.mT @ k @ sent)[None], triples)

    def _areas(self, k: Tensor, triples: Tensor) -> Tensor:
        if self._centroids is None or len(triples) == 0:
            return k.new_zeros(len(k))
        return mean_area(self._centroids @ k @ self._centroids.mT, triples)

    def _left_out_epsilon(self, values: Tensor) -> float:
        """The ridge by which the chosen layers predict left-out targets best."""
        assert self._targets is not None
        assert self._chosen is not None
        roots = self._roots
        plain = self._chosen / roots[:, None] / roots[None, :]
        found = leave_one_out(plain, self._targets / roots[:, None], roots.square(), LOO_GRID)
        return found.lam * float(values.sum()) / (len(values) - 1)
