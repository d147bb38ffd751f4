"""Small systems whose canonical averages are known: a bond of two beads, and a trapped Lennard-Jones cluster.

Bond: ``U = k (r - r0)^2``; the density of its length is ``r^2 exp(-U/kT)``, whose moments are one-dimensional
integrals. Cluster: Lennard-Jones in a harmonic trap has no closed form, but for any confined system

    < sum_i x_i . dU/dx_i > = 3 N kT       (the virial theorem of equipartition)

holds exactly, and tests forces and positions together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from icml_kernels.molecules.langevin_baoab import philox_normal
from jaxtyping import Float
from torch import Tensor

from icml_flashschnet.integrators import kinetic_temperature
from icml_flashschnet.simulation import LangevinSimulator
from icml_flashschnet.structure import Molecule
from icml_flashschnet.topology import Topology
from icml_flashschnet.units import ACCELERATION, BOLTZMANN


@dataclass(frozen=True)
class HarmonicDimer:
    """Two beads on a bond ``k (r - r0)^2`` (kcal/mol/Å^2, Å)."""

    k: float = 20.0
    r0: float = 3.8

    def molecule(self, mass: float = 12.0) -> Molecule:
        """Two beads at rest length."""
        return _beads(np.array([[0.0, 0.0, 0.0], [self.r0, 0.0, 0.0]]), mass)

    def energy_forces(
        self, pos: Float[Tensor, "beads 3"], types: Tensor, *, n_replicas: int = 1, nlist: None = None
    ) -> tuple[Float[Tensor, " replicas"], Float[Tensor, "beads 3"]]:
        """Energies and forces of all replicas."""
        d = pos[1::2] - pos[::2]
        r = d.norm(dim=1, keepdim=True)
        pull = 2 * self.k * (r - self.r0) * d / r
        return (self.k * (r - self.r0) ** 2).sum(1), torch.stack([pull, -pull], 1).view(-1, 3)

    def scores(
        self, pos: Float[np.ndarray, "replicas frames 2 3"], temperature: float
    ) -> tuple[float, float]:
        """Standard scores of the mean and the variance of the bond's length."""
        length = np.linalg.norm(pos[:, :, 1] - pos[:, :, 0], axis=-1)
        mean, variance = self.length_moments(temperature)
        return standard_score(length.mean(1), mean), standard_score(((length - mean) ** 2).mean(1), variance)

    def length_moments(self, temperature: float) -> tuple[float, float]:
        """Exact mean (Å) and variance (Å^2) of the bond's length, by quadrature on a fine grid."""
        r = np.linspace(0.0, 3 * self.r0, 200_001)[1:]
        weight = r**2 * np.exp(-self.k * (r - self.r0) ** 2 / (BOLTZMANN * temperature))
        weight /= weight.sum()
        mean = float((weight * r).sum())
        return mean, float((weight * (r - mean) ** 2).sum())


@dataclass(frozen=True)
class TrappedCluster:
    """Lennard-Jones beads (depth in kcal/mol, diameter in Å) in a trap ``k x^2 / 2`` (k in kcal/mol/Å^2)."""

    n_beads: int = 7
    depth: float = 0.6
    diameter: float = 4.0
    trap: float = 0.1

    def molecule(self, mass: float = 12.0) -> Molecule:
        """Beads on the corners of a lattice, one diameter and a bit apart."""
        side = int(np.ceil(self.n_beads ** (1 / 3)))
        corners = np.stack(np.meshgrid(*[np.arange(side)] * 3, indexing="ij"), -1).reshape(-1, 3)
        corners = corners[: self.n_beads] * (1.15 * self.diameter)
        return _beads(corners - corners.mean(0), mass)

    def energy_forces(
        self, pos: Float[Tensor, "beads 3"], types: Tensor, *, n_replicas: int = 1, nlist: None = None
    ) -> tuple[Float[Tensor, " replicas"], Float[Tensor, "beads 3"]]:
        """Energies and forces of all replicas."""
        x = pos.view(n_replicas, self.n_beads, 3)
        i, j = torch.triu_indices(self.n_beads, self.n_beads, 1, device=pos.device)
        d = x[:, j] - x[:, i]
        squared = d.square().sum(-1, keepdim=True)
        sixth = (self.diameter**2 / squared) ** 3
        energy = (4 * self.depth * (sixth**2 - sixth)).sum((1, 2)) + 0.5 * self.trap * x.square().sum((1, 2))
        push = 24 * self.depth * (2 * sixth**2 - sixth) / squared * d
        forces = (-self.trap * x).index_add(1, j, push).index_add(1, i, -push)
        return energy, forces.reshape(-1, 3)

    def virial_score(self, pos: Float[np.ndarray, "replicas frames beads 3"], temperature: float) -> float:
        """Standard score of the virial against 3 N kT."""
        x = torch.as_tensor(pos).reshape(-1, 3)
        replicas, frames = pos.shape[:2]
        _, forces = self.energy_forces(x, x, n_replicas=replicas * frames)
        virial = -(x * forces).view(replicas, frames, -1).sum(-1).mean(1)
        return standard_score(virial.numpy(), 3 * self.n_beads * BOLTZMANN * temperature)


