"""Prior energies and gradients with Triton: one warp a bead of a replica, one lane a term of that bead.

Each bead's warp computes every term it stands in and keeps its own share of the gradient, so that nothing is
added atomically and the sums run in a fixed order. A term's energy is counted by its first bead, in float64.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from icml_kernels.ahead_of_time import Specialization
from icml_kernels.molecules.bonded.reference import STRAIGHT
from icml_kernels.molecules.bonded.terms import PLACES

BLOCK = 32

_STRAIGHT = tl.constexpr(STRAIGHT)
_PLACES = tl.constexpr(PLACES)


def energy_gradient(
    pos: Tensor,
    bonds: Tensor,
    bond_table: Tensor,
    angles: Tensor,
    angle_table: Tensor,
    dihedrals: Tensor,
    dihedral_table: Tensor,
    types: Tensor,
    sigma: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    offset: Tensor,
    incidence_ptr: Tensor,
    incidence: Tensor,
    cutoff: float,
    switch: float,
) -> tuple[Tensor, Tensor]:
    """See ``reference.energy_gradient``."""
    n_replicas, n_beads = pos.shape[:2]
    energy = torch.empty(n_replicas, n_beads, 4, dtype=torch.float64, device=pos.device)
    gradient = torch.empty(pos.shape, dtype=pos.dtype, device=pos.device)
    inputs = (
        pos,
        bonds,
        bond_table,
        angles,
        angle_table,
        dihedrals,
        dihedral_table,
        types,
        sigma,
        ptr,
        idx,
        ptr_t,
        idx_t,
        pair_t,
        offset,
        incidence_ptr,
        incidence,
    )
    if n_replicas * n_beads:
        energy_gradient_kernel[(n_replicas * n_beads,)](
            *(tensor.contiguous() for tensor in inputs),
            energy,
            gradient,
            n_beads,
            len(sigma),
            ORDER=(dihedral_table.shape[1] - 1) // 2,
            REPULSION=len(sigma) > 0,
            SHIFTED=len(offset) > 0,
            cutoff=cutoff,
            switch=switch,
            BLOCK=BLOCK,
            num_warps=1,
            enable_fp_fusion=True,
        )
    return energy.sum(1), gradient


def specializations() -> list[Specialization]:
    """What is compiled ahead of time: every part, the bonded terms alone, and the most in float64."""
    pointers = [name for name in energy_gradient_kernel.arg_names if name.endswith("_ptr")]
    found = []
    for number, order, repulsion, shifted in (
        ("*fp32", 3, True, False),
        ("*fp32", 0, False, False),
        ("*fp64", 6, True, True),
    ):
        signature = dict.fromkeys(pointers, "*i32")
        signature |= dict.fromkeys(("bonds_ptr", "angles_ptr", "dihedrals_ptr", "types_ptr"), "*i64")
        signature |= {name: number for name in pointers if "table" in name}
        signature |= dict.fromkeys(("pos_ptr", "sigma_ptr", "offset_ptr", "gradient_ptr"), number)
        signature |= {"energy_ptr": "*fp64", "n_beads": "i32", "n_types": "i32"}
        constants = {"ORDER": order, "REPULSION": repulsion, "SHIFTED": shifted}
        constants |= {"cutoff": 10.0, "switch": 8.0, "BLOCK": BLOCK}
        found.append(Specialization(energy_gradient_kernel, signature, constants, num_warps=1))
    return found


@triton.jit
def _position(pos_ptr, row, mask):
    x = tl.load(pos_ptr + row * 3, mask=mask, other=0.0)
    y = tl.load(pos_ptr + row * 3 + 1, mask=mask, other=0.0)
    z = tl.load(pos_ptr + row * 3 + 2, mask=mask, other=0.0)
    return x, y, z


@triton.jit
def _cross(ax, ay, az, bx, by, bz):
    return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


@triton.jit
def _dot(ax, ay, az, bx, by, bz):
    return ax * bx + ay * by + az * bz


@triton.jit
def _entry(table_ptr, term, column: tl.constexpr, columns: tl.constexpr, mask, dtype: tl.constexpr):
    return tl.load(table_ptr + term * columns + column, mask=mask, other=0.0).to(dtype)


@triton.jit
def _bond(pos_ptr, base, index_ptr, table_ptr, term, place, mask, dtype: tl.constexpr):
    ax, ay, az = _position(pos_ptr, base + tl.load(index_ptr + term * 2, mask=mask, other=0), mask)
    bx, by, bz = _position(pos_ptr, base + tl.load(index_ptr + term * 2 + 1, mask=mask, other=0), mask)
    dx, dy, dz = bx - ax, by - ay, bz - az
    r = tl.sqrt(_dot(dx, dy, dz, dx, dy, dz))
    k = _entry(table_ptr, term, 0, 2, mask, dtype)
    stretch = r - _entry(table_ptr, term, 1, 2, mask, dtype)
    slope = tl.where(place == 1, 2.0, -2.0).to(dtype) * k * stretch / r
    return k * stretch * stretch, slope * dx, slope * dy, slope * dz


@triton.jit
def _angle(pos_ptr, base, index_ptr, table_ptr, term, place, mask, dtype: tl.constexpr):
    ax, ay, az = _position(pos_ptr, base + tl.load(index_ptr + term * 3, mask=mask, other=0), mask)
    bx, by, bz = _position(pos_ptr, base + tl.load(index_ptr + term * 3 + 1, mask=mask, other=0), mask)
    cx, cy, cz = _position(pos_ptr, base + tl.load(index_ptr + term * 3 + 2, mask=mask, other=0), mask)
    ux, uy, uz = ax - bx, ay - by, az - bz
    wx, wy, wz = cx - bx, cy - by, cz - bz
    inverse_u = 1.0 / tl.sqrt(_dot(ux, uy, uz, ux, uy, uz))
    inverse_w = 1.0 / tl.sqrt(_dot(wx, wy, wz, wx, wy, wz))
    ux, uy, uz = ux * inverse_u, uy * inverse_u, uz * inverse_u
    wx, wy, wz = wx * inverse_w, wy * inverse_w, wz * inverse_w
    cosine = _dot(ux, uy, uz, wx, wy, wz)
    t = cosine - _entry(table_ptr, term, 0, 7, mask, dtype)
    a0, a1 = _entry(table_ptr, term, 1, 7, mask, dtype), _entry(table_ptr, term, 2, 7, mask, dtype)
    a2, a3 = _entry(table_ptr, term, 3, 7, mask, dtype), _entry(table_ptr, term, 4, 7, mask, dtype)
    a4, k = _entry(table_ptr, term, 5, 7, mask, dtype), _entry(table_ptr, term, 6, 7, mask, dtype)
    nx, ny, nz = _cross(ux, uy, uz, wx, wy, wz)
    inverse = 1.0 / tl.where(k == 0.0, 1.0, _dot(nx, ny, nz, nx, ny, nz))
    energy = a0 + t * (a1 + t * (a2 + t * (a3 + t * a4))) + k * inverse
    slope = a1 + t * (2.0 * a2 + t * (3.0 * a3 + t * 4.0 * a4)) + 2.0 * k * cosine * inverse * inverse
    by_u, by_w = slope * inverse_u, slope * inverse_w
    fx, fy, fz = by_u * (wx - cosine * ux), by_u * (wy - cosine * uy), by_u * (wz - cosine * uz)
    gx, gy, gz = by_w * (ux - cosine * wx), by_w * (uy - cosine * wy), by_w * (uz - cosine * wz)
    x = tl.where(place == 0, fx, tl.where(place == 2, gx, -fx - gx))
    y = tl.where(place == 0, fy, tl.where(place == 2, gy, -fy - gy))
    z = tl.where(place == 0, fz, tl.where(place == 2, gz, -fz - gz))
    return energy, x, y, z


@triton.jit
def _dihedral(
    pos_ptr, base, index_ptr, table_ptr, term, place, mask, ORDER: tl.constexpr, dtype: tl.constexpr
):
    columns: tl.constexpr = 1 + 2 * ORDER
    ax, ay, az = _position(pos_ptr, base + tl.load(index_ptr + term * 4, mask=mask, other=0), mask)
    bx, by, bz = _position(pos_ptr, base + tl.load(index_ptr + term * 4 + 1, mask=mask, other=0), mask)
    cx, cy, cz = _position(pos_ptr, base + tl.load(index_ptr + term * 4 + 2, mask=mask, other=0), mask)
    dx, dy, dz = _position(pos_ptr, base + tl.load(index_ptr + term * 4 + 3, mask=mask, other=0), mask)
    fx, fy, fz = ax - bx, ay - by, az - bz
    gx, gy, gz = bx - cx, by - cy, bz - cz
    hx, hy, hz = dx - cx, dy - cy, dz - cz
    mx, my, mz = _cross(fx, fy, fz, gx, gy, gz)
    nx, ny, nz = _cross(hx, hy, hz, gx, gy, gz)
    m2, n2 = _dot(mx, my, mz, mx, my, mz), _dot(nx, ny, nz, nx, ny, nz)
    g2 = _dot(gx, gy, gz, gx, gy, gz)
    f2, h2 = _dot(fx, fy, fz, fx, fy, fz), _dot(hx, hy, hz, hx, hy, hz)
    # NaN is no line, and must be seen.
    on_a_line = (m2 <= _STRAIGHT * f2 * g2) | (n2 <= _STRAIGHT * h2 * g2)
    defined = on_a_line == 0
    m2, n2, g2 = tl.where(defined, m2, 1.0), tl.where(defined, n2, 1.0), tl.where(defined, g2, 1.0)
    length = tl.sqrt(g2)
    inverse = 1.0 / tl.sqrt(m2 * n2)
    px, py, pz = _cross(nx, ny, nz, mx, my, mz)
    cosine = tl.where(defined, _dot(mx, my, mz, nx, ny, nz) * inverse, 1.0)
    sine = tl.where(defined, _dot(px, py, pz, gx, gy, gz) * inverse / length, 0.0)
    energy = _entry(table_ptr, term, 0, columns, mask, dtype)
    slope = tl.zeros_like(energy)
    c, s = cosine, sine
    for multiple in tl.static_range(1, ORDER + 1):
        in_sine = _entry(table_ptr, term, multiple, columns, mask, dtype)
        in_cosine = _entry(table_ptr, term, ORDER + multiple, columns, mask, dtype)
        energy += in_sine * s + in_cosine * c
        slope += multiple * (in_sine * c - in_cosine * s)
        c, s = c * cosine - s * sine, s * cosine + c * sine
    slope = tl.where(defined, slope, 0.0)
    by_m, by_n = -slope * length / m2, slope * length / n2
    along_f = slope * _dot(fx, fy, fz, gx, gy, gz) / (m2 * length)
    along_h = slope * _dot(hx, hy, hz, gx, gy, gz) / (n2 * length)
    # Each end feels its own arm; both inner beads also feel the shear, with opposite signs.
    of_m = tl.where(
        place == 0, by_m, tl.where(place == 1, along_f - by_m, tl.where(place == 2, -along_f, 0.0))
    )
    of_n = tl.where(
        place == 3, by_n, tl.where(place == 2, along_h - by_n, tl.where(place == 1, -along_h, 0.0))
    )
    return energy, of_m * mx + of_n * nx, of_m * my + of_n * ny, of_m * mz + of_n * nz


@triton.jit
def _repulsion(dx, dy, dz, sigma, mask, cutoff: tl.constexpr, switch: tl.constexpr):
    """Energy, and its derivative by r divided by r."""
    r2 = _dot(dx, dy, dz, dx, dy, dz)
    # NaN is not beyond the cutoff, and must be seen.
    near = mask & ((r2 < cutoff * cutoff) | (r2 != r2))
    r2 = tl.where(near, r2, 1.0)
    r = tl.sqrt(r2)
    ratio = sigma * sigma / r2
    power = tl.where(near, ratio * ratio * ratio, 0.0)
    width: tl.constexpr = cutoff - switch
    s = (r - switch) / width
    s = tl.where(s > 0.0, s, 0.0)
    smooth = 1.0 - s * s * s * (10.0 - s * (15.0 - 6.0 * s))
    slope = -6.0 * power * smooth / r2 - 30.0 * power * (s * (1.0 - s)) * (s * (1.0 - s)) / (width * r)
    return power * smooth, slope


@triton.jit
def energy_gradient_kernel(
    pos_ptr,
    bonds_ptr,
    bond_table_ptr,
    angles_ptr,
    angle_table_ptr,
    dihedrals_ptr,
    dihedral_table_ptr,
    types_ptr,
    sigma_ptr,
    row_ptr,
    idx_ptr,
    row_t_ptr,
    idx_t_ptr,
    pair_t_ptr,
    offset_ptr,
    incidence_row_ptr,
    incidence_ptr,
    energy_ptr,
    gradient_ptr,
    n_beads,
    n_types,
    ORDER: tl.constexpr,
    REPULSION: tl.constexpr,
    SHIFTED: tl.constexpr,
    cutoff: tl.constexpr,
    switch: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Energies [rows, 4] in float64 and dE/dx [rows, 3] of one bead of one replica."""
    row = tl.program_id(0)
    bead = row % n_beads
    base = row - bead
    dtype: tl.constexpr = pos_ptr.dtype.element_ty
    lane = tl.arange(0, BLOCK)
    gx = tl.zeros([BLOCK], dtype)
    gy = tl.zeros([BLOCK], dtype)
    gz = tl.zeros([BLOCK], dtype)
    for kind in tl.static_range(3):
        energy = tl.zeros([BLOCK], tl.float64)
        start = tl.load(incidence_row_ptr + kind * (n_beads + 1) + bead)
        stop = tl.load(incidence_row_ptr + kind * (n_beads + 1) + bead + 1)
        for first in range(start, stop, BLOCK):
            mask = first + lane < stop
            code = tl.load(incidence_ptr + first + lane, mask=mask, other=0)
            term, place = code // _PLACES, code % _PLACES
            if kind == 0:
                e, x, y, z = _bond(pos_ptr, base, bonds_ptr, bond_table_ptr, term, place, mask, dtype)
            elif kind == 1:
                e, x, y, z = _angle(pos_ptr, base, angles_ptr, angle_table_ptr, term, place, mask, dtype)
            else:
                e, x, y, z = _dihedral(
                    pos_ptr, base, dihedrals_ptr, dihedral_table_ptr, term, place, mask, ORDER, dtype
                )
            energy += tl.where(mask & (place == 0), e, 0.0).to(tl.float64)
            gx += tl.where(mask, x, 0.0)
            gy += tl.where(mask, y, 0.0)
            gz += tl.where(mask, z, 0.0)
        tl.store(energy_ptr + row * 4 + kind, tl.sum(energy, 0))
    energy = tl.zeros([BLOCK], tl.float64)
    if REPULSION:
        own_x, own_y, own_z = _position(pos_ptr, row, True)
        own_type = tl.load(types_ptr + bead)
        stop = tl.load(row_ptr + row + 1)
        for first in range(tl.load(row_ptr + row), stop, BLOCK):
            mask = first + lane < stop
            other = tl.load(idx_ptr + first + lane, mask=mask, other=0)
            x, y, z = _position(pos_ptr, other, mask)
            dx, dy, dz = x - own_x, y - own_y, z - own_z
            if SHIFTED:
                tx, ty, tz = _position(offset_ptr, first + lane, mask)
                dx, dy, dz = dx + tx, dy + ty, dz + tz
            partner = tl.load(types_ptr + other % n_beads, mask=mask, other=0)
            sigma = tl.load(sigma_ptr + own_type * n_types + partner, mask=mask, other=0.0).to(dtype)
            e, slope = _repulsion(dx, dy, dz, sigma, mask, cutoff, switch)
            energy += e.to(tl.float64)
            slope = tl.where(mask, slope, 0.0)
            gx -= slope * dx
            gy -= slope * dy
            gz -= slope * dz
        stop = tl.load(row_t_ptr + row + 1)
        for first in range(tl.load(row_t_ptr + row), stop, BLOCK):
            mask = first + lane < stop
            other = tl.load(idx_t_ptr + first + lane, mask=mask, other=0)
            x, y, z = _position(pos_ptr, other, mask)
            dx, dy, dz = own_x - x, own_y - y, own_z - z
            if SHIFTED:
                pair = tl.load(pair_t_ptr + first + lane, mask=mask, other=0)
                tx, ty, tz = _position(offset_ptr, pair, mask)
                dx, dy, dz = dx + tx, dy + ty, dz + tz
            partner = tl.load(types_ptr + other % n_beads, mask=mask, other=0)
            sigma = tl.load(sigma_ptr + partner * n_types + own_type, mask=mask, other=0.0).to(dtype)
            e, slope = _repulsion(dx, dy, dz, sigma, mask, cutoff, switch)
            slope = tl.where(mask, slope, 0.0)
            gx += slope * dx
            gy += slope * dy
            gz += slope * dz
    tl.store(energy_ptr + row * 4 + 3, tl.sum(energy, 0))
    tl.store(gradient_ptr + row * 3, tl.sum(gx, 0))
    tl.store(gradient_ptr + row * 3 + 1, tl.sum(gy, 0))
    tl.store(gradient_ptr + row * 3 + 2, tl.sum(gz, 0))
