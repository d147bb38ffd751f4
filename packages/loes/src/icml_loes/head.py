"""A head on chosen layers: each is normed and projected, then they are fused and classified.

    LayerNorm(D_l) → Linear(D_l, 256) → GELU for each layer;  fuse;  LayerNorm → Dropout(0.2) → Linear(C)

arXiv 2605.23033, with the official defaults.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from icml_core.randomness import seeded
from jaxtyping import Float
from torch import Tensor, nn

FUSIONS = ("concat", "mean", "sum", "learnable")


class LoesHead(nn.Module):
    """Classifier on k layers.

    Args:
        dims: width of each layer.
        n_out: classes, or outputs.
        proj_dim: width of each projection.
        fusion: ``"concat"``, ``"mean"``, ``"sum"``, or ``"learnable"`` for softmax weights.
        dropout: before the last linear map.
        seed: of the first weights.

    Raises:
        ValueError: an unknown fusion, no layer, or a width, number of outputs or dropout out of range.

    Example:
        >>> head = LoesHead([8, 8], 3, proj_dim=4)
        >>> head([torch.zeros(5, 8), torch.zeros(5, 8)]).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        dims: Sequence[int],
        n_out: int,
        proj_dim: int = 256,
        fusion: str = "concat",
        dropout: float = 0.2,
        *,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if fusion not in FUSIONS:
            raise ValueError(f"fusion={fusion!r} is not one of {', '.join(FUSIONS)}")
        if not dims or min(*dims, n_out, proj_dim) < 1 or not 0 <= dropout < 1:
            raise ValueError(
                f"dims={list(dims)}, n_out={n_out}, proj_dim={proj_dim}, dropout={dropout}; expected "
                "positive numbers "
                "and a dropout below 1"
            )
        self.dims, self.fusion = list(dims), fusion
        with seeded(seed):
            self.projections = nn.ModuleList(
                nn.Sequential(nn.LayerNorm(d), nn.Linear(d, proj_dim), nn.GELU()) for d in dims
            )
            width = proj_dim * len(dims) if fusion == "concat" else proj_dim
            self.classifier = nn.Sequential(nn.LayerNorm(width), nn.Dropout(dropout), nn.Linear(width, n_out))
        self.mixture = nn.Parameter(torch.zeros(len(dims))) if fusion == "learnable" else None

    def features(
        self, layers: Sequence[Float[Tensor, "batch dim"]] | Float[Tensor, "batch k dim"]
    ) -> Float[Tensor, "batch fused"]:
        """The fused representation, which GeoReg acts on.

        Raises:
            ValueError: another number of layers, or a layer of another width.
        """
        given = list(layers.unbind(1)) if isinstance(layers, Tensor) else list(layers)
        widths = [int(v.shape[-1]) for v in given]
        if widths != self.dims:
            raise ValueError(f"layers of widths {widths} were given; the head was made for {self.dims}")
        parts = [project(v) for project, v in zip(self.projections, given, strict=True)]
        if self.fusion == "concat":
            return torch.cat(parts, -1)
        stacked = torch.stack(parts)
        if self.mixture is not None:
            return torch.einsum("k,kbd->bd", self.mixture.softmax(0), stacked)
        return stacked.mean(0) if self.fusion == "mean" else stacked.sum(0)

    def forward(
        self, layers: Sequence[Float[Tensor, "batch dim"]] | Float[Tensor, "batch k dim"]
    ) -> Float[Tensor, "batch n_out"]:
        """Logits."""
        logits: Tensor = self.classifier(self.features(layers))
        return logits
