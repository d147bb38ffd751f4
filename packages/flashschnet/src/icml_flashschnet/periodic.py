"""Energies, forces and stress of beads in a periodic cell.

No minimum image is assumed: a pair within the cutoff counts through every image, and a bead pairs with its
own images, so that a cell may be smaller than the cutoff. Axes that are not periodic ignore the cell,
whatever it holds.
"""

from __future__ import annotations

import torch
from icml_kernels.molecules.neighbors import HalfList
from icml_kernels.molecules.radius_pairs import radius_pairs
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_flashschnet.schnet import FlashSchNet


def periodic_pairs(
    pos: Float[Tensor, "beads 3"],
    cutoff: float,
    cell: Float[Tensor, "3 3"],
    pbc: Bool[Tensor, " 3"],
    *,
    skin: float = 0.0,
) -> tuple[HalfList, Int[Tensor, "pairs 3"]]:
    """The pairs of one system and the images through which they meet.

    Args:
        pos: positions, Å; they need not lie inside the cell.
        cutoff: Å.
        cell: rows are lattice vectors, Å.
        pbc: which axes are periodic.
        skin: extra distance, Å.

    Returns:
        The pairs, and the whole numbers S of each: ``S @ cell`` is what `FlashSchNet` takes as ``shift``.

    Raises:
        ValueError: a periodic axis whose lattice vector is missing or lies in the plane of the others.
    """
    ptr = torch.tensor([0, len(pos)], device=pos.device)
    pairs, images = radius_pairs(pos.detach(), ptr, cutoff, skin, cell=cell.to(pos), pbc=pbc)
    if images is None:
        images = torch.zeros(len(pairs.idx), 3, dtype=torch.int32, device=pos.device)
    return pairs, images


def energy_forces_stress(
    model: FlashSchNet,
    pos: Float[Tensor, "beads 3"],
    types: Int[Tensor, " beads"],
    cell: Float[Tensor, "3 3"],
    pairs: HalfList,
    images: Int[Tensor, "pairs 3"],
) -> tuple[float, Float[Tensor, "beads 3"], Float[Tensor, "3 3"]]:
    """Energy, forces, and the stress ``(1/V) dE/d(strain)``, from one pass forward and one back.

    Args:
        model: the network.
        pos: positions, Å.
        types: bead types.
        cell: rows are lattice vectors, Å.
        pairs: from :func:`periodic_pairs`.
        images: from :func:`periodic_pairs`.

    Returns:
        Energy in the model's unit, forces (unit / Å), symmetric stress (unit / Å^3; tension is positive).
    """
    pos = pos.detach().requires_grad_()
    strain = torch.zeros(3, 3, dtype=pos.dtype, device=pos.device, requires_grad=True)
    deformation = torch.eye(3, dtype=pos.dtype, device=pos.device) + 0.5 * (strain + strain.T)
    shift = images.to(pos.dtype) @ cell.to(pos) @ deformation
    energy = model(pos @ deformation, types, nlist=pairs, shift=shift)
    gradient, virial = torch.autograd.grad(energy.sum(), (pos, strain))
    volume = torch.linalg.det(cell.to(pos)).abs()
    return float(energy.detach()), -gradient, virial / volume
