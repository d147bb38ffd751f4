"""Cells: a tree of compartments, channels in its regions, and named parameters inside bounds.

Units: mV, ms, nA, µm, µS, MΩ; conductances in mS/cm2, capacitance in µF/cm2, axial resistivity in ohm cm.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from icml_kernels import Membrane
from jaxtyping import Float
from torch import Tensor, nn

from icml_hhmea.channels import CalciumPool, Channel, membrane, squid
from icml_hhmea.electrodes import Segments
from icml_hhmea.morphology import Morphology, Section, discretise
from icml_hhmea.parameters import Bounds

PER_AREA = 1e-5  # mS/cm2 times µm2 in µS, and µF/cm2 times µm2 in nF
RA_UNIT = 0.01  # ohm cm times 1/µm in MΩ
SITE = re.compile(r"([A-Za-z_]\w*)(?:\[(-?\d+)\])?")


@dataclass(frozen=True)
class Cable:
    """What ``icml_kernels.hh_run`` needs of a batch of cells: [nodes, batch] each, gmax [channels, nodes,
    batch].

    Attributes:
        capacitance: nF.
        axial: conductance to the parent, µS.
        gmax: µS.
        calcium_rate: mM/ms a -1 nA.
    """

    capacitance: Tensor
    axial: Tensor
    gmax: Tensor
    calcium_rate: Tensor

    def pick(self, lanes: Tensor) -> Cable:
        """Columns, in an order of one's own, with repetitions."""
        return Cable(
            *(t.index_select(-1, lanes) for t in (self.capacitance, self.axial, self.gmax, self.calcium_rate))
        )


