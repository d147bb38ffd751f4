"""SchNet as coarse-grained protein models use it (CGSchNet), with fused energies and forces.

    h_i = Embedding(type_i)
    for each layer:   m_i = sum_{j in N(i)} (U1 h_j) * W(r_ij)           (convolution.py, filter_network.py)
                      h_i <- h_i + U3 act(U2 m_i + b2) + b3
    E = sum_i MLP(h_i),   F = -dE/dx

Source: arXiv 2602.13140 and its official code; the network is that of arXiv 1706.08566 without biases in
U1 and in the outer filter layer. The model knows no units: energies and lengths are those of its training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from icml_kernels.molecules.neighbors import HalfList
from icml_kernels.molecules.radius_pairs import radius_pairs
from icml_kernels.molecules.segment_sum_csr import segment_sum_csr
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from icml_flashschnet.activation import Activation, activate, activation_backward, rounded
from icml_flashschnet.batching import check_beads, replica_ptr
from icml_flashschnet.convolution import (
    Convolution,
    Kernel,
    convolution,
    pair_distances,
    pair_ends,
    pair_forces,
)
from icml_flashschnet.filter_network import FilterNetwork
from icml_flashschnet.filter_table import FilterTable
from icml_flashschnet.layers import embedding, linear
from icml_flashschnet.radial import BasisKind, RadialBasis
from icml_flashschnet.table_training import trainable_convolutions


@dataclass(frozen=True)
class SchNetConfig:
    """Sizes and switches of a :class:`FlashSchNet`.

    Attributes:
        n_types: number of bead types, size of the embedding (25 for the five-bead protein map).
        hidden: width H of the bead features.
        filters: width F of the filters.
        n_rbf: number K of radial basis functions.
        rbf: ``"gauss"`` or ``"expnorm"`` (see :class:`~icml_flashschnet.radial.RadialBasis`).
        r_cut: cutoff distance, Å.
        layers: number of interaction layers.
        out: hidden widths of the readout.
        activation: ``"tanh"`` (CGSchNet) or ``"ssp"`` (shifted softplus, classical SchNet).
        rbf_cutoff: multiply the basis by the cosine envelope.
        filter_cutoff: multiply the filters by the envelope as well. Trained CGSchNet models have both.
            Without this one the energy jumps where a pair crosses ``r_cut``.
    """

    n_types: int = 25
    hidden: int = 128
    filters: int = 128
    n_rbf: int = 64
    rbf: BasisKind = "gauss"
    r_cut: float = 15.0
    layers: int = 4
    out: tuple[int, ...] = (128, 64)
    activation: Activation = "tanh"
    rbf_cutoff: bool = True
    filter_cutoff: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "out", tuple(self.out))
        for name, value, least in (
            ("n_types", self.n_types, 1),
            ("hidden", self.hidden, 1),
            ("filters", self.filters, 1),
            ("n_rbf", self.n_rbf, 2),
            ("layers", self.layers, 1),
            *(("out", width, 1) for width in self.out),
        ):
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"SchNetConfig.{name} must be an integer >= {least}, got {value!r}")
        if self.rbf not in ("gauss", "expnorm"):
            raise ValueError(f"SchNetConfig.rbf must be 'gauss' or 'expnorm', got {self.rbf!r}")
        if self.activation not in ("tanh", "ssp"):
            raise ValueError(f"SchNetConfig.activation must be 'tanh' or 'ssp', got {self.activation!r}")
        for name in ("rbf_cutoff", "filter_cutoff"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"SchNetConfig.{name} must be True or False, got {getattr(self, name)!r}")
        if not (isinstance(self.r_cut, int | float) and math.isfinite(self.r_cut) and self.r_cut > 0):
            raise ValueError(f"SchNetConfig.r_cut must be a positive distance, got {self.r_cut!r}")


_CLOSEST = 1e-6
"""Distance (Å) below which two beads count as one point."""


class Interaction(nn.Module):
    """The weights of one layer: U1 (``project``), the filter, U2 and b2 (``mix``), U3 and b3 (``update``)."""

    filter: FilterNetwork | FilterTable

    def __init__(self, config: SchNetConfig, generator: torch.Generator) -> None:
        super().__init__()
        basis = RadialBasis(config.rbf, config.n_rbf, config.r_cut, config.rbf_cutoff)
        self.project = linear(config.hidden, config.filters, generator, bias=False)
        self.filter = FilterNetwork(
            basis,
            config.filters,
            activation=config.activation,
            envelope=config.filter_cutoff,
            generator=generator,
        )
        self.mix = linear(config.filters, config.hidden, generator)
        self.update = linear(config.hidden, config.hidden, generator)


class FlashSchNet(nn.Module):
    """SchNet of many replicas at once, with energies by autograd or fused energies and forces.

    Args:
        config: sizes and switches.
        seed: of the initial weights (Xavier uniform, zero biases, a standard normal embedding).
        kernel: which code convolves. ``"torch"`` is plain torch on any device; ``"cpu"`` and
            ``"triton"`` the compiled kernels of that device; ``"auto"`` the compiled kernel of the
            positions' device.

    Example:
        >>> model = FlashSchNet(SchNetConfig(n_types=3, hidden=16, filters=16, n_rbf=8, layers=2, r_cut=6.0))
        >>> pos, types = torch.tensor([[0.0, 0, 0], [1.5, 0, 0], [1.5, 1.5, 0]]), torch.tensor([0, 1, 2])
        >>> energy, forces = model.energy_forces(pos, types)
        >>> energy.shape, forces.shape
        (torch.Size([1]), torch.Size([3, 3]))
    """

    def __init__(
        self, config: SchNetConfig, *, seed: int | torch.Generator = 0, kernel: Kernel = "auto"
    ) -> None:
        super().__init__()
        generator = seed if isinstance(seed, torch.Generator) else torch.Generator().manual_seed(seed)
        self.config = config
        self.kernel = kernel
        self.half_activations = False  # inputs of the dense layers are rounded to 16 bits; see half_weights
        self.embedding = embedding(config.n_types, config.hidden, generator)
        self.interactions = nn.ModuleList(Interaction(config, generator) for _ in range(config.layers))
        widths = (config.hidden, *config.out)
        self.readout = nn.ModuleList(
            [linear(a, b, generator) for a, b in pairwise(widths)]
            + [linear(widths[-1], 1, generator, bias=False)]
        )

    @property
    def r_cut(self) -> float:
        """Cutoff distance, Å."""
        return self.config.r_cut

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights, which positions must have."""
        return self.embedding.weight.dtype

    def neighbours(
        self,
        pos: Float[Tensor, "beads 3"],
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        skin: float = 0.0,
    ) -> HalfList:
        """The pairs i < j of each replica nearer than ``r_cut + skin``, for ``nlist``.

        Args:
            pos: positions, Å.
            batch: replica of each bead, ascending; or
            n_replicas: number of replicas of equal size.
            skin: extra distance, Å: the list stays valid until a bead has moved by half of it.
        """
        ptr = replica_ptr(pos.shape[0], batch, n_replicas, pos.device)
        return _pairs(pos, ptr, self.config.r_cut + skin)

    def forward(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"],
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        nlist: HalfList | None = None,
        shift: Float[Tensor, "pairs 3"] | None = None,
    ) -> Float[Tensor, " replicas"]:
        """Potential energy of each replica, differentiable in positions and weights, also twice.

        Args:
            pos: positions of all replicas, one after the other, Å.
            types: bead types; with ``n_replicas``, those of one replica suffice.
            batch: replica of each bead, ascending, for replicas of different sizes; or
            n_replicas: number of replicas of equal size. Neither means one replica.
            nlist: pairs from :meth:`neighbours`; found here if absent.
            shift: lattice vectors of the pairs of a periodic ``nlist``, Å; see `periodic_pairs`.

        Returns:
            Energies in float64, accumulated in float64, in the model's unit of energy.

        Raises:
            ValueError: shapes, NaN, unknown types, two beads of a replica at the same place.
            TypeError: positions of another dtype than the weights.
        """
        types = _tiled(types, pos, n_replicas)
        check_beads(pos, types, self.config.n_types, self.dtype)
        ptr = replica_ptr(pos.shape[0], batch, n_replicas, pos.device)
        pairs = _pairs(pos, ptr, self.config.r_cut) if nlist is None else nlist
        r, _ = pair_distances(pos, pairs, shift, kernel=self.kernel)
        _check_apart(r, pairs)
        h = self.embedding(types)
        for layer in self.interactions:
            m = convolution(layer.filter, r, pairs, self.kernel)(layer.project(h))
            h = h + layer.update(activate(self.config.activation, layer.mix(m)))
        for layer in self.readout[:-1]:
            h = activate(self.config.activation, layer(h))
        return _sum_replicas(self.readout[-1](h).squeeze(1), ptr, equal=batch is None)

    def energy_forces(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"],
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        nlist: HalfList | None = None,
        shift: Float[Tensor, "pairs 3"] | None = None,
        check: bool = True,
    ) -> tuple[Float[Tensor, " replicas"], Float[Tensor, "beads 3"]]:
        """Energies and forces ``-dE/dx`` of each replica in one forward and backward pass without a graph.

        The backward pass is written out: per layer it keeps the projected features and the activations,
        never a tensor of the size pairs x filters in the compiled kernels.

        Args:
            pos: positions of all replicas, one after the other, Å.
            types: bead types; with ``n_replicas``, those of one replica suffice.
            batch: replica of each bead, ascending, for replicas of different sizes; or
            n_replicas: number of replicas of equal size. Neither means one replica.
            nlist: pairs from :meth:`neighbours`; found here if absent.
            shift: lattice vectors of the pairs of a periodic ``nlist``, Å; see `periodic_pairs`.
            check: look for NaN, unknown types and coinciding beads first; a loop that checks its own
                positions may leave that out.

        Returns:
            Energies in float64, and forces in the dtype of ``pos`` (unit of energy / Å).

        Raises:
            ValueError: shapes, NaN, unknown types, two beads of a replica at the same place.
            TypeError: positions of another dtype than the weights.
        """
        types = _tiled(types, pos, n_replicas)
        if check:
            check_beads(pos, types, self.config.n_types, self.dtype)
        ptr = replica_ptr(pos.shape[0], batch, n_replicas, pos.device)
        with torch.no_grad():
            pairs = _pairs(pos, ptr, self.config.r_cut) if nlist is None else nlist
            r, direction = pair_distances(pos, pairs, shift, kernel=self.kernel)
            if check:
                _check_apart(r, pairs)
            convolutions = [convolution(layer.filter, r, pairs, self.kernel) for layer in self.interactions]
            energy, g_r = self._evaluate(types, ptr, r, convolutions, equal=batch is None)
            return energy, pair_forces(g_r, r, direction, pairs, kernel=self.kernel)

    def trainable_forces(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"],
        batch: Int[Tensor, " beads"] | None = None,
        *,
        n_replicas: int | None = None,
        nlist: HalfList | None = None,
        tables: Sequence[FilterTable] | None = None,
    ) -> tuple[Float[Tensor, " replicas"], Float[Tensor, "beads 3"]]:
        """Energies and forces, differentiable in the weights (not in the positions): for force matching.

        The backward pass to the positions is written out and recorded, so that a gradient of a function
        of forces takes one backward pass instead of two nested ones. Other arguments and errors as for
        :meth:`energy_forces`.

        Args:
            tables: tables of the layers' filters on one grid, to which the gradient is taken instead of to
                the filter networks: evaluating a network at a few hundred nodes costs less than at every
                pair, and the compiled operators apply.
        """
        types = _tiled(types, pos, n_replicas)
        check_beads(pos, types, self.config.n_types, self.dtype)
        ptr = replica_ptr(pos.shape[0], batch, n_replicas, pos.device)
        pos = pos.detach()
        pairs = _pairs(pos, ptr, self.config.r_cut) if nlist is None else nlist
        r, direction = pair_distances(pos, pairs, kernel="torch")
        _check_apart(r, pairs)
        if tables:
            convolutions = trainable_convolutions(tables, r, pairs)
        else:
            convolutions = [convolution(layer.filter, r, pairs, "torch") for layer in self.interactions]
        energy, g_r = self._evaluate(types, ptr, r, convolutions, equal=batch is None)
        return energy, pair_forces(g_r, r, direction, pairs, kernel="torch")

    def _evaluate(
        self,
        types: Tensor,
        ptr: Tensor,
        r: Tensor,
        convolutions: Sequence[Convolution],
        *,
        equal: bool,
    ) -> tuple[Tensor, Tensor]:
        """Energies and dE/dr of every pair, in one pass forward and one back."""
        activation = self.config.activation
        seen = rounded if self.half_activations else _as_it_is
        h = functional.embedding(types, self.embedding.weight)
        projected: list[Tensor] = []
        mixed: list[Tensor] = []
        for number, (layer, convolve) in enumerate(zip(self.interactions, convolutions, strict=True)):
            if number == 0:  # before the first layer, features are functions of the type alone
                x = functional.embedding(types, seen(self.embedding.weight) @ layer.project.weight.T)
            else:
                x = seen(h) @ layer.project.weight.T
            a = activate(activation, torch.addmm(layer.mix.bias, seen(convolve(x)), layer.mix.weight.T))
            h = torch.addmm(h, seen(a), layer.update.weight.T).add_(layer.update.bias)
            projected.append(x)
            mixed.append(a)
        outputs: list[Tensor] = []
        for layer in self.readout[:-1]:
            h = activate(activation, torch.addmm(layer.bias, seen(h), layer.weight.T))
            outputs.append(h)
        energy = _sum_replicas((seen(h) @ self.readout[-1].weight.T).squeeze(1), ptr, equal=equal)

        g = self.readout[-1].weight.expand(len(types), -1)  # dE/d(last hidden output)
        for layer, output in zip(reversed(self.readout[:-1]), reversed(outputs), strict=True):
            g = activation_backward(activation, g, output) @ layer.weight
        g_r = torch.zeros_like(r)
        for number in reversed(range(len(convolutions))):
            layer = self.interactions[number]
            g_mix = activation_backward(activation, g @ layer.update.weight, mixed[number])
            g_x, g_r_layer = convolutions[number].backward(
                g_mix @ layer.mix.weight,
                projected[number],
                features=number > 0,  # the first layer's features do not depend on positions
            )
            g_r = g_r + g_r_layer
            if number > 0:
                g = torch.addmm(g, g_x, layer.project.weight)
        return energy, g_r


