"""The greedy step in columns: for more examples than the chosen layers have columns.

    B orthonormal with span(B) = span(X_S),   M = B^T X_S,   N = eps (M M^T + eps I)^-1
    Xt_l = (X_l - B B^T X_l) + B N B^T X_l

which equals X_l - X_S (X_S^T X_S + eps I)^-1 X_S^T X_l. B grows by one QR decomposition a pick, and what is
left of each candidate is updated in place: O(n D^2) a candidate and pick.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_loes.ridge import shifted_cholesky
from icml_loes.triangles import mean_area


class PrimalComplements:
    """Candidates' losses and areas in the orthogonal complement of the chosen layers.

    Args:
        layers: X_l, centred (and weighted), float64; they are overwritten.
        roots: square roots of the examples' weights.
        centroids: A, averaging unweighted examples within classes; None where there is no triangle.
        reg: lam of the ridge.
        orth_reg: eps.
    """

    def __init__(
        self,
        layers: list[Float[Tensor, "n dim"]],
        roots: Float[Tensor, " n"],
        centroids: Float[Tensor, "classes n"] | None,
        *,
        reg: float,
        orth_reg: float,
    ) -> None:
        self._left = layers
        self._reg, self._eps = reg, orth_reg
        self._centroids = None if centroids is None else centroids / roots
        n = len(roots)
        self._basis = layers[0].new_zeros(n, 0)
        self._inside: list[Tensor] = [v.new_zeros(0, v.shape[1]) for v in layers]
        self._chosen = layers[0].new_zeros(0, 0)
        self._correction = layers[0].new_zeros(0, 0)
        self.rank = 0
        self.left_over = 1.0
        self._sizes = [float(v.square().sum()) for v in layers]

    def add(self, layer: int) -> None:
        """Take a layer into what candidates are orthogonal to."""
        left, inside = self._left[layer], self._inside[layer]
        fresh, upper = _independent_columns(left, float(left.norm() + inside.norm()))
        # A second orthogonalisation against the old basis: the first leaves rounding of the size of the
        # layer.
        again = self._basis.mT @ fresh
        fresh, _ = torch.linalg.qr(fresh - self._basis @ again)
        upper = fresh.mT @ left
        added = fresh.shape[1]
        self._chosen = torch.cat(
            [
                torch.cat([self._chosen, self._chosen.new_zeros(added, self._chosen.shape[1])]),
                torch.cat([inside, upper]),
            ],
            1,
        )
        self._basis = torch.cat([self._basis, fresh], 1)
        self.rank = self._basis.shape[1]
        for other, x in enumerate(self._left):
            part = fresh.mT @ x
            self._inside[other] = torch.cat([self._inside[other], part])
            torch.addmm(x, fresh, part, alpha=-1, out=x)
        square = self._chosen @ self._chosen.mT
        identity = torch.eye(self.rank, dtype=square.dtype, device=square.device)
        self._correction = self._eps * torch.cholesky_solve(identity, shifted_cholesky(square, self._eps))

    def losses(
        self,
        candidates: Sequence[int],
        residual: Float[Tensor, "n outputs"] | None,
        triples: Int[Tensor, "triples 3"],
    ) -> tuple[Float[Tensor, " candidates"], Float[Tensor, " candidates"]]:
        """Mean squared error of the ridge on each candidate's complement, and the mean area of its
        centroids."""
        if residual is None:
            nothing = self._basis.new_zeros(len(candidates))
            return nothing, nothing
        losses, areas = [], []
        self.left_over = 0.0
        for layer in candidates:
            kept = self._correction @ self._inside[layer]
            areas.append(self._area(layer, kept, triples))
            weights, square, cross = self._ridge(layer, kept, residual)
            share = float(square.diagonal().sum()) / self._sizes[layer]
            self.left_over = max(self.left_over, share)
            explained = 2 * (weights * cross).sum() - (weights * (square @ weights)).sum()
            losses.append((residual.square().sum() - explained).clamp_min(0) / residual.numel())
        return torch.stack(losses), torch.stack(areas)

    def prediction(self, layer: int, residual: Float[Tensor, "n outputs"]) -> Float[Tensor, "n outputs"]:
        """Ridge prediction of the residual from the layer's complement, weighted."""
        kept = self._correction @ self._inside[layer]
        weights, _, _ = self._ridge(layer, kept, residual)
        return self._left[layer] @ weights + self._basis @ (kept @ weights)

    def _ridge(self, layer: int, kept: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        left = self._left[layer]
        square = left.mT @ left + kept.mT @ kept
        cross = left.mT @ residual + kept.mT @ (self._basis.mT @ residual)
        return torch.cholesky_solve(cross, shifted_cholesky(square, self._reg)), square, cross

    def _area(self, layer: int, kept: Tensor, triples: Tensor) -> Tensor:
        if self._centroids is None or len(triples) == 0:
            return self._basis.new_zeros(())
        means = self._centroids @ self._left[layer] + (self._centroids @ self._basis) @ kept
        return mean_area(means @ means.mT, triples)


def _independent_columns(x: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Orthonormal basis of the columns, without directions below rounding, and the columns in it."""
    q, r = torch.linalg.qr(x)
    u, s, _ = torch.linalg.svd(r)
    kept = s > max(x.shape) * torch.finfo(x.dtype).eps * scale
    basis = q @ u[:, : len(s)][:, kept]
    return basis, basis.mT @ x