class CellModel(nn.Module):
    """What all cells share: parameters, channels, and where things are.

    The parameters of one cell are real numbers ``u`` [parameters], an ``nn.Parameter``; ``bounds`` maps them
    to values. A batch of cells is given as theta [batch, parameters], in the parameters' own units.
    """

    def __init__(self, bounds: Bounds, channels: Sequence[Channel], pool: CalciumPool) -> None:
        super().__init__()
        self.bounds = bounds
        self.channels = tuple(channels)
        self.pool = pool
        self.u = nn.Parameter(torch.zeros(len(bounds)))

    parent: Tensor
    region: Tensor
    regions: tuple[str, ...]

    def cable(self, theta: Float[Tensor, "batch parameters"]) -> Cable:
        """The equations' coefficients of a batch of cells."""
        raise TypeError(f"{type(self).__name__} gives no cable")

    def segments(self, theta: Float[Tensor, "batch parameters"]) -> Segments:
        """Where the compartments of a batch of cells lie."""
        raise TypeError(f"{type(self).__name__} gives no segments")

    def sigma(self, theta: Float[Tensor, "batch parameters"]) -> Float[Tensor, " batch"]:
        """Conductivity of the medium, S/m: the parameter ``sigma`` where there is one, 0.1 otherwise."""
        if "sigma" in self.bounds.names:
            return theta[:, self.bounds.index("sigma")]
        return theta.new_full((len(theta),), 0.1)

    @property
    def nodes(self) -> int:
        """Compartments and branch points."""
        return len(self.parent)

    @property
    def spike_site(self) -> int:
        """The node whose upward crossing of 0 mV is a spike: three quarters along the axon, never its end;
        the last node's parent where there is no axon."""
        if "axon" in self.regions:
            axon = (self.region == self.regions.index("axon")).nonzero()[:, 0]
            return int(axon[min(len(axon) - 1, (3 * len(axon)) // 4)])
        return max(0, int(self.parent[-1]))

    def membrane(self, like: Tensor) -> Membrane:
        """The channels' tables in the precision and place of a tensor."""
        return membrane(self.channels, self.pool).to(dtype=like.dtype, device=like.device)

    def theta(self) -> Float[Tensor, "1 parameters"]:
        """The module's own parameters as a batch of one."""
        return self.bounds.values(self.u)[None]

    def node(self, site: int | str) -> int:
        """The node of a place: its number, or ``"soma"`` (the first of a region), ``"axon[-1]"``,
        ``"axon[3]"``.

        Raises:
            ValueError: an unknown region or a number beyond it.
        """
        if isinstance(site, int):
            if not -self.nodes <= site < self.nodes:
                raise ValueError(f"node {site} of {self.nodes}")
            return site % self.nodes
        found = SITE.fullmatch(site)
        if found is None or found[1] not in self.regions:
            raise ValueError(
                f"site {site!r}: expected a node's number or a region of {', '.join(self.regions)}"
            )
        members = (self.region == self.regions.index(found[1])).nonzero()[:, 0]
        place = int(found[2] or 0)
        if not -len(members) <= place < len(members):
            raise ValueError(f"site {site!r}: the region has {len(members)} nodes")
        return int(members[place])

    def batch(
        self, params: Mapping[str, Tensor | float] | Tensor | None
    ) -> Float[Tensor, "batch parameters"]:
        """theta [batch, parameters] of what users give, inside the bounds.

        Raises:
            ValueError: an unknown name, a value outside its bounds, another shape, NaN.
        """
        if params is None:
            return self.theta()
        if isinstance(params, Mapping):
            theta = self.bounds.stack(params, like=self.u)
        else:
            theta = torch.as_tensor(params)
            theta = theta[None] if theta.dim() == 1 else theta
            theta = theta if theta.is_floating_point() else theta.double()
            if theta.dim() != 2:
                raise ValueError(
                    f"params have shape {list(theta.shape)}; expected [batch, {len(self.bounds)}]"
                )
        self.bounds.require(theta)
        return theta

    def forward(self, stim: Any, **options: Any) -> Float[Tensor, "batch samples recorded"]:
        """V in mV of this cell under a stimulus; options as in ``simulate``."""
        from icml_hhmea.simulation import simulate

        return simulate(self, None, stim, **options).v

    def fingerprint(self) -> str:
        """A hash of nodes, lengths, areas and conductances in the middle of the bounds: what a fit depends
        on."""
        with torch.no_grad():
            theta = self.bounds.center()[None]
            cable, segments = self.cable(theta), self.segments(theta)
        digest = hashlib.sha256(repr((self.regions, self.bounds, self.channels, self.pool)).encode())
        parts = (cable.capacitance, cable.axial, cable.gmax, (segments.end - segments.start).norm(dim=-1))
        for tensor in (self.parent, *parts):
            digest.update(" ".join(f"{x:.9e}" for x in tensor.double().ravel().tolist()).encode())
        return digest.hexdigest()[:16]


class Cell(CellModel):
    """A cell of any morphology.

    Args:
        morphology: the tree.
        channels: Hodgkin and Huxley's of the squid by default.
        conductances: of each channel, mS/cm2: one number, or one for each region; a region that is not named
            has none.
        ra: ohm cm.
        cm: µF/cm2.
        free: parameters and their bounds (log scale): ``"na.soma"`` is sodium in the soma, ``"na"`` sodium
            everywhere as a multiple, ``"ra"``, ``"cm"``, ``"sigma"``. Multiples of the given values
            elsewhere.
        pool: of calcium.

    Raises:
        ValueError: an unknown channel, region or parameter.
    """

    def __init__(
        self,
        morphology: Morphology,
        channels: Sequence[Channel] | None = None,
        conductances: Mapping[str, float | Mapping[str, float]] | None = None,
        *,
        ra: float = 35.4,
        cm: float = 1.0,
        free: Mapping[str, tuple[float, float]] | None = None,
        pool: CalciumPool | None = None,
    ) -> None:
        channels = squid() if channels is None else channels
        if conductances is None:
            conductances = {"na": 120.0, "k": 36.0, "leak": 0.3}
        bounds = dict(free or {"ra": (ra / 3, ra * 3)})
        box = Bounds(
            tuple(bounds), *(tuple(v[k] for v in bounds.values()) for k in (0, 1)), (True,) * len(bounds)
        )
        super().__init__(box, channels, pool or CalciumPool())
        self.regions = morphology.regions
        self.morphology = morphology
        self.ra, self.cm = float(ra), float(cm)
        names = [c.name for c in self.channels]
        table = torch.zeros(len(names), len(self.regions), dtype=torch.float64)
        for name, value in conductances.items():
            if name not in names:
                raise ValueError(f"no channel {name!r}; there are {', '.join(names)}")
            given = value if isinstance(value, Mapping) else dict.fromkeys(self.regions, float(value))
            for region, number in given.items():
                if region not in self.regions:
                    raise ValueError(f"unknown region {region!r}; the cell has {', '.join(self.regions)}")
                if not number >= 0:
                    raise ValueError(f"conductance of {name} in {region} is {number}; expected at least 0")
                table[names.index(name), self.regions.index(region)] = number
        for parameter in self.bounds.names:
            channel, _, region = parameter.partition(".")
            known = parameter in ("ra", "cm", "sigma") or (
                channel in names and (not region or region in self.regions)
            )
            if not known:
                raise ValueError(
                    f"unknown parameter {parameter!r}: expected ra, cm, sigma, a channel, or channel.region"
                )
        as_tensor = {k: torch.as_tensor(v) for k, v in vars(morphology).items() if k != "regions"}
        for name in ("parent", "area", "half_own", "half_parent", "start", "end", "radius", "region"):
            self.register_buffer(name, as_tensor[name], persistent=False)
        self.register_buffer("table", table, persistent=False)

    @classmethod
    def from_swc(
        cls,
        path: str | Path,
        *,
        max_len: float = 10.0,
        units: str = "auto",
        soma: str = "neuron",
        **options: Any,
    ) -> Cell:
        """A cell from an SWC file (``icml_hhmea.swc``); options as of the class."""
        from icml_hhmea.swc import read_swc

        sections = read_swc(path, units=units, soma=soma)  # type: ignore[arg-type]
        return cls(discretise(sections, max_len=max_len), **options)

    @classmethod
    def from_sections(cls, sections: Sequence[Section], *, max_len: float = 10.0, **options: Any) -> Cell:
        """A cell from sections."""
        return cls(discretise(sections, max_len=max_len), **options)

    @classmethod
    def from_neuron(cls, section: Any, **options: Any) -> Cell:
        """The cell that a ``neuron`` section belongs to, with its compartments, Ra and cm (``importing``)."""
        from icml_hhmea.importing import neuron_cell

        return neuron_cell(cls, section, **options)

    @classmethod
    def from_jaxley(cls, cell: Any, **options: Any) -> Cell:
        """A ``jaxley`` cell's compartments, axial resistivity and capacitance (``importing``)."""
        from icml_hhmea.importing import jaxley_cell

        return jaxley_cell(cls, cell, **options)

    def cable(self, theta: Float[Tensor, "batch parameters"]) -> Cable:
        """See :class:`CellModel`."""
        batch, names = len(theta), self.bounds.names
        value = {name: theta[:, k] for k, name in enumerate(names)}
        ra = value.get("ra", theta.new_full((batch,), self.ra))
        cm = value.get("cm", theta.new_full((batch,), self.cm))
        area = self.area.to(theta)[:, None]
        half = (self.half_own + self.half_parent).to(theta)[:, None]
        has = (self.parent >= 0)[:, None]
        axial = torch.where(has, 1 / (RA_UNIT * ra * torch.where(has, half, 1)), 0)
        rows = []
        for c, channel in enumerate(self.channels):
            density = self.table[c].to(theta)[self.region.long()][:, None].expand(-1, batch)
            if channel.name in value:
                density = density * value[channel.name]
            for k, region in enumerate(self.regions):
                own = value.get(f"{channel.name}.{region}")
                if own is not None:
                    density = torch.where((self.region == k)[:, None], own, density)
            rows.append(PER_AREA * density * area)
        rate = torch.where(area > 0, self.pool.rate_times_area / torch.where(area > 0, area, 1), 0)
        capacitance = PER_AREA * cm * area
        return Cable(capacitance, axial, torch.stack(rows), rate.expand(-1, batch))

    def segments(self, theta: Float[Tensor, "batch parameters"]) -> Segments:
        """See :class:`CellModel`."""
        ends = [t.to(theta).expand(len(theta), -1, -1) for t in (self.start, self.end)]
        return Segments(*ends, self.radius.to(theta).expand(len(theta), -1))
