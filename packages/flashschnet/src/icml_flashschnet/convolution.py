"""The continuous-filter convolution ``m_i = sum_{j in N(i)} x_j * W(r_ij)``, and its backward pass.

Filters depend on the distance alone, so each unordered pair needs one: the neighbour list holds i < j once,
and a pair gives ``m_i += x_j W`` and ``m_j += x_i W``. The backward pass runs over the same pairs:
``gx_i += g_j W``, ``gx_j += g_i W`` and ``dE/dr = sum_f (g_i x_j + g_j x_i) W'``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol, get_args

import torch
from icml_kernels.molecules.cfconv_mlp import cfconv_mlp
from icml_kernels.molecules.cfconv_table import cfconv_table
from icml_kernels.molecules.neighbors import HalfList
from icml_kernels.molecules.pair_geometry import pair_geometry
from jaxtyping import Float
from torch import Tensor

from icml_flashschnet.filter_network import FilterNetwork
from icml_flashschnet.filter_table import FilterTable

Kernel = Literal["auto", "torch", "cpu", "triton"]

_DEVICE_OF_KERNEL = {"cpu": "cpu", "triton": "cuda"}


def compiled(kernel: Kernel, device: torch.device) -> bool:
    """Whether the compiled operators run, rather than plain torch.

    Args:
        kernel: ``"torch"`` for plain torch; ``"cpu"`` or ``"triton"`` for the compiled operators of that
            device; ``"auto"`` for those of whichever device the tensors are on.
        device: where the tensors are.

    Raises:
        ValueError: an unknown kernel, or one of another device.
    """
    if kernel not in get_args(Kernel):
        raise ValueError(f"kernel must be one of {', '.join(get_args(Kernel))}; got {kernel!r}")
    wanted = _DEVICE_OF_KERNEL.get(kernel, device.type)
    if wanted != device.type:
        raise ValueError(
            f"kernel {kernel!r} runs on {wanted}, but the positions are on {device}: move them, or use 'auto'"
        )
    return kernel != "torch" and device.type in _DEVICE_OF_KERNEL.values()


def pair_ends(pairs: HalfList) -> tuple[Tensor, Tensor]:
    """Both beads, i < j, of every pair as int64, without the list's spare places."""
    first = torch.repeat_interleave(pairs.ptr.long().diff())
    return first, pairs.idx[: first.numel()].long()


def pair_distances(
    pos: Float[Tensor, "beads 3"],
    pairs: HalfList,
    shift: Float[Tensor, "pairs 3"] | None = None,
    *,
    kernel: Kernel,
) -> tuple[Float[Tensor, " pairs"], Float[Tensor, "pairs 3"]]:
    """Distance of every pair (Å) and the unit vector from i to j; both differentiable.

    Args:
        pos: positions, Å.
        pairs: the pairs.
        shift: lattice vector to add to ``x_j - x_i``, Å, where pairs are with periodic images.
        kernel: code of the convolution.
    """
    if compiled(kernel, pos.device):
        return pair_geometry(pos, pairs, shift)
    i, j = pair_ends(pairs)
    separation = pos.index_select(0, j) - pos.index_select(0, i)
    if shift is not None:
        separation = separation + shift
    r = separation.square().sum(1).sqrt()
    return r, separation / r[:, None]


def pair_forces(
    g_r: Float[Tensor, " pairs"],
    r: Float[Tensor, " pairs"],
    direction: Float[Tensor, "pairs 3"],
    pairs: HalfList,
    *,
    kernel: Kernel,
) -> Float[Tensor, "beads 3"]:
    """Forces from dE/dr of every pair: ``F_i = +dE/dr u``, ``F_j = -dE/dr u``, with u from i to j."""
    if compiled(kernel, r.device):
        ptr, idx, ptr_t, _, pair_t = pairs.tensors()
        gradient, _ = torch.ops.icml.pair_geometry_backward(
            g_r, torch.zeros_like(direction), r, direction, ptr, idx, ptr_t, pair_t
        )
        return gradient.neg_()
    i, j = pair_ends(pairs)
    pull = g_r[:, None] * direction
    return pull.new_zeros(pairs.n_atoms, 3).index_add_(0, i, pull).index_add_(0, j, pull, alpha=-1)


