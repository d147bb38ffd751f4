"""CGSchNet in plain torch: the baseline that the fused path is measured against, with the same weights.

It follows the reference network as published models run it (arXiv 2602.13140 and mlcg): a full list of
directed edges, the radial basis ``[edges, n_rbf]``, filters and messages ``[edges, filters]`` held in
memory, a scatter over edges, and forces by autograd. Written for speed within these limits: edges sorted
by destination; ``index_select`` and ``index_add``, whose backward passes are each other (on a CPU, fancy
indexing falls back to a serial ``index_put`` that took seven times as long here); the basis and its
envelope computed once for all layers; no gradient for weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_flashschnet.activation import activate
from icml_flashschnet.convolution import pair_ends
from icml_flashschnet.radial import cosine_cutoff

if TYPE_CHECKING:
    from icml_kernels.molecules.neighbors import HalfList

    from icml_flashschnet.schnet import FlashSchNet


def directed_edges(pairs: HalfList) -> tuple[Int[Tensor, " edges"], Int[Tensor, " edges"]]:
    """Source and destination of every directed edge, each pair twice, sorted by destination, then source."""
    first, second = pair_ends(pairs)
    source, destination = torch.cat([second, first]), torch.cat([first, second])
    order = torch.argsort(destination * pairs.ptr.numel() + source)
    return source[order], destination[order]


class CGSchNetBaseline:
    """Energies and forces of a :class:`FlashSchNet`'s weights as plain torch would compute them.

    Args:
        model: gives the weights, which must not be tables; they are shared, and get no gradient here.
    """

    def __init__(self, model: FlashSchNet) -> None:
        self.config = model.config
        self.basis = model.interactions[0].filter.basis
        self.weights = {name: value.detach() for name, value in model.state_dict().items()}

    def energies(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"],
        edges: tuple[Int[Tensor, " edges"], Int[Tensor, " edges"]],
        n_replicas: int = 1,
    ) -> Float[Tensor, " replicas"]:
        """Energies of replicas of equal size, differentiable in the positions.

        Args:
            pos: positions of all replicas, Å.
            types: types of all beads.
            edges: source and destination from :func:`directed_edges`.
            n_replicas: number of replicas.
        """
        weight, activation = self.weights, self.config.activation
        source, destination = edges
        r = (pos.index_select(0, source) - pos.index_select(0, destination)).norm(dim=1)
        rbf = self.basis(r)
        envelope = cosine_cutoff(r, self.config.r_cut)[:, None] if self.config.filter_cutoff else None
        h = weight["embedding.weight"].index_select(0, types)
        for number in range(self.config.layers):
            layer = f"interactions.{number}"
            inner = torch.addmm(
                weight[f"{layer}.filter.inner.bias"], rbf, weight[f"{layer}.filter.inner.weight"].T
            )
            filters = activate(activation, inner) @ weight[f"{layer}.filter.outer.weight"].T
            if envelope is not None:
                filters = filters * envelope
            x = h @ weight[f"{layer}.project.weight"].T
            messages = x.index_select(0, source) * filters
            m = torch.zeros_like(x).index_add(0, destination, messages)
            a = activate(
                activation, torch.addmm(weight[f"{layer}.mix.bias"], m, weight[f"{layer}.mix.weight"].T)
            )
            h = h + torch.addmm(weight[f"{layer}.update.bias"], a, weight[f"{layer}.update.weight"].T)
        last = len(self.config.out)
        for number in range(last):
            h = activate(
                activation,
                torch.addmm(weight[f"readout.{number}.bias"], h, weight[f"readout.{number}.weight"].T),
            )
        return (h @ weight[f"readout.{last}.weight"].T).view(n_replicas, -1).double().sum(1)

    def energy_forces(
        self,
        pos: Float[Tensor, "beads 3"],
        types: Int[Tensor, " beads"],
        edges: tuple[Int[Tensor, " edges"], Int[Tensor, " edges"]],
        n_replicas: int = 1,
    ) -> tuple[Float[Tensor, " replicas"], Float[Tensor, "beads 3"]]:
        """Energies, and forces by autograd; arguments as for :meth:`energies`."""
        with torch.enable_grad():
            pos = pos.detach().requires_grad_()
            energy = self.energies(pos, types, edges, n_replicas)
            (gradient,) = torch.autograd.grad(energy.sum(), pos)
        return energy.detach(), gradient.neg_()