def _beads(pos: np.ndarray, mass: float) -> Molecule:
    """A molecule of like beads without topology."""
    n = len(pos)
    none = Topology(*(np.zeros((0, k), dtype=np.int64) for k in (2, 3, 4)), ())
    return Molecule(
        pos=pos,
        types=np.zeros(n, dtype=np.int64),
        masses=np.full(n, mass),
        names=("X",) * n,
        labels=("X",) * n,
        residues=(),
        residue_of=np.zeros(n, dtype=np.int64),
        topology=none,
        representation=None,
    )


def equilibrium_samples(
    system: HarmonicDimer | TrappedCluster,
    *,
    steps: int,
    seed: int,
    euler: bool = False,
    n_replicas: int = 64,
    temperature: float = 300.0,
    friction: float = 10.0,
    dt: float = 0.002,
    device: str = "cpu",
) -> tuple[Float[np.ndarray, "replicas frames beads 3"], Float[np.ndarray, "replicas frames"]]:
    """Positions (Å) and kinetic temperatures (K) of every tenth step, after a tenth of the steps unseen.

    Args:
        system: what moves.
        steps: number of steps that are sampled.
        seed: of velocities and noise.
        euler: integrate by Euler and Maruyama instead of BAOAB, at the same step and with the same noise.
        n_replicas: independent replicas.
        temperature: K.
        friction: 1/ps.
        dt: time step, ps.
        device: where.
    """
    simulator = LangevinSimulator(
        system,
        system.molecule(),
        n_replicas=n_replicas,
        temperature=temperature,
        friction=friction,
        dt=dt,
        seed=seed,
        device=device,
        dtype="float64",
    )
    if euler:
        return _euler_maruyama(system, simulator, steps, temperature)
    simulator.run(steps // 10, save_every=steps)
    trajectory = simulator.run(steps, save_every=10)
    return trajectory.pos.astype(np.float64), trajectory.temperature


def _euler_maruyama(
    system: HarmonicDimer | TrappedCluster, simulator: LangevinSimulator, steps: int, temperature: float
) -> tuple[np.ndarray, np.ndarray]:
    """``x += dt v, v += dt (F/m - friction v) + sqrt(2 friction kT dt / m) xi``, all from the old state."""
    state, motion = simulator.state, simulator.motion
    pos, vel = state.pos, state.vel
    mass = motion.mass[:, None]
    kick = (2 * motion.friction * BOLTZMANN * temperature * ACCELERATION * motion.dt / mass) ** 0.5
    frames, temperatures = [], []
    for step in range(steps // 10 + steps):
        _, force = system.energy_forces(pos.view(-1, 3), simulator.types, n_replicas=pos.shape[0])
        noise = philox_normal(motion.seed, motion.replica, step, len(motion.mass))
        acceleration = ACCELERATION * force.view_as(pos) / mass - motion.friction * vel
        pos, vel = pos + motion.dt * vel, vel + motion.dt * acceleration + kick * noise
        if step >= steps // 10 and step % 10 == 0:
            frames.append(pos.cpu().numpy())
            temperatures.append(kinetic_temperature(vel, motion.mass).cpu().numpy())
    return np.stack(frames, 1), np.stack(temperatures, 1)


def standard_score(replica_means: Float[np.ndarray, " replicas"], exact: float) -> float:
    """How many standard errors the mean over independent replicas lies from the exact value.

    With n replicas this is a t statistic of n - 1 degrees of freedom if the sampling is right: for 64
    replicas, one in 260 lies beyond 3.
    """
    means = np.asarray(replica_means, dtype=np.float64)
    error = means.std(ddof=1) / np.sqrt(len(means))
    return float(abs(means.mean() - exact) / error)
