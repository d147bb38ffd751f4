"""Named, bounded parameters: a box in which a cell's parameters lie, and its map to all real numbers.

With s = sigmoid(u), a parameter on a logarithmic scale is low (high / low)^s, another low + (high - low) s.
The prior is uniform in s.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

EDGE = 1e-6  # s stays this far from 0 and 1


@dataclass(frozen=True)
class Bounds:
    """The box.

    Attributes:
        names: of the parameters.
        low, high: bounds, in each parameter's unit.
        log: which are on a logarithmic scale.
    """

    names: tuple[str, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]
    log: tuple[bool, ...]

    def __post_init__(self) -> None:
        for name, low, high, log in zip(self.names, self.low, self.high, self.log, strict=True):
            if not (math.isfinite(low) and math.isfinite(high) and low < high and (low > 0 or not log)):
                raise ValueError(f"{name}: bounds {low} to {high} are empty, or not positive on a log scale")

    @classmethod
    def around(
        cls, centers: Mapping[str, tuple[float, float]], spans: Mapping[str, tuple[float, float]]
    ) -> Bounds:
        """From ``name: (center, factor)``, log-uniform, and ``name: (low, high)``, uniform."""
        names = (*centers, *spans)
        low = [c / f for c, f in centers.values()] + [a for a, _ in spans.values()]
        high = [c * f for c, f in centers.values()] + [b for _, b in spans.values()]
        return cls(names, tuple(low), tuple(high), (True,) * len(centers) + (False,) * len(spans))

    def __len__(self) -> int:
        return len(self.names)

    def index(self, name: str) -> int:
        """Where a parameter stands.

        Raises:
            ValueError: there is none of that name.
        """
        if name not in self.names:
            raise ValueError(f"no parameter {name!r}; there are {', '.join(self.names)}")
        return self.names.index(name)

    def center(self) -> Float[Tensor, " parameters"]:
        """The middle of the box, in float64."""
        return self.values(torch.zeros(len(self), dtype=torch.float64))

    def values(self, u: Float[Tensor, "*batch parameters"]) -> Float[Tensor, "*batch parameters"]:
        """Parameters from real numbers."""
        return self.from_unit(torch.sigmoid(u))

    def from_unit(self, s: Float[Tensor, "*batch parameters"]) -> Float[Tensor, "*batch parameters"]:
        """Parameters from numbers in 0 to 1."""
        low, high, log = self._rows(s)
        base = torch.where(log, low, 1.0)
        return torch.where(log, base * (torch.where(log, high / base, 2.0)) ** s, low + (high - low) * s)

    def to_unit(self, theta: Float[Tensor, "*batch parameters"]) -> Float[Tensor, "*batch parameters"]:
        """The inverse of ``from_unit``."""
        low, high, log = self._rows(theta)
        base = torch.where(log, low, 1.0)
        positive = torch.where(log, theta, 1.0)
        ratio = torch.where(
            log, torch.log(positive / base) / torch.log(torch.where(log, high / base, 2.0)), 0.0
        )
        return torch.where(log, ratio, (theta - low) / (high - low))

    def real(self, theta: Float[Tensor, "*batch parameters"]) -> Float[Tensor, "*batch parameters"]:
        """The inverse of ``values``; at a bound, what lies just inside."""
        return torch.logit(self.to_unit(theta).clamp(EDGE, 1 - EDGE))

    def sample(self, n: int, generator: torch.Generator) -> Float[Tensor, "n parameters"]:
        """Draws from the prior, in float64."""
        return self.from_unit(torch.rand(n, len(self), generator=generator, dtype=torch.float64))

    def log_prior(self, u: Float[Tensor, "*batch parameters"]) -> Float[Tensor, "*batch"]:
        """Log density of the prior by u, up to a constant: that of a logistic distribution."""
        return (torch.nn.functional.logsigmoid(u) + torch.nn.functional.logsigmoid(-u)).sum(-1)

    def require(self, theta: Tensor) -> None:
        """theta lies inside the box.

        Raises:
            ValueError: which parameter does not, its value and bounds; or another number of parameters.
        """
        if theta.shape[-1] != len(self):
            raise ValueError(
                f"theta has {theta.shape[-1]} parameters; expected {len(self)}: {', '.join(self.names)}"
            )
        low, high, _ = self._rows(theta)
        slack = 1e-6 * (high - low)
        bad = ~((theta >= low - slack) & (theta <= high + slack))
        if bool(bad.any()):
            place = bad.nonzero()[0]
            k = int(place[-1])
            raise ValueError(
                f"theta: {self.names[k]} = {float(theta[tuple(place.tolist())]):g} lies outside the bounds "
                f"{self.low[k]:g} to {self.high[k]:g}"
            )

    def stack(
        self, given: Mapping[str, Tensor | float], like: Tensor | None = None
    ) -> Float[Tensor, "batch parameters"]:
        """[batch, parameters] from named values; the middle of the box where one is not named.

        Raises:
            ValueError: an unknown name.
        """
        for name in given:
            self.index(name)
        values = {
            name: torch.as_tensor(v, dtype=None if torch.is_tensor(v) else torch.float64)
            for name, v in given.items()
        }
        batch = max([int(v.numel()) for v in values.values()], default=1)
        middle = self.center()
        dtype = like.dtype if like is not None else torch.float64
        columns = [
            values.get(name, middle[k]).to(dtype).reshape(-1).expand(batch)
            for k, name in enumerate(self.names)
        ]
        return torch.stack(columns, 1)

    def _rows(self, like: Tensor) -> Sequence[Tensor]:
        numbers = [torch.tensor(v, dtype=like.dtype, device=like.device) for v in (self.low, self.high)]
        return (*numbers, torch.tensor(self.log, device=like.device))
