"""Filters of one layer tabulated over the distance, as a cubic Hermite spline with exact node slopes.

On interval g with width h and t = (r - r_g)/h, with d the slopes times h and D = W_{g+1} - W_g,

    W  = W_g + t (d_g + t ((3D - 2 d_g - d_{g+1}) + t (d_g + d_{g+1} - 2D)))
    W' = (d_g + t (2 (3D - 2 d_g - d_{g+1}) + 3 t (d_g + d_{g+1} - 2D))) / h

so W is C^1 and the force is the exact derivative of the interpolated energy. Errors are bounded by
``h^4/384 max|W''''|`` in W and ``sqrt(3) h^3/216 max|W''''|`` in W' (de Boor, A Practical Guide to
Splines). The idea is that of DeePMD's "compress" (arXiv 2004.11658), applied to the filters of SchNet.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from icml_flashschnet.filter_network import FilterNetwork


class FilterTable(nn.Module):
    """Filters ``W(r)`` of one layer from a table on a uniform grid over ``[0, r_cut]``.

    The grid begins at r = 0, so no distance lies below it; at and beyond ``r_cut`` the filters are 0.

    Args:
        table: ``[G + 1, 2, F]``: the filters and their slopes times the grid spacing, at each node.
        r_cut: cutoff distance, Å.

    Raises:
        ValueError: the table has another shape, or fewer than one interval.
    """

    table: Tensor

    def __init__(self, table: Float[Tensor, "nodes 2 filters"], r_cut: float) -> None:
        super().__init__()
        if table.ndim != 3 or table.shape[0] < 2 or table.shape[1] != 2:
            raise ValueError(f"a filter table has shape [intervals + 1, 2, filters], got {list(table.shape)}")
        self.r_cut = r_cut
        self.register_buffer("table", table.contiguous())

    @classmethod
    def of(cls, network: FilterNetwork, intervals: int, *, dtype: torch.dtype | None = None) -> FilterTable:
        """Tabulate ``network`` on ``intervals`` intervals; nodes are evaluated in float64.

        Args:
            network: the filter network of a layer.
            intervals: number G of intervals.
            dtype: of the table; the network's by default.
        """
        with torch.no_grad():
            table = node_table(double_copy(network), intervals)
        return cls(table.to(dtype or network.inner.weight.dtype), network.basis.r_cut)

    @property
    def intervals(self) -> int:
        """Number G of intervals."""
        return self.table.shape[0] - 1

    @property
    def spacing(self) -> float:
        """Width h of an interval, Å."""
        return self.r_cut / self.intervals

    def forward(self, r: Float[Tensor, " pairs"]) -> Float[Tensor, "pairs filters"]:
        """Interpolated filters at distances ``r`` (Å), differentiable in r to any order."""
        node, t = self._place(r)
        low, high = self.table.index_select(0, node), self.table.index_select(0, node + 1)
        y0, d0, y1, d1 = low[:, 0], low[:, 1], high[:, 0], high[:, 1]
        step, t = y1 - y0, t[:, None]
        filters = y0 + t * (d0 + t * ((3 * step - 2 * d0 - d1) + t * (d0 + d1 - 2 * step)))
        return torch.where((r < self.r_cut)[:, None], filters, torch.zeros_like(filters))

    def with_slope(
        self, r: Float[Tensor, " pairs"]
    ) -> tuple[Float[Tensor, "pairs filters"], Float[Tensor, "pairs filters"]]:
        """Interpolated filters and the exact slope of the interpolant (1/Å), differentiable in the table."""
        node, t = self._place(r.detach())
        inside = (r.detach() < self.r_cut).to(t.dtype)
        weights, slopes = hermite_weights(t, self.spacing)
        # The same cubic as a sum over the four entries y0, d0, y1, d1, which one pass gathers.
        entries = 2 * node[:, None] + torch.arange(4, device=r.device)
        flat = self.table.flatten(0, 1)
        return tuple(
            functional.embedding_bag(entries, flat, per_sample_weights=w * inside[:, None], mode="sum")
            for w in (weights, slopes)
        )

    def _place(self, r: Tensor) -> tuple[Tensor, Tensor]:
        """The interval of each distance and how far through it the distance lies."""
        scaled = r / self.spacing
        node = scaled.detach().long().clamp(0, self.intervals - 1)
        return node, scaled - node


def hermite_weights(
    t: Float[Tensor, " pairs"], spacing: float
) -> tuple[Float[Tensor, "pairs 4"], Float[Tensor, "pairs 4"]]:
    """Weights of an interval's entries y0, d0, y1, d1 in the cubic, and in its slope.

    Args:
        t: place in the interval, 0 to 1.
        spacing: width of the interval, Å.
    """
    rise = t**2 * (3 - 2 * t)
    steep = 6 * t * (1 - t)
    values = torch.stack([1 - rise, t * (1 - t) ** 2, rise, t**2 * (t - 1)], dim=1)
    slopes = torch.stack([-steep, (1 - t) * (1 - 3 * t), steep, t * (3 * t - 2)], dim=1)
    return values, slopes / spacing


def node_table(network: FilterNetwork, intervals: int) -> Float[Tensor, "nodes 2 filters"]:
    """Filters and scaled slopes at the nodes of a uniform grid, differentiable in the network's weights.

    Args:
        network: the filter network of a layer.
        intervals: number G of intervals.
    """
    weight, r_cut = network.inner.weight, network.basis.r_cut
    nodes = torch.linspace(0.0, r_cut, intervals + 1, dtype=weight.dtype, device=weight.device)
    values, slopes = network.with_slope(nodes)
    table = torch.stack([values, slopes * (r_cut / intervals)], dim=1)
    if not network.envelope:
        return table
    # C and dC/dr vanish at r_cut: exactly, whatever the last digit of the last node.
    return torch.cat([table[:-1], torch.zeros_like(table[-1:])])


def double_copy(network: FilterNetwork) -> FilterNetwork:
    """A float64 copy without touching the original."""
    copy = FilterNetwork(
        network.basis,
        network.inner.out_features,
        activation=network.activation,
        envelope=network.envelope,
        generator=torch.Generator(),
    ).to(device=network.inner.weight.device, dtype=torch.float64)
    copy.load_state_dict(network.state_dict())
    return copy
