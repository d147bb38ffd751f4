"""The tabulated convolution with a gradient by its table: what force matching differentiates.

A force depends on the table's entries through the convolution and through its backward pass. Both, and
their derivatives by features and distances, run in the compiled operators; what is added here is the
gradient by the table. With a_i b_j + a_j b_i the product that multiplies W (or W') of a pair, every entry
receives the sum over the pairs of its two intervals of that product times the entry's Hermite weight.
Pairs are sorted by their interval once a batch, so that no table entry has two writers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from icml_kernels.molecules.neighbors import HalfList
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from icml_flashschnet.filter_table import FilterTable, hermite_weights


@dataclass(frozen=True)
class PairsByInterval:
    """The pairs of a list, and their order by the interval of a table that they lie in.

    Attributes:
        r: distances of all places of the list, Å.
        pairs: the list.
        i, j: beads of each place.
        order: places of the pairs within the cutoff, interval by interval.
        bounds: where each interval's pairs begin in ``order``, and the end.
        values, slopes: Hermite weights of the pairs in ``order``.
    """

    r: Tensor
    pairs: HalfList
    i: Tensor
    j: Tensor
    order: Tensor
    bounds: Tensor
    values: Tensor
    slopes: Tensor

    @classmethod
    def of(cls, r: Float[Tensor, " pairs"], pairs: HalfList, table: FilterTable) -> PairsByInterval:
        """Sort the pairs by the intervals of ``table``."""
        kept = (r < table.r_cut) & (torch.arange(len(r), device=r.device) < pairs.ptr[-1])
        places = kept.nonzero()[:, 0]
        scaled = r[places] / table.spacing
        node, order = torch.sort(scaled.long().clamp(0, table.intervals - 1), stable=True)
        bounds = torch.searchsorted(node, torch.arange(table.intervals + 1, device=r.device))
        weights = hermite_weights(scaled[order] - node, table.spacing)
        return cls(r, pairs, *pairs.ij(), places[order], bounds, *weights)

    def gradient(
        self, a: Float[Tensor, "beads filters"], b: Float[Tensor, "beads filters"], weights: Tensor
    ) -> Float[Tensor, "nodes 2 filters"]:
        """Sum over pairs of ``(a_i b_j + a_j b_i)`` times the weights of the table's entries.

        Args:
            a: one factor.
            b: the other.
            weights: of y0, d0, y1, d1 for each pair in ``order``.
        """
        i, j = self.i, self.j
        product = a.index_select(0, i).mul_(b.index_select(0, j))
        product.addcmul_(a.index_select(0, j), b.index_select(0, i))
        y0, d0, y1, d1 = (
            functional.embedding_bag(
                self.order,
                product,
                self.bounds,
                mode="sum",
                per_sample_weights=weights[:, k].contiguous(),
                include_last_offset=True,
            )
            for k in range(4)
        )
        table = product.new_zeros(len(self.bounds), 2, product.shape[1])
        table[:-1, 0], table[:-1, 1] = y0, d0
        table[1:, 0] += y1
        table[1:, 1] += d1
        return table


class _Forward(torch.autograd.Function):
    """(x, table) -> m."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, r_cut: float, sorted_pairs: PairsByInterval) -> Tensor:
        ctx.save_for_backward(x, table)
        ctx.r_cut, ctx.sorted_pairs = r_cut, sorted_pairs
        return torch.ops.icml.cfconv_table(
            x, sorted_pairs.r, *sorted_pairs.pairs.tensors(), table, r_cut, 0.0
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (x, table), s = ctx.saved_tensors, ctx.sorted_pairs
        g = g.contiguous()
        g_x, _ = torch.ops.icml.cfconv_table_backward(g, x, s.r, *s.pairs.tensors(), table, ctx.r_cut, 0.0)
        return g_x, s.gradient(g, x, s.values), None, None


class _Backward(torch.autograd.Function):
    """(g, x, table) -> (dE/dx, dE/dr)."""

    @staticmethod
    def forward(
        ctx: Any, g: Tensor, x: Tensor, table: Tensor, r_cut: float, sorted_pairs: PairsByInterval
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(g, x, table)
        ctx.r_cut, ctx.sorted_pairs = r_cut, sorted_pairs
        return torch.ops.icml.cfconv_table_backward(
            g, x, sorted_pairs.r, *sorted_pairs.pairs.tensors(), table, r_cut, 0.0
        )

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, h_x: Tensor, h_r: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        (g, x, table), s = ctx.saved_tensors, ctx.sorted_pairs
        h_x, h_r = h_x.contiguous(), h_r.contiguous()
        g_g, g_x, _ = torch.ops.icml.cfconv_table_second_backward(
            h_x, h_r, g, x, s.r, *s.pairs.tensors(), table, ctx.r_cut, 0.0
        )
        g_table = s.gradient(h_x, g, s.values) + s.gradient(g, x, s.slopes * h_r[s.order, None])
        return g_g, g_x, g_table, None, None


@dataclass(frozen=True)
class TrainableConvolution:
    """The convolution of one layer with a table that learns; differentiable once more, not in distances.

    Attributes:
        filter: the table.
        pairs: the pairs by interval.
    """

    filter: FilterTable
    pairs: PairsByInterval

    def __call__(self, x: Float[Tensor, "beads filters"]) -> Float[Tensor, "beads filters"]:
        """``m_i = sum_j x_j * W(r_ij)``."""
        return _Forward.apply(x, self.filter.table, self.filter.r_cut, self.pairs)

    def backward(
        self, g: Float[Tensor, "beads filters"], x: Float[Tensor, "beads filters"], *, features: bool
    ) -> tuple[Float[Tensor, "beads filters"], Float[Tensor, " pairs"]]:
        """dE/dx and dE/dr, given ``g`` = dE/dm, as ``Convolution.backward``."""
        return _Backward.apply(g.contiguous(), x, self.filter.table, self.filter.r_cut, self.pairs)


def trainable_convolutions(
    tables: Sequence[FilterTable], r: Float[Tensor, " pairs"], pairs: HalfList
) -> list[TrainableConvolution]:
    """The convolutions of all layers, whose tables share one grid.

    Args:
        tables: one a layer.
        r: distances, Å.
        pairs: the pairs i < j.
    """
    sorted_pairs = PairsByInterval.of(r, pairs, tables[0])
    return [TrainableConvolution(table, sorted_pairs) for table in tables]