class Convolution(Protocol):
    """The convolution of one layer over one list of pairs."""

    def __call__(self, x: Float[Tensor, "beads filters"]) -> Float[Tensor, "beads filters"]:
        """``m_i = sum_j x_j * W(r_ij)``."""

    def backward(
        self, g: Float[Tensor, "beads filters"], x: Float[Tensor, "beads filters"], *, features: bool
    ) -> tuple[Float[Tensor, "beads filters"] | None, Float[Tensor, " pairs"]]:
        """dE/dx and dE/dr, given ``g`` = dE/dm and the x that was convolved.

        Args:
            g: dE/dm.
            x: projected bead features ``U1 h``.
            features: whether dE/dx is wanted.
        """


def convolution(
    filter: FilterNetwork | FilterTable, r: Float[Tensor, " pairs"], pairs: HalfList, kernel: Kernel
) -> Convolution:
    """The convolution with ``filter`` at distances ``r`` by the code that ``kernel`` names."""
    if not compiled(kernel, r.device):
        return PlainConvolution(filter, r, *pair_ends(pairs))
    if isinstance(filter, FilterTable):
        return TableConvolution(filter, r, pairs)
    return NetworkConvolution(filter, r, pairs)


@dataclass(frozen=True)
class PlainConvolution:
    """In plain torch, on any device. Differentiable in x, r and the filter's weights.

    Attributes:
        filter: gives W(r) and W'(r).
        r: distances, Å.
        i, j: the beads of each pair.
    """

    filter: FilterNetwork | FilterTable
    r: Tensor
    i: Tensor
    j: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        w = self.filter(self.r)
        m = torch.zeros_like(x).index_add(0, self.i, x.index_select(0, self.j) * w)
        return m.index_add(0, self.j, x.index_select(0, self.i) * w)

    def backward(self, g: Tensor, x: Tensor, *, features: bool) -> tuple[Tensor | None, Tensor]:
        w, slope = self.filter.with_slope(self.r)
        i, j = self.i, self.j
        g_i, g_j = g.index_select(0, i), g.index_select(0, j)
        g_r = ((g_i * x.index_select(0, j) + g_j * x.index_select(0, i)) * slope).sum(1)
        if not features:
            return None, g_r
        return torch.zeros_like(x).index_add_(0, i, g_j * w).index_add_(0, j, g_i * w), g_r


@dataclass(frozen=True)
class NetworkConvolution:
    """By the compiled operator that evaluates the filter network pair by pair."""

    filter: FilterNetwork
    r: Tensor
    pairs: HalfList

    def __call__(self, x: Tensor) -> Tensor:
        return cfconv_mlp(x, self.r, self.pairs, **self.filter.operands(), **self.filter.options())

    def backward(self, g: Tensor, x: Tensor, *, features: bool) -> tuple[Tensor, Tensor]:
        weights, options = self.filter.operands().values(), self.filter.options().values()
        g_x, g_r, *_ = torch.ops.icml.cfconv_mlp_backward(
            g, x, self.r, *self.pairs.tensors(), *weights, *options, False
        )
        return g_x, g_r


@dataclass(frozen=True)
class TableConvolution:
    """By the compiled operator that interpolates in a table."""

    filter: FilterTable
    r: Tensor
    pairs: HalfList

    def __call__(self, x: Tensor) -> Tensor:
        return cfconv_table(x, self.r, self.pairs, self.filter.table, self.filter.r_cut)

    def backward(self, g: Tensor, x: Tensor, *, features: bool) -> tuple[Tensor, Tensor]:
        return torch.ops.icml.cfconv_table_backward(
            g, x, self.r, *self.pairs.tensors(), self.filter.table, self.filter.r_cut, 0.0
        )
