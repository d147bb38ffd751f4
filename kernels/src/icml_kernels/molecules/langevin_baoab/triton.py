"""Langevin steps with Triton: one lane a bead, its normals in registers.

Time step and friction are compiled into the kernels: Triton would pass them as float32.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.molecules.langevin_baoab.reference import ACCELERATION, BOLTZMANN, STREAM_SHIFT

BLOCK = 128

_STREAM_SHIFT = tl.constexpr(STREAM_SHIFT)
_UNIT = tl.constexpr(2.0**-32)
_QUARTER_TURN = tl.constexpr(0.5 * math.pi)


def philox_normal(replica: Tensor, step: Tensor, n_beads: int, seed: int, stream: int) -> Tensor:
    """See ``reference.philox_normal``."""
    out = torch.empty(len(replica), n_beads, 3, dtype=torch.float64, device=replica.device)
    total = len(replica) * n_beads
    if total:
        grid = (triton.cdiv(total, BLOCK),)
        philox_normal_kernel[grid](
            replica, step, seed, stream, out, n_beads, total, BLOCK=BLOCK, enable_fp_fusion=True
        )
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
    pos, vel, force = pos.contiguous(), vel.contiguous(), force.contiguous()
    new_pos, new_vel = torch.empty_like(pos), torch.empty_like(vel)
    total = pos.shape[0] * pos.shape[1]
    decay = math.exp(-friction * dt)
    if total:
        baoab_drift_kernel[(triton.cdiv(total, BLOCK),)](
            pos,
            vel,
            force,
            mass.contiguous(),
            temperature.contiguous(),
            replica.contiguous(),
            frozen.contiguous(),
            step,
            new_pos,
            new_vel,
            seed,
            pos.shape[1],
            total,
            0.5 * dt * ACCELERATION,
            0.5 * dt,
            decay,
            math.sqrt((1.0 - decay * decay) * BOLTZMANN * ACCELERATION),
            NOISE=friction > 0.0,
            BLOCK=BLOCK,
            enable_fp_fusion=True,
        )
    return new_pos, new_vel


def half_kick(vel: Tensor, force: Tensor, mass: Tensor, frozen: Tensor, dt: float) -> Tensor:
    """See ``reference.half_kick``."""
    vel, force = vel.contiguous(), force.contiguous()
    new_vel = torch.empty_like(vel)
    total = vel.numel()
    if total:
        half_kick_kernel[(triton.cdiv(total, BLOCK),)](
            vel,
            force,
            mass.contiguous(),
            frozen.contiguous(),
            new_vel,
            vel.shape[1],
            total,
            0.5 * dt * ACCELERATION,
            BLOCK=BLOCK,
            enable_fp_fusion=True,
        )
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
    pos, force = pos.contiguous(), force.contiguous()
    new_pos = torch.empty_like(pos)
    total = pos.shape[0] * pos.shape[1]
    if total:
        brownian_step_kernel[(triton.cdiv(total, BLOCK),)](
            pos,
            force,
            mass.contiguous(),
            temperature.contiguous(),
            replica.contiguous(),
            frozen.contiguous(),
            step,
            new_pos,
            seed,
            pos.shape[1],
            total,
            dt * ACCELERATION / friction,
            math.sqrt(0.5 * dt * BOLTZMANN * ACCELERATION / friction),
            BLOCK=BLOCK,
            enable_fp_fusion=True,
        )
    return new_pos


def specializations() -> list[Specialization]:
    """What is compiled ahead of time: every kernel in both precisions, and a step without noise."""
    integers = {
        "replica_ptr": "*i64",
        "frozen_ptr": "*i1",
        "step_ptr": "*i64",
        "seed": "i64",
        "stream": "i32",
    }
    integers |= {"n_beads": "i32", "total": "i32"}
    constants = {
        "half_kick": 0.8,
        "half_dt": 0.002,
        "decay": 0.99,
        "spread": 0.1,
        "drift": 1.6,
        "BLOCK": BLOCK,
    }
    found = []
    for kernel, number, noise in (
        (philox_normal_kernel, "*fp64", True),
        *(
            (kernel, n, True)
            for kernel in (baoab_drift_kernel, brownian_step_kernel)
            for n in ("*fp32", "*fp64")
        ),
        (half_kick_kernel, "*fp32", False),
        (half_kick_kernel, "*fp64", False),
        (baoab_drift_kernel, "*fp32", False),
    ):
        names = kernel.arg_names
        values = {**constants, "NOISE": noise}
        types = {**{name: number for name in names if name.endswith("_ptr")}, **integers}
        found.append(
            Specialization(
                kernel,
                {name: types[name] for name in names if name in types},
                {name: values[name] for name in names if name in values},
            )
        )
    return found


@triton.jit
def _uniform(word, dtype: tl.constexpr):
    """(word + 1/2) / 2**32: in float32 the relative error stays 2**-24 down to the smallest value."""
    return word.to(dtype) * _UNIT + 0.5 * _UNIT


@triton.jit
def _cos_sin_of_turns(u):
    """cos 2πu and sin 2πu for 0 <= u < 1, by Taylor series within an eighth of a turn (error below 1e-16).

    The library's functions must reduce any angle and keep a table on the stack for it.
    """
    quarters = tl.floor(4.0 * u + 0.5)
    quadrant = quarters.to(tl.int32) & 3
    x = (4.0 * u - quarters) * _QUARTER_TURN
    y = x * x
    # x - x³/3! + ... and 1 - x²/2! + ..., from the smallest term inwards.
    s = 1.0 - y * (1.0 / 272.0)
    s = 1.0 - y * (1.0 / 210.0) * s
    s = 1.0 - y * (1.0 / 156.0) * s
    s = 1.0 - y * (1.0 / 110.0) * s
    s = 1.0 - y * (1.0 / 72.0) * s
    s = 1.0 - y * (1.0 / 42.0) * s
    s = 1.0 - y * (1.0 / 20.0) * s
    s = 1.0 - y * (1.0 / 6.0) * s
    c = 1.0 - y * (1.0 / 240.0)
    c = 1.0 - y * (1.0 / 182.0) * c
    c = 1.0 - y * (1.0 / 132.0) * c
    c = 1.0 - y * (1.0 / 90.0) * c
    c = 1.0 - y * (1.0 / 56.0) * c
    c = 1.0 - y * (1.0 / 30.0) * c
    c = 1.0 - y * (1.0 / 12.0) * c
    c = 1.0 - y * (1.0 / 2.0) * c
    s = x * s
    swapped = (quadrant & 1) == 1
    cosine, sine = tl.where(swapped, s, c), tl.where(swapped, c, s)
    cosine = tl.where((quadrant == 1) | (quadrant == 2), -cosine, cosine)
    return cosine, tl.where(quadrant >= 2, -sine, sine)


@triton.jit
def bead_normals(bead, replica, step, stream, seed, dtype: tl.constexpr):
    """Three standard normals a bead; `bead` and `replica` are blocks, `step` a 64-bit scalar."""
    low = (step & 0xFFFFFFFF).to(tl.uint32) + (bead * 0).to(tl.uint32)
    high = ((step >> 32).to(tl.uint32) | (stream.to(tl.uint32) << _STREAM_SHIFT)) + (bead * 0).to(tl.uint32)
    w0, w1, w2, w3 = tl.philox(seed, bead.to(tl.uint32), replica.to(tl.uint32), low, high)
    radius = tl.sqrt(-2.0 * tl.log(_uniform(w0, dtype)))
    cosine, sine = _cos_sin_of_turns(_uniform(w1, dtype))
    second = tl.sqrt(-2.0 * tl.log(_uniform(w2, dtype)))
    third, _ = _cos_sin_of_turns(_uniform(w3, dtype))
    return radius * cosine, radius * sine, second * third


@triton.jit(do_not_specialize=["seed", "stream"])
def philox_normal_kernel(replica_ptr, step_ptr, seed, stream, out_ptr, n_beads, total, BLOCK: tl.constexpr):
    """Standard normals [replicas, beads, 3]."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < total
    replica = tl.load(replica_ptr + row // n_beads, mask=inside, other=0)
    dtype: tl.constexpr = out_ptr.dtype.element_ty
    step = tl.load(step_ptr)
    a, b, c = bead_normals(row % n_beads, replica, step, tl.to_tensor(stream), seed, dtype)
    tl.store(out_ptr + row * 3, a, mask=inside)
    tl.store(out_ptr + row * 3 + 1, b, mask=inside)
    tl.store(out_ptr + row * 3 + 2, c, mask=inside)


@triton.jit
def _load_row(base, row, mask):
    """The three components of each row of an [..., 3] array."""
    at = base + row * 3
    x = tl.load(at, mask=mask, other=0.0)
    y = tl.load(at + 1, mask=mask, other=0.0)
    z = tl.load(at + 2, mask=mask, other=0.0)
    return x, y, z


@triton.jit
def _store_row(base, row, x, y, z, mask):
    at = base + row * 3
    tl.store(at, x, mask=mask)
    tl.store(at + 1, y, mask=mask)
    tl.store(at + 2, z, mask=mask)


@triton.jit(do_not_specialize=["seed"])
def baoab_drift_kernel(
    pos_ptr,
    vel_ptr,
    force_ptr,
    mass_ptr,
    temperature_ptr,
    replica_ptr,
    frozen_ptr,
    step_ptr,
    new_pos_ptr,
    new_vel_ptr,
    seed,
    n_beads,
    total,
    half_kick: tl.constexpr,
    half_dt: tl.constexpr,
    decay: tl.constexpr,
    spread: tl.constexpr,
    NOISE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """B, A, O, A."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    owner = row // n_beads
    bead = row % n_beads
    inside = row < total
    still = tl.load(frozen_ptr + owner, mask=inside, other=1).to(tl.int32) != 0
    dtype: tl.constexpr = pos_ptr.dtype.element_ty
    inverse_mass = 1.0 / tl.load(mass_ptr + bead, mask=inside, other=1.0).to(dtype)
    kick = half_kick * inverse_mass
    x0, y0, z0 = _load_row(pos_ptr, row, inside)
    u0, v0, w0 = _load_row(vel_ptr, row, inside)
    fx, fy, fz = _load_row(force_ptr, row, inside)
    u, v, w = u0 + kick * fx, v0 + kick * fy, w0 + kick * fz
    x, y, z = x0 + half_dt * u, y0 + half_dt * v, z0 + half_dt * w
    if NOISE:
        replica = tl.load(replica_ptr + owner, mask=inside, other=0)
        temperature = tl.load(temperature_ptr + owner, mask=inside, other=0.0).to(dtype)
        thermal = spread * tl.sqrt(temperature * inverse_mass)
        a, b, c = bead_normals(bead, replica, tl.load(step_ptr), tl.to_tensor(0), seed, dtype)
        u, v, w = decay * u + thermal * a, decay * v + thermal * b, decay * w + thermal * c
    x, y, z = x + half_dt * u, y + half_dt * v, z + half_dt * w
    _store_row(
        new_pos_ptr, row, tl.where(still, x0, x), tl.where(still, y0, y), tl.where(still, z0, z), inside
    )
    _store_row(
        new_vel_ptr, row, tl.where(still, u0, u), tl.where(still, v0, v), tl.where(still, w0, w), inside
    )


@triton.jit
def half_kick_kernel(
    vel_ptr,
    force_ptr,
    mass_ptr,
    frozen_ptr,
    new_vel_ptr,
    n_beads,
    total,
    half_kick: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """v + dt/2 F/m; one lane a component."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < total
    row = at // 3
    still = tl.load(frozen_ptr + row // n_beads, mask=inside, other=1).to(tl.int32) != 0
    vel = tl.load(vel_ptr + at, mask=inside, other=0.0)
    mass = tl.load(mass_ptr + row % n_beads, mask=inside, other=1.0).to(vel.dtype)
    kicked = vel + half_kick / mass * tl.load(force_ptr + at, mask=inside, other=0.0)
    tl.store(new_vel_ptr + at, tl.where(still, vel, kicked), mask=inside)


@triton.jit(do_not_specialize=["seed"])
def brownian_step_kernel(
    pos_ptr,
    force_ptr,
    mass_ptr,
    temperature_ptr,
    replica_ptr,
    frozen_ptr,
    step_ptr,
    new_pos_ptr,
    seed,
    n_beads,
    total,
    drift: tl.constexpr,
    spread: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Leimkuhler and Matthews' overdamped step."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    owner = row // n_beads
    bead = row % n_beads
    inside = row < total
    still = tl.load(frozen_ptr + owner, mask=inside, other=1).to(tl.int32) != 0
    dtype: tl.constexpr = pos_ptr.dtype.element_ty
    inverse_mass = 1.0 / tl.load(mass_ptr + bead, mask=inside, other=1.0).to(dtype)
    temperature = tl.load(temperature_ptr + owner, mask=inside, other=0.0).to(dtype)
    replica = tl.load(replica_ptr + owner, mask=inside, other=0)
    step = tl.load(step_ptr)
    a, b, c = bead_normals(bead, replica, step, tl.to_tensor(0), seed, dtype)
    d, e, f = bead_normals(bead, replica, step + 1, tl.to_tensor(0), seed, dtype)
    move = drift * inverse_mass
    thermal = spread * tl.sqrt(temperature * inverse_mass)
    x0, y0, z0 = _load_row(pos_ptr, row, inside)
    fx, fy, fz = _load_row(force_ptr, row, inside)
    x, y, z = (
        x0 + move * fx + thermal * (a + d),
        y0 + move * fy + thermal * (b + e),
        z0 + move * fz + thermal * (c + f),
    )
    _store_row(
        new_pos_ptr, row, tl.where(still, x0, x), tl.where(still, y0, y), tl.where(still, z0, z), inside
    )
