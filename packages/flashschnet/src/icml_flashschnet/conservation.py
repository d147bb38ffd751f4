"""Are forces minus the gradient of the energy? Central differences, and the energy in free motion.

Kernels published with the paper return no gradient for the distance argument of the filters' envelope, so
that their forces lack the term in dC/dr: :func:`without_envelope_slope` makes the same mistake on purpose.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from icml_flashschnet.filter_network import FilterNetwork
from icml_flashschnet.radial import cosine_cutoff
from icml_flashschnet.schnet import FlashSchNet
from icml_flashschnet.units import BOLTZMANN


def gradient_errors(
    potential: Any,
    pos: Float[Tensor, "beads 3"],
    types: Int[Tensor, " beads"],
    *,
    directions: int = 50,
    step: float = 1e-4,
    seed: int = 0,
) -> list[float]:
    """Difference between forces and central differences of the energy along random directions.

    ``|F.d + (E(x + s d) - E(x - s d)) / 2s|``, over the root mean square of ``F.d``, which is what an
    error must be compared with (a direction in which the energy happens not to change has no scale).

    Args:
        potential: gives energies and forces, in float64.
        pos: positions, Å, float64.
        types: bead types.
        directions: number of directions, unit vectors in the space of all coordinates.
        step: s, Å; small beside the distances over which forces change, large beside rounding.
        seed: of the directions.
    """
    generator = torch.Generator().manual_seed(seed % 2**31)
    _, forces = potential.energy_forces(pos, types)
    slopes, differences = [], []
    for _ in range(directions):
        d = torch.randn(pos.shape, generator=generator, dtype=pos.dtype).to(pos.device)
        d /= d.norm()
        up = potential.energy_forces(pos + step * d, types)[0]
        down = potential.energy_forces(pos - step * d, types)[0]
        slopes.append(-float((forces * d).sum()))
        differences.append(float((up - down).sum()) / (2 * step))
    scale = float(np.sqrt(np.mean(np.square(slopes))))
    return [abs(a - b) / scale for a, b in zip(slopes, differences, strict=True)]


def drift_per_degree_of_freedom(
    energy: Float[np.ndarray, "replicas frames"],
    time: Float[np.ndarray, " frames"],
    n_beads: int,
    temperature: float,
) -> float:
    """Slope of the total energy in constant-energy motion, kT per degree of freedom and ps.

    Args:
        energy: total energies, kcal/mol.
        time: of the frames, ps.
        n_beads: beads of a replica.
        temperature: that kT stands for, K.
    """
    slopes = np.polyfit(time, np.asarray(energy, dtype=np.float64).T, 1)[0]
    return float(np.abs(slopes).mean() / (3 * n_beads * BOLTZMANN * temperature))


class _WithoutEnvelopeSlope(nn.Module):
    """A filter network whose slope leaves out dC/dr of the outer envelope."""

    def __init__(self, network: FilterNetwork) -> None:
        super().__init__()
        self.network = network
        self.bare = copy.deepcopy(network)
        self.bare.envelope = False

    def forward(self, r: Tensor) -> Tensor:
        return self.network(r)

    def with_slope(self, r: Tensor) -> tuple[Tensor, Tensor]:
        envelope = cosine_cutoff(r, self.network.basis.r_cut)[:, None]
        filters, slopes = self.bare.with_slope(r)
        return filters * envelope, slopes * envelope


def without_envelope_slope(model: FlashSchNet) -> FlashSchNet:
    """A copy with the same energies, whose fused forces lack the derivative of the filters' envelope."""
    model = copy.deepcopy(model)
    model.kernel = "torch"
    for layer in model.interactions:
        layer.filter = _WithoutEnvelopeSlope(layer.filter)
    return model
