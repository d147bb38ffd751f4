"""Prior energies and gradients on the CPU: the replicas in equal shares to the threads, one pass over each.

Arithmetic is in float64; every bead's gradient is added up in a fixed order, whatever the threads.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from icml_kernels.molecules.bonded.reference import STRAIGHT
from icml_kernels.njit import njit, prange, threads


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
    # One signature for both dtypes: the copies cost less than a second compilation.
    x = pos.double().contiguous()
    energy = torch.empty(len(x), 4, dtype=torch.float64)
    gradient = torch.zeros(x.shape, dtype=torch.float64)
    floats = (bond_table, angle_table, dihedral_table, sigma, offset)
    bond_table, angle_table, dihedral_table, sigma, offset = (t.double() for t in floats)
    bonded = (bonds, bond_table, angles, angle_table, dihedrals, dihedral_table)
    inputs = _arrays(x, *bonded, types, sigma, ptr, idx, offset)
    arguments = (*inputs, cutoff, switch, energy.numpy(), gradient.numpy())
    shares = min(threads(), len(x))
    # Without a second thread numba's thread pool is not even started.
    if shares <= 1:
        _energy_gradient(0, len(x), *arguments)
    else:
        _energy_gradient_shares(np.arange(shares + 1) * len(x) // shares, *arguments)
    return energy, gradient.to(pos.dtype)


def _arrays(*tensors: Tensor) -> tuple[np.ndarray, ...]:
    return tuple(tensor.contiguous().numpy() for tensor in tensors)


@njit
def _energy_gradient(
    begin,
    end,
    pos,
    bonds,
    bond_table,
    angles,
    angle_table,
    dihedrals,
    dihedral_table,
    types,
    sigma,
    pair_ptr,
    pair_idx,
    pair_offset,
    cutoff,
    switch,
    energy,
    grad,
):
    """Fill energies [replicas, 4] and add dE/dx to grad [replicas, beads, 3]."""
    n_beads = pos.shape[1]
    for r in range(begin, end):
        energy[r, 0] = _bonds(pos[r], bonds, bond_table, grad[r])
        energy[r, 1] = _angles(pos[r], angles, angle_table, grad[r])
        energy[r, 2] = _dihedrals(pos[r], dihedrals, dihedral_table, grad[r])
        energy[r, 3] = 0.0
        if sigma.shape[0] > 0:
            pairs = (pair_ptr, pair_idx, pair_offset)
            energy[r, 3] = _repulsion(pos[r], types, sigma, *pairs, r * n_beads, cutoff, switch, grad[r])


@njit(parallel=True)
def _energy_gradient_shares(
    bounds,
    pos,
    bonds,
    bond_table,
    angles,
    angle_table,
    dihedrals,
    dihedral_table,
    types,
    sigma,
    pair_ptr,
    pair_idx,
    pair_offset,
    cutoff,
    switch,
    energy,
    grad,
):
    for s in prange(len(bounds) - 1):
        _energy_gradient(
            bounds[s],
            bounds[s + 1],
            pos,
            bonds,
            bond_table,
            angles,
            angle_table,
            dihedrals,
            dihedral_table,
            types,
            sigma,
            pair_ptr,
            pair_idx,
            pair_offset,
            cutoff,
            switch,
            energy,
            grad,
        )


@njit(inline="always")
def _add(grad, bead, x, y, z):
    grad[bead, 0] += x
    grad[bead, 1] += y
    grad[bead, 2] += z


@njit(inline="always")
def _difference(pos, a, b):
    """pos[a] - pos[b]."""
    return pos[a, 0] - pos[b, 0], pos[a, 1] - pos[b, 1], pos[a, 2] - pos[b, 2]


@njit(inline="always")
def _cross(ax, ay, az, bx, by, bz):
    return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


@njit
def _bonds(pos, bonds, table, grad):
    energy = 0.0
    for term in range(bonds.shape[0]):
        i, j = bonds[term, 0], bonds[term, 1]
        k = table[term, 0]
        x, y, z = _difference(pos, j, i)
        r = math.sqrt(x * x + y * y + z * z)
        stretch = r - table[term, 1]
        energy += k * stretch * stretch
        slope = 2.0 * k * stretch / r
        _add(grad, j, slope * x, slope * y, slope * z)
        _add(grad, i, -slope * x, -slope * y, -slope * z)
    return energy


@njit
def _angles(pos, angles, table, grad):
    energy = 0.0
    for term in range(angles.shape[0]):
        i, j, k = angles[term, 0], angles[term, 1], angles[term, 2]
        ux, uy, uz = _difference(pos, i, j)
        wx, wy, wz = _difference(pos, k, j)
        inverse_u = 1.0 / math.sqrt(ux * ux + uy * uy + uz * uz)
        inverse_w = 1.0 / math.sqrt(wx * wx + wy * wy + wz * wz)
        ux, uy, uz = ux * inverse_u, uy * inverse_u, uz * inverse_u
        wx, wy, wz = wx * inverse_w, wy * inverse_w, wz * inverse_w
        cosine = ux * wx + uy * wy + uz * wz
        t = cosine - table[term, 0]
        a1, a2, a3, a4 = table[term, 2], table[term, 3], table[term, 4], table[term, 5]
        energy += table[term, 1] + t * (a1 + t * (a2 + t * (a3 + t * a4)))
        slope = a1 + t * (2.0 * a2 + t * (3.0 * a3 + t * 4.0 * a4))
        restriction = table[term, 6]
        if restriction != 0.0:
            # |u x w|² keeps the digits that 1 - cos² loses near a straight angle.
            nx, ny, nz = _cross(ux, uy, uz, wx, wy, wz)
            sin_squared = nx * nx + ny * ny + nz * nz
            energy += restriction / sin_squared
            slope += 2.0 * restriction * cosine / (sin_squared * sin_squared)
        # d cos θ / dx_i = (w - cos θ u) / |x_i - x_j|: no division by sin θ.
        iu, iw = slope * inverse_u, slope * inverse_w
        ix, iy, iz = iu * (wx - cosine * ux), iu * (wy - cosine * uy), iu * (wz - cosine * uz)
        kx, ky, kz = iw * (ux - cosine * wx), iw * (uy - cosine * wy), iw * (uz - cosine * wz)
        _add(grad, i, ix, iy, iz)
        _add(grad, k, kx, ky, kz)
        _add(grad, j, -ix - kx, -iy - ky, -iz - kz)
    return energy


@njit
def _dihedrals(pos, dihedrals, table, grad):
    """Blondel and Karplus, J. Comput. Chem. 17, 1132 (1996): no division by sin φ."""
    energy = 0.0
    order = (table.shape[1] - 1) // 2
    for term in range(dihedrals.shape[0]):
        i, j = dihedrals[term, 0], dihedrals[term, 1]
        k, l = dihedrals[term, 2], dihedrals[term, 3]
        fx, fy, fz = _difference(pos, i, j)
        gx, gy, gz = _difference(pos, j, k)
        hx, hy, hz = _difference(pos, l, k)
        mx, my, mz = _cross(fx, fy, fz, gx, gy, gz)
        nx, ny, nz = _cross(hx, hy, hz, gx, gy, gz)
        m2 = mx * mx + my * my + mz * mz
        n2 = nx * nx + ny * ny + nz * nz
        g2 = gx * gx + gy * gy + gz * gz
        f2 = fx * fx + fy * fy + fz * fz
        h2 = hx * hx + hy * hy + hz * hz
        # NaN is no line, and must be seen.
        defined = not (m2 <= STRAIGHT * f2 * g2 or n2 <= STRAIGHT * h2 * g2)
        cosine, sine = 1.0, 0.0
        g = math.sqrt(g2)
        if defined:
            inverse = 1.0 / math.sqrt(m2 * n2)
            cx, cy, cz = _cross(nx, ny, nz, mx, my, mz)
            cosine = (mx * nx + my * ny + mz * nz) * inverse
            sine = (cx * gx + cy * gy + cz * gz) * inverse / g
        energy += table[term, 0]
        slope = 0.0
        c, s = 1.0, 0.0
        for multiple in range(1, order + 1):
            c, s = c * cosine - s * sine, s * cosine + c * sine
            in_sine, in_cosine = table[term, multiple], table[term, order + multiple]
            energy += in_sine * s + in_cosine * c
            slope += multiple * (in_sine * c - in_cosine * s)
        if defined:
            im, ln = -slope * g / m2, slope * g / n2
            along_f = slope * (fx * gx + fy * gy + fz * gz) / (m2 * g)
            along_h = slope * (hx * gx + hy * gy + hz * gz) / (n2 * g)
            sx, sy, sz = along_f * mx - along_h * nx, along_f * my - along_h * ny, along_f * mz - along_h * nz
            _add(grad, i, im * mx, im * my, im * mz)
            _add(grad, l, ln * nx, ln * ny, ln * nz)
            _add(grad, j, sx - im * mx, sy - im * my, sz - im * mz)
            _add(grad, k, -sx - ln * nx, -sy - ln * ny, -sz - ln * nz)
    return energy


@njit
def _repulsion(pos, types, sigma, pair_ptr, pair_idx, pair_offset, first, cutoff, switch, grad):
    energy = 0.0
    shifted = pair_offset.shape[0] > 0
    width = cutoff - switch
    for i in range(pos.shape[0]):
        for pair in range(pair_ptr[first + i], pair_ptr[first + i + 1]):
            j = pair_idx[pair] - first
            x, y, z = _difference(pos, j, i)
            if shifted:
                x += pair_offset[pair, 0]
                y += pair_offset[pair, 1]
                z += pair_offset[pair, 2]
            r2 = x * x + y * y + z * z
            if r2 >= cutoff * cutoff:
                continue
            inverse = 1.0 / r2
            ratio = sigma[types[i], types[j]]
            ratio = ratio * ratio * inverse
            power = ratio * ratio * ratio
            slope = -6.0 * power * inverse
            if r2 > switch * switch:
                r = math.sqrt(r2)
                s = (r - switch) / width
                smooth = 1.0 - s * s * s * (10.0 - s * (15.0 - 6.0 * s))
                slope = slope * smooth - 30.0 * power * s * s * (1.0 - s) * (1.0 - s) / (width * r)
                power *= smooth
            energy += power
            _add(grad, j, slope * x, slope * y, slope * z)
            _add(grad, i, -slope * x, -slope * y, -slope * z)
    return energy
