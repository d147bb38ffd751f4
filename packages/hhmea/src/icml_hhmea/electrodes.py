"""Electrode arrays: one object that stimulates and records, with one matrix for both.

A current I at an electrode raises the potential outside compartment i by Z_i I, and a membrane current I at
compartment i raises the potential at the electrode by the same Z_i I (reciprocity). Over an insulating plane
the field is twice that of free space.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor

# Gauss-Legendre places and weights on 0 to 1, for discs.
GAUSS = ((0.1127016653792583, 5 / 18), (0.5, 4 / 9), (0.8872983346207417, 5 / 18))


@dataclass(frozen=True)
class Segments:
    """Where compartments lie: ends [..., nodes, 3] and radii [..., nodes] in µm."""

    start: Tensor
    end: Tensor
    radius: Tensor


@dataclass(frozen=True)
class ElectrodeArray:
    """Electrodes at fixed places.

    Attributes:
        xyz: [electrodes, 3], µm; the array is the plane z = 0.
        source: ``"line"``: each compartment is a line of current seen from a point (LFPykit's line source);
            ``"point"``: a point in its middle; ``"disc"``: a disc of radius ``disc_radius`` in the plane.
        images: whether the array is an insulating plane, which doubles the field.
        anisotropy: conductivities along x, y and z as multiples of sigma.
        transfer: [electrodes, nodes] MΩ, such as from a finite-element model, instead of all that.
        pitch: distance of neighbours, µm; the median distance of nearest neighbours by default.
    """

    xyz: Tensor
    source: Literal["line", "point", "disc"] = "line"
    disc_radius: float = 5.0
    images: bool = True
    anisotropy: tuple[float, float, float] = (1.0, 1.0, 1.0)
    transfer: Tensor | None = None
    pitch: float = math.nan

    def __post_init__(self) -> None:
        xyz = torch.as_tensor(self.xyz, dtype=torch.float64)
        if xyz.dim() != 2 or xyz.shape[1] not in (2, 3) or not len(xyz):
            raise ValueError(f"electrodes have shape {list(xyz.shape)}; expected [electrodes, 2 or 3] in µm")
        if not bool(torch.isfinite(xyz).all()):
            raise ValueError("electrode positions must be finite")
        if xyz.shape[1] == 2:
            xyz = torch.cat([xyz, torch.zeros(len(xyz), 1, dtype=xyz.dtype)], 1)
        object.__setattr__(self, "xyz", xyz)
        if self.source not in ("line", "point", "disc"):
            raise ValueError(f"source {self.source!r} is none of line, point, disc")
        if min(self.anisotropy) <= 0 or self.disc_radius <= 0:
            raise ValueError(
                f"anisotropy {self.anisotropy} and disc_radius {self.disc_radius} must be positive"
            )
        if math.isnan(self.pitch):
            object.__setattr__(self, "pitch", _spacing(xyz))
        if not 0 < self.pitch < math.inf:
            raise ValueError(f"pitch={self.pitch} µm must be positive")

    @classmethod
    def hexagon(cls, rings: int = 4, pitch: float = 30.0, **options: object) -> ElectrodeArray:
        """A hexagonal patch of 1 + 3 rings (rings + 1) electrodes around the origin: 61 for four rings.

        Raises:
            ValueError: a negative number of rings, or a pitch that is not positive.
        """
        if rings < 0 or not pitch > 0:
            raise ValueError(f"rings={rings} must be at least 0 and pitch={pitch} positive")
        places = [
            (pitch * (q + r / 2), pitch * math.sqrt(3) / 2 * r)
            for r in range(-rings, rings + 1)
            for q in range(-rings, rings + 1)
            if abs(q + r) <= rings
        ]
        return cls(torch.tensor(places, dtype=torch.float64), pitch=pitch, **options)  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self.xyz)

    def state(self) -> dict[str, Any]:
        """All fields, for a file."""
        fields = {
            f: getattr(self, f) for f in ("xyz", "source", "disc_radius", "images", "transfer", "pitch")
        }
        return fields | {"anisotropy": list(self.anisotropy)}

    @classmethod
    def of_state(cls, state: Mapping[str, Any]) -> ElectrodeArray:
        """The inverse of ``state``.

        Raises:
            ValueError: fields that lack or are others, or what the constructor refuses.
        """
        names = ("xyz", "source", "disc_radius", "images", "anisotropy", "transfer", "pitch")
        if set(state) != set(names):
            raise ValueError(f"an array has the fields {', '.join(names)}; found {', '.join(sorted(state))}")
        return cls(**{**state, "anisotropy": tuple(float(x) for x in state["anisotropy"])})

    def subset(self, chosen: Sequence[int]) -> ElectrodeArray:
        """Some of the electrodes."""
        index = list(chosen)
        transfer = None if self.transfer is None else self.transfer[index]
        return ElectrodeArray(
            self.xyz[index], self.source, self.disc_radius, self.images, self.anisotropy, transfer, self.pitch
        )

    def matrix(self, segments: Segments, sigma: Tensor | float) -> Float[Tensor, "*batch electrodes nodes"]:
        """Z in MΩ (mV a nA).

        A distance below the compartment's radius counts as the radius, with a warning.

        Args:
            sigma: S/m, a number or [batch].

        Raises:
            ValueError: sigma not positive, or a ``transfer`` for another number of nodes.
        """
        start = segments.start
        if self.transfer is not None:
            if self.transfer.shape[1] != start.shape[-2]:
                raise ValueError(
                    f"transfer has {self.transfer.shape[1]} nodes; the cell has {start.shape[-2]}"
                )
            return self.transfer.to(start).expand(*start.shape[:-2], -1, -1)
        sigma = torch.as_tensor(sigma, dtype=start.dtype, device=start.device)
        if not bool((sigma > 0).all()):
            raise ValueError(f"sigma must be positive, in S/m; got {float(sigma.min()):g}")
        stretch = torch.tensor(self.anisotropy, dtype=start.dtype, device=start.device)
        places = self.xyz.to(start) / stretch.sqrt()
        a, b = (t / stretch.sqrt() for t in (start, segments.end))
        radius = segments.radius / stretch.max().sqrt()
        if self.source == "line":
            found, inside = _line(places, a, b, radius)
        elif self.source == "point":
            found, inside = _point(places, (a + b) / 2, radius)
        else:
            found, inside = _disc(places, a, b, radius, self.disc_radius)
        if inside:
            warnings.warn(
                f"{inside} pairs of an electrode and a compartment are nearer than the compartment's "
                "radius; the radius counts as their distance",
                stacklevel=2,
            )
        factor = (2 if self.images else 1) / (4 * math.pi * stretch.prod().sqrt())
        return factor * found / sigma[..., None, None]


def _spacing(xyz: Tensor) -> float:
    """Median distance of nearest neighbours, 30 µm for a single electrode."""
    if len(xyz) < 2:
        return 30.0
    distance = torch.cdist(xyz, xyz) + torch.diag(torch.full((len(xyz),), torch.inf, dtype=xyz.dtype))
    nearest = distance.min(1).values
    return round(float(nearest.median()), 6) or 30.0


def _line(places: Tensor, a: Tensor, b: Tensor, radius: Tensor) -> tuple[Tensor, int]:
    """Mean of 1 / distance over each segment: [asinh(l / r) - asinh(h / r)] / L, in the form that never
    subtracts nearly equal numbers. The distance from the axis is at least the radius. A segment without
    length is a point."""
    axis = b - a
    length = axis.norm(dim=-1)
    flat = length < 1e-9
    unit = axis / torch.where(flat, torch.ones_like(length), length)[..., None]
    away = places[:, None] - a[..., None, :, :]  # [..., electrodes, nodes, 3]
    along = (away * unit[..., None, :, :]).sum(-1)
    square = (away * away).sum(-1) - along**2
    floor = (radius**2)[..., None, :]
    beyond = (along < 0) | (along > length[..., None, :])
    inside = int(((square < floor * (1 - 1e-9)) & ~beyond & ~flat[..., None, :]).sum())
    r2 = torch.maximum(square, floor.expand_as(square))
    # From the start the segment reaches from -along to length - along; take the far side's sign.
    h, l = -along, length[..., None, :] - along
    swap = l < 0
    h, l = torch.where(swap, -l, h), torch.where(swap, -h, l)
    top = l + torch.sqrt(l * l + r2)
    root = torch.sqrt(h * h + r2)
    bottom = torch.where(h >= 0, h + root, r2 / (root - torch.where(h >= 0, -root, h)))
    mean = torch.log(top / bottom) / torch.where(flat, torch.ones_like(length), length)[..., None, :]
    point, _ = _point(places, a, radius)
    return torch.where(flat[..., None, :], point, mean), inside


def _point(places: Tensor, middle: Tensor, radius: Tensor) -> tuple[Tensor, int]:
    distance = (places[:, None] - middle[..., None, :, :]).norm(dim=-1)
    floor = radius[..., None, :].expand_as(distance)
    return 1 / torch.maximum(distance, floor), int((distance < floor * (1 - 1e-9)).sum())


def _disc(places: Tensor, a: Tensor, b: Tensor, radius: Tensor, disc: float) -> tuple[Tensor, int]:
    """An equipotential disc: asin(2 c / (far + near)) / c, far and near being distances from the rim in the
    plane through the axis; averaged over three places of a compartment."""
    total, inside = torch.zeros(1, dtype=a.dtype, device=a.device), 0
    for place, weight in GAUSS:
        away = places[:, None] - (a + place * (b - a))[..., None, :, :]
        rho, z = away[..., :2].norm(dim=-1), away[..., 2].abs()
        floor = radius[..., None, :].expand_as(z)
        inside += int(((rho < disc) & (z < floor * (1 - 1e-9))).sum())
        z = torch.where(rho < disc, torch.maximum(z, floor), z)
        far, near = torch.sqrt((rho + disc) ** 2 + z**2), torch.sqrt((rho - disc) ** 2 + z**2)
        total = total + weight * torch.asin((2 * disc / (far + near)).clamp(max=1 - 1e-12)) / disc
    return total, inside
