"""The greedy step in n x n Gram matrices: for n up to the width of what is chosen.

    K_S = sum of K_j over the chosen,   P = eps (K_S + eps I)^-1,   Kt_l = P K_l P
    residual of R = lam (Kt_l + lam I)^-1 R,   centroids of Xt_l have the Gram matrix A Kt_l A^T

Each equals its counterpart of the paper: X (X^T X + eps I)^-1 X^T = X X^T (X X^T + eps I)^-1. Widths may
differ between layers, since only sums of Gram matrices occur.
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
        losses, areas, shares = [], [], []
        size = max(1, CHUNK_BYTES // (8 * len(self._roots) ** 2))
        for first in range(0, len(candidates), size):
            group = candidates[first : first + size]
            k = torch.stack([self._complement(c) for c in group])
            whole = torch.stack([self._gram(c).diagonal().sum() for c in group])
            shares.append(k.diagonal(dim1=1, dim2=2).sum(1) / whole)
            areas.append(self._areas(k, triples))
            repeated = residual.expand(len(k), *residual.shape)
            solved = torch.cholesky_solve(repeated, shifted_cholesky(k, self._reg))
            losses.append((self._reg * solved).square().mean((1, 2)))
        self.left_over = float(torch.cat(shares).max())
        return torch.cat(losses), torch.cat(areas)

    def prediction(self, layer: int, residual: Float[Tensor, "n outputs"]) -> Float[Tensor, "n outputs"]:
        """Ridge prediction of the residual from the layer's complement, weighted."""
        factor = shifted_cholesky(self._complement(layer), self._reg)
        return residual - self._reg * torch.cholesky_solve(residual, factor)

    def _complement(self, layer: int) -> Tensor:
        k = self._gram(layer)
        if self._projector is None:
            return k
        half = self._projector.mT @ k
        return half @ self._projector

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
