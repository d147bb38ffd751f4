"""One time step of many replicas: BAOAB Langevin, velocity Verlet and overdamped motion.

    baoab        v += dt/2 F/m;  x += dt/2 v;  v = c v + sqrt(1 - c²) sqrt(kT/m) ξ;  x += dt/2 v;
                 F = F(x);  v += dt/2 F/m,  with c = exp(-γ dt)
                 (Leimkuhler and Matthews, Appl. Math. Res. Express 2013, 34)
    nve          the same with γ = 0, which is velocity Verlet
    overdamped   x += dt D F/kT + sqrt(2 D dt) (ξ_n + ξ_n+1)/2,  D = kT/(m γ)

Units: Å, ps, amu, kcal/mol, K.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from icml_kernels.molecules.langevin_baoab import baoab_drift, brownian_step, half_kick, philox_normal
from jaxtyping import Bool, Float, Int
from torch import Tensor

from icml_flashschnet.units import ACCELERATION, BOLTZMANN

Integrator = Literal["baoab", "nve", "overdamped"]
INTEGRATORS = ("baoab", "nve", "overdamped")
VELOCITY_STREAM = 1
"""Stream of the random numbers that initial velocities take; stream 0 is the noise of the steps."""

Forces = Callable[[Tensor], tuple[Tensor, Tensor]]
"""Positions [replicas, beads, 3] to energies [replicas] (float64) and forces."""


@dataclass(frozen=True, eq=False)
class State:
    """All that the next step depends on besides the constants of motion."""

    step: int
    pos: Float[Tensor, "replicas beads 3"]
    vel: Float[Tensor, "replicas beads 3"]
    force: Float[Tensor, "replicas beads 3"]
    energy: Float[Tensor, " replicas"]
    frozen: Bool[Tensor, " replicas"]


@dataclass(frozen=True, eq=False)
class Motion:
    """Constants of motion: masses in amu, friction in 1/ps, time step in ps, numbers of the replicas."""

    integrator: Integrator
    mass: Float[Tensor, " beads"]
    friction: float
    dt: float
    seed: int
    replica: Int[Tensor, " replicas"]


def advance(state: State, motion: Motion, temperature: Float[Tensor, " replicas"], forces: Forces) -> State:
    """One step.

    Args:
        state: the present.
        motion: constants of motion.
        temperature: of each replica, K.
        forces: the potential.
    """
    noise: dict[str, Any] = {"seed": motion.seed, "step": state.step, "replica": motion.replica}
    common: dict[str, Any] = {"dt": motion.dt, "frozen": state.frozen}
    if motion.integrator == "overdamped":
        pos = brownian_step(
            state.pos, state.force, motion.mass,
            temperature=temperature, friction=motion.friction, **noise, **common,
        )  # fmt: skip
        energy, force = forces(pos)
        return State(state.step + 1, pos, state.vel, force, energy, state.frozen)
    friction = 0.0 if motion.integrator == "nve" else motion.friction
    pos, vel = baoab_drift(
        state.pos, state.vel, state.force, motion.mass,
        temperature=temperature, friction=friction, **noise, **common,
    )  # fmt: skip
    energy, force = forces(pos)
    vel = half_kick(vel, force, motion.mass, **common)
    return State(state.step + 1, pos, vel, force, energy, state.frozen)


def thermal_velocities(
    motion: Motion, temperature: Float[Tensor, " replicas"], *, remove_drift: bool = False
) -> Float[Tensor, "replicas beads 3"]:
    """Velocities of the Maxwell-Boltzmann distribution, Å/ps; replica numbers and seed determine them.

    Args:
        motion: constants of motion.
        temperature: of each replica, K.
        remove_drift: take away the motion of the centre of mass.
    """
    mass = motion.mass.double()
    noise = philox_normal(motion.seed, motion.replica, 0, len(mass), stream=VELOCITY_STREAM)
    vel = noise * torch.sqrt(BOLTZMANN * ACCELERATION * temperature.double()[:, None] / mass)[..., None]
    if remove_drift:
        vel = vel - (vel * mass[:, None]).sum(1, keepdim=True) / mass.sum()
    return vel.to(motion.mass.dtype)


def kinetic_temperature(
    vel: Float[Tensor, "replicas beads 3"], mass: Float[Tensor, " beads"]
) -> Float[Tensor, " replicas"]:
    """Temperature of the motion, Σ m v² / (3 N k), K; the motion of the centre of mass counts."""
    twice = (vel.double().square().sum(-1) * mass.double()).sum(-1) / ACCELERATION
    return twice / (3.0 * vel.shape[1] * BOLTZMANN)
