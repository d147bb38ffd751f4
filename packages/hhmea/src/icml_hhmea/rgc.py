"""A retinal ganglion cell over an array: soma, dendrites, and the axon's initial part with its sodium band.

From the soma a hillock of 3 µm, a band where the axon thins from 3 to 0.8 µm and sodium channels are dense, a
narrow part of 0.8 µm, and an axon of 1 µm. Everything lies in one plane at height z above the array. Lengths,
diameters and places are differentiable functions of the parameters.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from icml_hhmea.cell import PER_AREA, RA_UNIT, Cable, CellModel
from icml_hhmea.channels import REGIONS, RGC_CONDUCTANCES, CalciumPool, Channel, retinal_ganglion
from icml_hhmea.electrodes import Segments
from icml_hhmea.parameters import Bounds

RA, CM = 136.6, 1.0
# Centre and factor of the log-uniform priors.
CENTERS = {
    "gna_soma": (60.0, 3.0),
    "gna_band": (420.0, 3.0),
    "gna_axon": (100.0, 3.0),
    "gk_soma": (35.0, 3.0),
    "gk_band": (250.0, 3.0),
    "gk_axon": (50.0, 3.0),
    "ra": (RA, 1.5),
    "soma_diameter": (20.0, 1.6),
    "axon_diameter": (1.0, 1.6),
    "band_distance": (40.0, 2.0),
    "z": (math.sqrt(5.0 * 40.0), math.sqrt(8.0)),
    "sigma": (0.1, 1.5),
}
# Where the cell lies beside its estimated pose: along the axon's first direction and across, µm; rad; rad/µm.
LOCATION = {"along": (-25.0, 25.0), "across": (-25.0, 25.0), "turn": (-0.5, 0.5), "bend": (-1.5e-3, 1.5e-3)}
SODIUM_OF = {
    "dendrite": "soma",
    "soma": "soma",
    "hillock": "band",
    "band": "band",
    "narrow": "axon",
    "axon": "axon",
}


@dataclass(frozen=True)
class Dendrite:
    """A cylinder from the soma: its direction relative to the one opposite the axon (rad), length and
    diameter in µm."""

    angle: float
    length: float = 100.0
    diameter: float = 3.0


@dataclass(frozen=True)
class Pose:
    """Where a soma lies (µm), and in which direction its axon leaves (rad)."""

    x: float = 0.0
    y: float = 0.0
    angle: float = 0.0


class RGC(CellModel):
    """The cell.

    Args:
        pose: one for all cells of a batch, or [batch, 3] (x, y, angle).
        axon_length: µm, behind the narrow part.
        refine: factor of the number of compartments.
        dendrites: two lumped ones by default.
        channels: those of retinal ganglion cells by default.

    Raises:
        ValueError: an axon or a ``refine`` that is not positive, or a channel without densities.
    """

    def __init__(
        self,
        pose: Pose | Tensor | None = None,
        *,
        axon_length: float = 730.0,
        refine: int = 1,
        dendrites: Sequence[Dendrite] = (Dendrite(0.6), Dendrite(-0.6)),
        channels: Sequence[Channel] | None = None,
        bounds: Bounds | None = None,
    ) -> None:
        unknown = [c.name for c in channels or () if c.name not in RGC_CONDUCTANCES]
        if unknown:
            raise ValueError(
                f"channels {', '.join(unknown)} have no densities here; there are "
                f"{', '.join(RGC_CONDUCTANCES)}"
            )
        if not axon_length > 0 or refine < 1:
            raise ValueError(f"axon_length={axon_length} µm and refine={refine} must be positive")
        super().__init__(
            bounds or Bounds.around(CENTERS, LOCATION), channels or retinal_ganglion(), CalciumPool()
        )
        self.pose = self._pose(pose)
        self.axon_length, self.refine, self.dendrites = float(axon_length), int(refine), tuple(dendrites)
        self.regions = REGIONS
        parts = [("hillock", 4), ("band", 4), ("narrow", 8), ("axon", max(2, round(axon_length / 10)))]
        parent, region, part = [-1, 0, 0], [1, 1, 0], ["soma", "soma", "branch"]
        within, of = [0, 1, 0], [2, 2, 1]
        for number, _ in enumerate(self.dendrites):
            count = 4 * refine
            for k in range(count):
                parent.append(2 if k == 0 else len(parent) - 1)
                region.append(0)
                part.append(f"dendrite{number}")
                within.append(k)
                of.append(count)
        last = 1
        for name, base in parts:
            count = base * refine
            for k in range(count):
                parent.append(last)
                last = len(parent) - 1
                region.append(REGIONS.index(name))
                part.append(name)
                within.append(k)
                of.append(count)
        self.part = tuple(part)
        self.register_buffer("parent", torch.tensor(parent, dtype=torch.int32), persistent=False)
        self.register_buffer("region", torch.tensor(region), persistent=False)
        self.register_buffer("within", torch.tensor(within, dtype=torch.float64), persistent=False)
        self.register_buffer("of", torch.tensor(of, dtype=torch.float64), persistent=False)

    def at(self, pose: Pose | Tensor) -> RGC:
        """The same cell elsewhere."""
        other = copy.copy(self)
        object.__setattr__(other, "_parameters", dict(self._parameters))
        other.pose = self._pose(pose)
        return other

    def cable(self, theta: Float[Tensor, "batch parameters"]) -> Cable:
        """See :class:`CellModel`."""
        value = self._named(theta)
        length, first, last = self._shape(value, theta)
        area = math.pi * (first + last) * torch.sqrt(length**2 + (first - last) ** 2)
        middle = (first + last) / 2
        point = torch.tensor([p == "branch" for p in self.part], device=theta.device)[:, None]
        area = torch.where(point, 0, area)
        before = torch.where(point, 0, length / 2 / (math.pi * first * middle))
        after = torch.where(point, 0, length / 2 / (math.pi * middle * last))
        above = self.parent.clamp(min=0).long()
        # The branch point hangs on the near end of the first compartment, all others on far ends.
        half = before + torch.where(point, before[above], after[above])
        has = (self.parent >= 0)[:, None]
        axial = torch.where(has, 1 / (RA_UNIT * value["ra"] * torch.where(has, half, 1)), 0)
        rows = []
        for channel in self.channels:
            density = self._density(channel.name, value, theta)
            rows.append(PER_AREA * density * area)
        safe = torch.where(area > 0, area, 1)
        rate = torch.where(area > 0, self.pool.rate_times_area / safe, 0)
        return Cable(PER_AREA * CM * area, axial, torch.stack(rows), rate)

    def segments(self, theta: Float[Tensor, "batch parameters"]) -> Segments:
        """See :class:`CellModel`."""
        value = self._named(theta)
        length, first, last = (t.T for t in self._shape(value, theta))  # [batch, nodes]
        pose = self.pose.to(theta).expand(len(theta), 3)
        angle = pose[:, 2] + value["turn"]
        ahead = torch.stack([angle.cos(), angle.sin()], -1)
        base = torch.stack([pose[:, 2].cos(), pose[:, 2].sin()], -1)
        side = torch.stack([-base[:, 1], base[:, 0]], -1)
        center = pose[:, :2] + value["along"][:, None] * base + value["across"][:, None] * side
        parts = torch.tensor([self._kind(p) for p in self.part], device=theta.device)
        axonal = parts == 3
        grown = torch.cumsum(torch.where(axonal, length, 0), 1)
        middle = grown - length / 2
        heading = angle[:, None] + value["bend"][:, None] * middle
        steps = length[..., None] * torch.stack([heading.cos(), heading.sin()], -1)
        steps = torch.where(axonal[:, None], steps, 0)
        radius = value["soma_diameter"] / 2
        exit_ = center + radius[:, None] * ahead
        axon_end = exit_[:, None] + torch.cumsum(steps, 1)
        axon_start = axon_end - steps
        start, end = axon_start, axon_end
        halves = torch.tensor([[-1.0, 0.0], [0.0, 1.0]], dtype=theta.dtype, device=theta.device)
        for node in (0, 1):
            near, far = (center + h * radius[:, None] * ahead for h in halves[node])
            start, end = _put(start, node, near), _put(end, node, far)
        rear = center - radius[:, None] * ahead
        start, end = _put(start, 2, rear), _put(end, 2, rear)
        for number, dendrite in enumerate(self.dendrites):
            direction = angle + math.pi + dendrite.angle
            unit = torch.stack([direction.cos(), direction.sin()], -1)
            members = [k for k, p in enumerate(self.part) if p == f"dendrite{number}"]
            piece = dendrite.length / len(members)
            for k, node in enumerate(members):
                start = _put(start, node, rear + k * piece * unit)
                end = _put(end, node, rear + (k + 1) * piece * unit)
        height = value["z"][:, None, None].expand(*start.shape[:2], 1)
        radii = (first + last) / 2
        return Segments(torch.cat([start, height], -1), torch.cat([end, height], -1), radii)

    def _named(self, theta: Tensor) -> dict[str, Tensor]:
        return {name: theta[:, k] for k, name in enumerate(self.bounds.names)}

    def _shape(self, value: dict[str, Tensor], theta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Length and both radii of every node, [nodes, batch]."""
        soma, axon = value["soma_diameter"], value["axon_diameter"]
        one = torch.ones_like(soma)
        ends = {
            "soma": (soma, soma / 2, soma / 2),
            "branch": (one, one, one),
            "hillock": (value["band_distance"], 1.5 * one, 1.5 * one),
            "band": (40 * one, 1.5 * one, 0.4 * axon),
            "narrow": (80 * one, 0.4 * axon, 0.4 * axon),
            "axon": (self.axon_length * one, axon / 2, axon / 2),
        }
        for number, d in enumerate(self.dendrites):
            ends[f"dendrite{number}"] = (d.length * one, d.diameter / 2 * one, d.diameter / 2 * one)
        total, first, last = (torch.stack([ends[p][k] for p in self.part]) for k in range(3))
        of, within = self.of.to(theta)[:, None], self.within.to(theta)[:, None]
        slope = (last - first) / of
        return total / of, first + slope * within, first + slope * (within + 1)

    def _density(self, name: str, value: dict[str, Tensor], theta: Tensor) -> Tensor:
        """mS/cm2, [nodes, batch]: sodium and potassium scale in three groups of regions."""
        table = torch.tensor(RGC_CONDUCTANCES.get(name, (0.0,) * 6), dtype=theta.dtype, device=theta.device)
        density = table[self.region][:, None]
        if name not in ("na", "k"):
            return density.expand(-1, len(theta))
        groups = {}
        for group in ("soma", "band", "axon"):
            own = table[REGIONS.index(group)]
            groups[group] = value[f"g{name}_{group}"] / own
        factor = torch.stack([groups[SODIUM_OF[r]] for r in REGIONS])[self.region]
        return density * factor

    @staticmethod
    def _kind(part: str) -> int:
        return {"soma": 0, "branch": 1}.get(part, 2 if part.startswith("dendrite") else 3)

    @staticmethod
    def _pose(pose: Pose | Tensor | None) -> Tensor:
        if pose is None:
            pose = Pose()
        if isinstance(pose, Pose):
            return torch.tensor([pose.x, pose.y, pose.angle], dtype=torch.float64)
        if pose.shape[-1] != 3:
            raise ValueError(f"poses have shape {list(pose.shape)}; expected [batch, 3]: x, y, angle")
        return pose.detach().double()


def _put(points: Tensor, node: int, value: Tensor) -> Tensor:
    """The points with those of one node replaced, without changing them in place."""
    chosen = torch.arange(points.shape[1], device=points.device) == node
    return torch.where(chosen[:, None], value[:, None], points)