def _as_it_is(x: Tensor) -> Tensor:
    return x


def _tiled(types: Tensor, pos: Tensor, n_replicas: int | None) -> Tensor:
    """Types of all replicas, where those of one were given."""
    one = n_replicas is not None and n_replicas > 1 and types.ndim == 1
    return types.repeat(n_replicas) if one and types.shape[0] * n_replicas == pos.shape[0] else types


def _pairs(pos: Tensor, ptr: Tensor, radius: float) -> HalfList:
    """All pairs i < j of each replica nearer than ``radius``."""
    return radius_pairs(pos.detach(), ptr, radius)[0]


def _check_apart(r: Tensor, pairs: HalfList) -> None:
    r = r.detach()[: int(pairs.ptr[-1])]  # spare places of the list hold nothing
    if r.numel() and float(r.amin()) < _CLOSEST:
        pair = int(r.argmin())
        i, j = pair_ends(pairs)
        raise ValueError(
            f"beads {int(i[pair])} and {int(j[pair])} are {float(r[pair]):.1e} Å apart: "
            f"no direction for a force below {_CLOSEST:g} Å; separate them"
        )


def _sum_replicas(energy: Tensor, ptr: Tensor, *, equal: bool) -> Tensor:
    """Energies of replicas from those of beads, accumulated in float64."""
    energy = energy.double()
    n_replicas = ptr.numel() - 1
    if equal:
        return energy.view(n_replicas, -1).sum(1)
    return segment_sum_csr(energy, ptr.to(torch.int32))
