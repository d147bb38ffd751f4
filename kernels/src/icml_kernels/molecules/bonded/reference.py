"""Prior energies and their gradient in plain torch: the definition of the op."""

from __future__ import annotations

import torch
from torch import Tensor

from icml_kernels.molecules.neighbors import pair_rows

STRAIGHT = 1e-12
"""sin² of the angle between two arms below which they lie on a line: no plane, and so no dihedral."""


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
    """Energies [replicas, 4] of bonds, angles, dihedrals and repulsion in float64, and dE/dx of their sum."""
    x = pos.double()
    parts = []
    gradient = torch.zeros_like(x)
    for index, (energy, slopes) in (
        (bonds, bond_terms(x, bonds, bond_table.double())),
        (angles, angle_terms(x, angles, angle_table.double())),
        (dihedrals, dihedral_terms(x, dihedrals, dihedral_table.double())),
    ):
        parts.append(energy.sum(-1))
        for place, slope in enumerate(slopes):
            gradient = gradient.index_add(1, index[:, place], slope)
    energy, slope, i, j = repulsion_terms(x, types, sigma.double(), ptr, idx, offset.double(), cutoff, switch)
    parts.append(x.new_zeros(len(x)).index_add(0, i // max(x.shape[1], 1), energy))
    gradient = gradient.reshape(-1, 3).index_add(0, j, slope).index_add(0, i, -slope).reshape(x.shape)
    return torch.stack(parts, -1), gradient.to(pos.dtype)


def bond_terms(x: Tensor, bonds: Tensor, table: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """k (r - r0)² and its gradient by both beads, [replicas, bonds] and [replicas, bonds, 3]."""
    d = x[:, bonds[:, 1]] - x[:, bonds[:, 0]]
    r = d.square().sum(-1).sqrt()
    k, r0 = table.unbind(-1)
    slope = (2.0 * k * (r - r0) / r)[..., None] * d
    return k * (r - r0) ** 2, (-slope, slope)


def angle_terms(x: Tensor, angles: Tensor, table: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Σ a_n (cos θ - c0)^n + k / sin² θ, and its gradient by the three beads.

    d cos θ / dx_i = (w - cos θ u) / |x_i - x_j|, with u and w the directions of the arms: nothing is
    divided by sin θ unless k asks for it, so that straight angles are harmless.
    """
    first = x[:, angles[:, 0]] - x[:, angles[:, 1]]
    second = x[:, angles[:, 2]] - x[:, angles[:, 1]]
    length_u, length_w = (arm.square().sum(-1, keepdim=True).sqrt() for arm in (first, second))
    u, w = first / length_u, second / length_w
    cosine = (u * w).sum(-1)
    centre, a0, a1, a2, a3, a4, k = table.unbind(-1)
    t = cosine - centre
    # |u x w|² keeps the digits that 1 - cos² loses near a straight angle.
    sin_squared = torch.linalg.cross(u, w).square().sum(-1)
    # Straight angles without the term k / sin² θ: 0 / 0 there is 0.
    inverse = 1.0 / torch.where((k == 0) & (sin_squared < STRAIGHT), 1.0, sin_squared)
    energy = a0 + t * (a1 + t * (a2 + t * (a3 + t * a4))) + k * inverse
    slope = a1 + t * (2.0 * a2 + t * (3.0 * a3 + t * 4.0 * a4)) + 2.0 * k * cosine * inverse**2
    by_u = slope[..., None] * (w - cosine[..., None] * u) / length_u
    by_w = slope[..., None] * (u - cosine[..., None] * w) / length_w
    return energy, (by_u, -by_u - by_w, by_w)


def dihedral_terms(x: Tensor, dihedrals: Tensor, table: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
    """v0 + Σ_n s_n sin(nφ) + c_n cos(nφ), and its gradient by the four beads.

    Blondel and Karplus, J. Comput. Chem. 17, 1132 (1996): nothing is divided by sin φ. Where three beads
    lie on a line there is no φ: such a dihedral counts as cis and pulls at nothing.
    """
    i, j, k, l = (x[:, dihedrals[:, place]] for place in range(4))
    f, g, h = i - j, j - k, l - k
    m, n = torch.linalg.cross(f, g), torch.linalg.cross(h, g)
    f2, g2, h2, m2, n2 = (v.square().sum(-1) for v in (f, g, h, m, n))
    # NaN is no line, and must be seen.
    defined = ~((m2 <= STRAIGHT * f2 * g2) | (n2 <= STRAIGHT * h2 * g2))
    g2, m2, n2 = (torch.where(defined, v, 1.0) for v in (g2, m2, n2))
    length = g2.sqrt()
    inverse = (m2 * n2).rsqrt()
    cosine = torch.where(defined, (m * n).sum(-1) * inverse, 1.0)
    sine = torch.where(defined, (torch.linalg.cross(n, m) * g).sum(-1) * inverse / length, 0.0)
    phi = torch.atan2(sine, cosine)
    order = (table.shape[1] - 1) // 2
    energy, slope = table[:, 0].expand_as(phi), torch.zeros_like(phi)
    for multiple in range(1, order + 1):
        c, s = torch.cos(multiple * phi), torch.sin(multiple * phi)
        in_sine, in_cosine = table[:, multiple], table[:, order + multiple]
        energy = energy + in_sine * s + in_cosine * c
        slope = slope + multiple * (in_sine * c - in_cosine * s)
    slope = torch.where(defined, slope, 0.0)[..., None]
    length, m2, n2 = length[..., None], m2[..., None], n2[..., None]
    by_i, by_l = -slope * length / m2 * m, slope * length / n2 * n
    along_f, along_h = (f * g).sum(-1, keepdim=True), (h * g).sum(-1, keepdim=True)
    shear = slope * (along_f / (m2 * length) * m - along_h / (n2 * length) * n)
    return energy, (by_i, shear - by_i, -shear - by_l, by_l)


def repulsion_terms(
    x: Tensor,
    types: Tensor,
    sigma: Tensor,
    ptr: Tensor,
    idx: Tensor,
    offset: Tensor,
    cutoff: float,
    switch: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """S(r) (σ/r)⁶ of each place of the pair list, its gradient by the second bead, and both beads."""
    if len(sigma) == 0:
        none = torch.zeros(0, dtype=torch.int64, device=x.device)
        return x.new_zeros(0), x.new_zeros(0, 3), none, none
    i, valid = pair_rows(ptr, idx)
    j = torch.where(valid, idx, 0).long()
    flat = x.reshape(-1, 3)
    d = flat[j] - flat[i]
    if len(offset):
        d = d + offset
    r2 = d.square().sum(-1)
    # NaN is not beyond the cutoff, and must be seen.
    near = valid & ~(r2 >= cutoff * cutoff)
    r2 = torch.where(near, r2, 1.0)
    r = r2.sqrt()
    power = torch.where(near, (sigma[types[i % x.shape[1]], types[j % x.shape[1]]] ** 2 / r2) ** 3, 0.0)
    width = cutoff - switch
    s = ((r - switch) / width).clamp(min=0.0)
    smooth = 1.0 - s**3 * (10.0 - s * (15.0 - 6.0 * s))
    slope = -6.0 * power * smooth / r2 - 30.0 * power * (s * (1.0 - s)) ** 2 / (width * r)
    return power * smooth, slope[:, None] * torch.where(near[:, None], d, 0.0), i, j
