"""Langevin steps on the CPU: the beads in equal shares to the threads, one pass, nothing allocated inside.

Arithmetic is in float64 whatever the arrays hold, so that float32 runs use the same normals.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icml_kernels.molecules.langevin_baoab.reference import ACCELERATION, BOLTZMANN, STREAM_SHIFT
from icml_kernels.njit import njit, prange, threads

SHARE = 1024
"""Beads that are worth a thread: about 0.1 ms of random numbers."""

_MASK = np.uint64(0xFFFFFFFF)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_SHIFT = np.uint64(32)
_STREAM_SHIFT = np.uint64(STREAM_SHIFT)
_UNIT = 2.0**-32
_TURN = 2.0 * math.pi * _UNIT


def philox_normal(replica: Tensor, step: Tensor, n_beads: int, seed: int, stream: int) -> Tensor:
    """See ``reference.philox_normal``."""
    out = torch.empty(len(replica), n_beads, 3, dtype=torch.float64)
    arguments = (*_arrays(replica), step.item(), stream, seed, out.numpy())
    _run(_philox_normal, _philox_normal_shares, out, arguments)
    return out


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
    """See ``reference.baoab_drift``."""
    new_pos, new_vel = _like(pos), _like(vel)
    inputs = _arrays(pos, vel, force, mass, temperature, replica, frozen)
    arguments = (*inputs, step.item(), seed, friction, dt, new_pos.numpy(), new_vel.numpy())
    _run(_baoab_drift, _baoab_drift_shares, pos, arguments)
    return new_pos, new_vel


def half_kick(vel: Tensor, force: Tensor, mass: Tensor, frozen: Tensor, dt: float) -> Tensor:
    """See ``reference.half_kick``."""
    new_vel = _like(vel)
    _run(_half_kick, _half_kick_shares, vel, (*_arrays(vel, force, mass, frozen), dt, new_vel.numpy()))
    return new_vel


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
    """See ``reference.brownian_step``."""
    new_pos = _like(pos)
    inputs = _arrays(pos, force, mass, temperature, replica, frozen)
    _run(
        _brownian_step,
        _brownian_step_shares,
        pos,
        (*inputs, step.item(), seed, friction, dt, new_pos.numpy()),
    )
    return new_pos


def _arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(tensor.contiguous().numpy() for tensor in tensors)


def _like(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype)


def _run(
    alone: Callable[..., None], shared: Callable[..., None], per_bead: Tensor, arguments: tuple[Any, ...]
) -> None:
    """Without a second thread numba's thread pool is not even started."""
    total = per_bead.shape[0] * per_bead.shape[1]
    shares = min(threads(), 1 + total // SHARE)
    if shares == 1:
        alone(0, total, *arguments)
    else:
        shared(np.arange(shares + 1) * total // shares, *arguments)


@njit(inline="always", fastmath=False)
def philox_words(c0, c1, c2, c3, k0, k1):
    """Philox-4x32-10 on 32-bit words kept in uint64."""
    for _ in range(10):
        product0, product1 = c0 * _M0, c2 * _M1
        c0 = (product1 >> _SHIFT) ^ c1 ^ k0
        c2 = (product0 >> _SHIFT) ^ c3 ^ k1
        c1 = product1 & _MASK
        c3 = product0 & _MASK
        k0 = (k0 + _W0) & _MASK
        k1 = (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@njit(inline="always", fastmath=False)
def bead_normals(bead, replica, step, stream, seed):
    """Three standard normals of one bead in one step."""
    counter = np.uint64(step)
    key = np.uint64(seed)
    high = (counter >> _SHIFT) | (np.uint64(stream) << _STREAM_SHIFT)
    w0, w1, w2, w3 = philox_words(
        np.uint64(bead), np.uint64(replica), counter & _MASK, high, key & _MASK, key >> _SHIFT
    )
    radius = math.sqrt(-2.0 * math.log((np.float64(w0) + 0.5) * _UNIT))
    angle = (np.float64(w1) + 0.5) * _TURN
    second = math.sqrt(-2.0 * math.log((np.float64(w2) + 0.5) * _UNIT))
    third = second * math.cos((np.float64(w3) + 0.5) * _TURN)
    return radius * math.cos(angle), radius * math.sin(angle), third


@njit(fastmath=False)
def _philox_normal(begin, end, replica, step, stream, seed, out):
    n_beads = out.shape[1]
    for row in range(begin, end):
        r, bead = row // n_beads, row % n_beads
        out[r, bead, 0], out[r, bead, 1], out[r, bead, 2] = bead_normals(bead, replica[r], step, stream, seed)


@njit(fastmath=False)
def _baoab_drift(
    begin,
    end,
    pos,
    vel,
    force,
    mass,
    temperature,
    replica,
    frozen,
    step,
    seed,
    friction,
    dt,
    new_pos,
    new_vel,
):
    n_beads = pos.shape[1]
    half = 0.5 * dt
    decay = math.exp(-friction * dt)
    spread = math.sqrt((1.0 - decay * decay) * BOLTZMANN * ACCELERATION)
    for row in range(begin, end):
        r, bead = row // n_beads, row % n_beads
        if frozen[r]:
            for axis in range(3):
                new_pos[r, bead, axis] = pos[r, bead, axis]
                new_vel[r, bead, axis] = vel[r, bead, axis]
            continue
        inverse_mass = 1.0 / np.float64(mass[bead])
        kick = half * ACCELERATION * inverse_mass
        vx = vel[r, bead, 0] + kick * force[r, bead, 0]
        vy = vel[r, bead, 1] + kick * force[r, bead, 1]
        vz = vel[r, bead, 2] + kick * force[r, bead, 2]
        x = pos[r, bead, 0] + half * vx
        y = pos[r, bead, 1] + half * vy
        z = pos[r, bead, 2] + half * vz
        if friction > 0.0:
            thermal = spread * math.sqrt(temperature[r] * inverse_mass)
            nx, ny, nz = bead_normals(bead, replica[r], step, 0, seed)
            vx = decay * vx + thermal * nx
            vy = decay * vy + thermal * ny
            vz = decay * vz + thermal * nz
        new_pos[r, bead, 0] = x + half * vx
        new_pos[r, bead, 1] = y + half * vy
        new_pos[r, bead, 2] = z + half * vz
        new_vel[r, bead, 0], new_vel[r, bead, 1], new_vel[r, bead, 2] = vx, vy, vz


@njit(fastmath=False)
def _half_kick(begin, end, vel, force, mass, frozen, dt, new_vel):
    n_beads = vel.shape[1]
    for row in range(begin, end):
        r, bead = row // n_beads, row % n_beads
        if frozen[r]:
            for axis in range(3):
                new_vel[r, bead, axis] = vel[r, bead, axis]
            continue
        kick = 0.5 * dt * ACCELERATION / np.float64(mass[bead])
        for axis in range(3):
            new_vel[r, bead, axis] = vel[r, bead, axis] + kick * force[r, bead, axis]


@njit(fastmath=False)
def _brownian_step(
    begin, end, pos, force, mass, temperature, replica, frozen, step, seed, friction, dt, new_pos
):
    n_beads = pos.shape[1]
    for row in range(begin, end):
        r, bead = row // n_beads, row % n_beads
        if frozen[r]:
            for axis in range(3):
                new_pos[r, bead, axis] = pos[r, bead, axis]
            continue
        mobility = ACCELERATION / (friction * np.float64(mass[bead]))
        drift = dt * mobility
        spread = math.sqrt(0.5 * dt * BOLTZMANN * temperature[r] * mobility)
        ax, ay, az = bead_normals(bead, replica[r], step, 0, seed)
        bx, by, bz = bead_normals(bead, replica[r], step + 1, 0, seed)
        new_pos[r, bead, 0] = pos[r, bead, 0] + drift * force[r, bead, 0] + spread * (ax + bx)
        new_pos[r, bead, 1] = pos[r, bead, 1] + drift * force[r, bead, 1] + spread * (ay + by)
        new_pos[r, bead, 2] = pos[r, bead, 2] + drift * force[r, bead, 2] + spread * (az + bz)


@njit(parallel=True, fastmath=False)
def _philox_normal_shares(bounds, replica, step, stream, seed, out):
    for s in prange(len(bounds) - 1):
        _philox_normal(bounds[s], bounds[s + 1], replica, step, stream, seed, out)


@njit(parallel=True, fastmath=False)
def _baoab_drift_shares(
    bounds, pos, vel, force, mass, temperature, replica, frozen, step, seed, friction, dt, new_pos, new_vel
):
    for s in prange(len(bounds) - 1):
        _baoab_drift(
            bounds[s],
            bounds[s + 1],
            pos,
            vel,
            force,
            mass,
            temperature,
            replica,
            frozen,
            step,
            seed,
            friction,
            dt,
            new_pos,
            new_vel,
        )


@njit(parallel=True, fastmath=False)
def _half_kick_shares(bounds, vel, force, mass, frozen, dt, new_vel):
    for s in prange(len(bounds) - 1):
        _half_kick(bounds[s], bounds[s + 1], vel, force, mass, frozen, dt, new_vel)


@njit(parallel=True, fastmath=False)
def _brownian_step_shares(
    bounds, pos, force, mass, temperature, replica, frozen, step, seed, friction, dt, new_pos
):
    for s in prange(len(bounds) - 1):
        _brownian_step(
            bounds[s],
            bounds[s + 1],
            pos,
            force,
            mass,
            temperature,
            replica,
            frozen,
            step,
            seed,
            friction,
            dt,
            new_pos,
        )
