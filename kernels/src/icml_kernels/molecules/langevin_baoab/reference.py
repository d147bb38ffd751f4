"""Langevin steps and their counter-based noise in plain torch: the definition of the ops.

The random stream is Philox-4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
as 1, 2, 3", SC 2011): a keyed bijection of a 128-bit counter, so that every normal is a function of
(seed, replica, step, bead) alone.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

ACCELERATION = 418.4
"""Å/ps² of one kcal/mol/Å on one amu: 4184 J/kcal / (1e-3 kg/mol) in (Å/ps)²."""
BOLTZMANN = 0.0019872041
"""kcal/mol/K."""
STREAM_SHIFT = 16
"""Bits of the fourth counter word below the stream's number: steps stay below 2**48."""

_MASK = 0xFFFFFFFF
_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10


def philox_4x32(counter: Tensor, key: tuple[int, int]) -> Tensor:
    """Map counters [..., 4] (32-bit words kept in int64) to random words [..., 4] under a 64-bit key."""
    c0, c1, c2, c3 = counter.unbind(-1)
    k0, k1 = key
    for _ in range(_ROUNDS):
        # The product wraps modulo 2**64; masking after the shift undoes the sign extension.
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            ((product1 >> 32) & _MASK) ^ c1 ^ k0,
            product1 & _MASK,
            ((product0 >> 32) & _MASK) ^ c3 ^ k1,
            product0 & _MASK,
        )
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return torch.stack((c0, c1, c2, c3), -1)


def philox_normal(replica: Tensor, step: Tensor, n_beads: int, seed: int, stream: int) -> Tensor:
    """Standard normals [replicas, beads, 3], float64: two Box-Muller pairs a bead, the last one unused."""
    beads = torch.arange(n_beads, device=replica.device).expand(len(replica), n_beads)
    high = ((step >> 32) & _MASK) | (stream << STREAM_SHIFT)
    counter = torch.stack(
        (beads, replica[:, None].expand_as(beads), (step & _MASK).expand_as(beads), high.expand_as(beads)), -1
    )
    words = philox_4x32(counter, (seed & _MASK, (seed >> 32) & _MASK))
    uniform = (words.double() + 0.5) * 2.0**-32
    radius = torch.sqrt(-2.0 * torch.log(uniform[..., 0::2]))
    angle = 2.0 * math.pi * uniform[..., 1::2]
    first, second = radius.unbind(-1)
    return torch.stack(
        (
            first * torch.cos(angle[..., 0]),
            first * torch.sin(angle[..., 0]),
            second * torch.cos(angle[..., 1]),
        ),
        -1,
    )


def baoab_drift(
    pos: Tensor,
    vel: Tensor,
    force: Tensor,
    mass: Tensor,
    temperature: Tensor,
    replica: Tensor,
    frozen: Tensor,
    step: Tensor,
    seed: int,
    friction: float,
    dt: float,
) -> tuple[Tensor, Tensor]:
    """B, A, O, A of one step: positions and velocities just before the closing half kick."""
    x, v, inverse_mass = pos.double(), vel.double(), 1.0 / mass.double()[:, None]
    v = v + (0.5 * dt * ACCELERATION) * force.double() * inverse_mass
    x = x + 0.5 * dt * v
    if friction > 0.0:
        decay = math.exp(-friction * dt)
        thermal = torch.sqrt(temperature.double()[:, None, None] * (BOLTZMANN * ACCELERATION) * inverse_mass)
        noise = philox_normal(replica, step, pos.shape[1], seed, 0)
        v = decay * v + math.sqrt(1.0 - decay * decay) * thermal * noise
    x = x + 0.5 * dt * v
    still = frozen[:, None, None]
    return torch.where(still, pos, x.to(pos.dtype)), torch.where(still, vel, v.to(vel.dtype))


def half_kick(vel: Tensor, force: Tensor, mass: Tensor, frozen: Tensor, dt: float) -> Tensor:
    """v + dt/2 F/m, the closing B of a step."""
    v = vel.double() + (0.5 * dt * ACCELERATION) * force.double() / mass.double()[:, None]
    return torch.where(frozen[:, None, None], vel, v.to(vel.dtype))


def brownian_step(
    pos: Tensor,
    force: Tensor,
    mass: Tensor,
    temperature: Tensor,
    replica: Tensor,
    frozen: Tensor,
    step: Tensor,
    seed: int,
    friction: float,
    dt: float,
) -> Tensor:
    """x + dt D F / kT + sqrt(2 D dt) (ξ_n + ξ_{n+1}) / 2 with D = kT / (m γ)."""
    mobility = ACCELERATION / (friction * mass.double()[:, None])
    diffusion = BOLTZMANN * temperature.double()[:, None, None] * mobility
    n_beads = pos.shape[1]
    noise = philox_normal(replica, step, n_beads, seed, 0) + philox_normal(
        replica, step + 1, n_beads, seed, 0
    )
    x = pos.double() + dt * mobility * force.double() + torch.sqrt(0.5 * dt * diffusion) * noise
    return torch.where(frozen[:, None, None], pos, x.to(pos.dtype))
