"""Mean and standard deviation of each channel, z-scores, and whether two sets of data have the same.

Moments are Welford's, in float64 and merged over batches (Chan, Golub and LeVeque 1983): a channel of mean
1e4 and deviation 0.1 in float32 keeps its deviation, where sums of squares lose it or give a negative
variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

MOST_SHIFT = 0.5  # standard deviations between the means of two sets that belong together
RATIO = (0.5, 2.0)  # of their standard deviations


@dataclass(frozen=True)
class Statistics:
    """Of each channel.

    Attributes:
        mean, std: in float64; std has the divisor n.
        count: points.
    """

    mean: Float[Tensor, " channels"]
    std: Float[Tensor, " channels"]
    count: int = 0

    @classmethod
    def of(cls, batches: Tensor | Iterable[Tensor], mask: Bool[Tensor, ...] | None = None) -> Statistics:
        """Of [batch, channels, *space] tensors.

        Args:
            batches: one tensor, or several.
            mask: True where a point counts; of one tensor.

        Raises:
            ValueError: no point at all, or values that are not finite.
        """
        count, mean, square = 0, torch.zeros(()), torch.zeros(())
        for batch in [batches] if isinstance(batches, Tensor) else batches:
            found = _moments(batch, mask)
            if found is None:
                continue
            n, m, s = found
            if count == 0:
                count, mean, square = n, m, s
                continue
            total = count + n
            shift = m - mean
            square = square + s + shift.square() * (count * n / total)
            mean, count = mean + shift * (n / total), total
        if count == 0:
            raise ValueError("no point to take statistics of; is the mask False everywhere?")
        if not bool(torch.isfinite(mean).all() and torch.isfinite(square).all()):
            bad = (~torch.isfinite(mean + square)).nonzero().flatten().tolist()
            raise ValueError(f"channels {bad} have NaN or infinite values; give mask=, or remove them")
        return cls(mean, torch.sqrt(square / count), count)

    @classmethod
    def read(cls, given: Statistics | Mapping[str, Any]) -> Statistics:
        """From a mapping with ``mean`` and ``std``.

        Raises:
            ValueError: a missing key, lengths that differ, or a std that is not positive and finite.
        """
        if isinstance(given, Statistics):
            return given
        missing = [key for key in ("mean", "std") if key not in given]
        if missing:
            raise ValueError(
                f"statistics lack {', '.join(missing)}; they have {', '.join(map(str, given)) or 'none'}"
            )
        mean, std = (
            torch.as_tensor(np.asarray(given[k]), dtype=torch.float64).flatten() for k in ("mean", "std")
        )
        if len(mean) != len(std):
            raise ValueError(f"statistics have {len(mean)} means but {len(std)} standard deviations")
        if not bool((torch.isfinite(std) & (std >= 0)).all() and torch.isfinite(mean).all()):
            raise ValueError(
                f"statistics are not finite, or negative: mean {mean.tolist()}, std {std.tolist()}"
            )
        return cls(mean, std, int(given.get("count", 0)))

    def normalize(self, x: Float[Tensor, "batch channels *space"]) -> Float[Tensor, "batch channels *space"]:
        """(x - mean) / std; a constant channel is only shifted."""
        mean, std = self._shaped(x)
        return (
            ((x.double() - mean) / std).to(x.dtype)
            if x.dtype == torch.float32
            else (x - mean.to(x)) / std.to(x)
        )

    def denormalize(
        self, x: Float[Tensor, "batch channels *space"]
    ) -> Float[Tensor, "batch channels *space"]:
        """x std + mean."""
        mean, std = self._shaped(x)
        return (x.double() * std + mean).to(x.dtype)

    def _shaped(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.shape[1] != len(self.mean):
            raise ValueError(f"{x.shape[1]} channels were given to statistics of {len(self.mean)}")
        shape = (1, -1, *[1] * (x.dim() - 2))
        std = torch.where(self.std > 0, self.std, 1.0)
        return self.mean.view(shape).to(x.device), std.view(shape).to(x.device)


def check_alike(sets: Mapping[str, Statistics], names: Sequence[str] | None = None) -> None:
    """Refuse sets of data that cannot have been normalised alike; each is compared with the first.

    Args:
        sets: statistics by the set's name, such as train, valid, and what the base was trained on.
        names: of the channels.

    Raises:
        ValueError: names set and channel where the ratio of standard deviations leaves 0.5 to 2 or the means
            are more than half a standard deviation apart (of two constants, where they differ); or numbers
            of channels differ.
    """
    (first_name, first), *rest = sets.items()
    for name, other in rest:
        if len(other.mean) != len(first.mean):
            raise ValueError(f"{name} has {len(other.mean)} channels but {first_name} has {len(first.mean)}")
        for channel in range(len(first.mean)):
            label = names[channel] if names else str(channel)
            mean, std = float(first.mean[channel]), float(first.std[channel])
            other_mean, other_std = float(other.mean[channel]), float(other.std[channel])
            what = (
                f"channel {label}: {first_name} has mean {mean:.4g} and std {std:.4g}, {name} has "
                f"mean {other_mean:.4g} and std {other_std:.4g}"
            )
            if std == other_std == 0 and math.isclose(mean, other_mean, rel_tol=1e-5, abs_tol=1e-7):
                continue
            if std == 0 or other_std == 0 or not RATIO[0] <= other_std / std <= RATIO[1]:
                raise ValueError(f"{what}; normalise {name} with the statistics of {first_name}")
            if abs(other_mean - mean) > MOST_SHIFT * std:
                raise ValueError(f"{what}; normalise {name} with the statistics of {first_name}")


def _moments(batch: Tensor, mask: Tensor | None) -> tuple[int, Tensor, Tensor] | None:
    flat = batch.double().transpose(0, 1).flatten(1)
    if mask is None:
        n = flat.shape[1]
        mean = flat.mean(1)
        return (n, mean, (flat - mean[:, None]).square().sum(1)) if n else None
    kept = mask.expand(batch.shape[0], 1, *batch.shape[2:]).transpose(0, 1).flatten()
    flat = flat[:, kept]
    n = flat.shape[1]
    if n == 0:
        return None
    mean = flat.mean(1)
    return n, mean, (flat - mean[:, None]).square().sum(1)
