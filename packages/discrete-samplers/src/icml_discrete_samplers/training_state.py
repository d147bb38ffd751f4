"""What trainings share: where impossible states stand, whether a checkpoint is of this energy, the figures of
all updates.
"""

from __future__ import annotations

import math
from hashlib import sha256

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers.checks import Energy, evaluate, generator_of

DROP = 1e4  # by how much impossible states stand below the least possible one in a loss
PROBES, PROBE_SEED = 64, 20_602  # states by which a checkpoint knows its energy
SAME = 1e-6  # relative difference of their log rho that another device or thread count may make

History = list[dict[str, float]]


class Floor:
    """log rho with a number for the -inf of impossible states: 10^4 below the least possible value so far.

    Relative to what was seen, so that a constant in log rho, which changes no target, changes no training.
    """

    def __init__(self, least: float = math.inf) -> None:
        self.least = least

    def __call__(self, log_rho: Float64[Tensor, " n"], beta: float = 1.0) -> Float64[Tensor, " n"]:
        """beta log rho, finite everywhere."""
        impossible = torch.isneginf(log_rho)
        least = float(torch.where(impossible, torch.inf, log_rho).min()) if len(log_rho) else math.inf
        self.least = min(self.least, least)
        base = beta * self.least if math.isfinite(self.least) else 0.0
        return torch.where(impossible, base - DROP, beta * log_rho)


def probe(energy: Energy, device: torch.device) -> Float64[Tensor, " 64"]:
    """log rho of fixed states, by which an energy is known again whatever its class."""
    generator = generator_of(PROBE_SEED, "cpu")
    x = torch.randint(0, energy.V, (PROBES, energy.D), generator=generator)
    return evaluate(energy, x.to(device)).cpu()


def require_same_energy(
    path: object, written: Float64[Tensor, " 64"], energy: Energy, device: torch.device
) -> None:
    """Refuse to continue a training on another energy.

    Raises:
        ValueError: log rho of the fixed states differs from what the checkpoint holds.
    """
    now = probe(energy, device)
    written = written.cpu()
    if not torch.allclose(written, now, rtol=SAME, atol=SAME):
        place = int((~torch.isclose(written, now, rtol=SAME, atol=SAME)).nonzero()[0])
        raise ValueError(
            f"{path} belongs to another energy: log rho of a fixed state was {float(written[place]):.6g}, "
            f"and is {float(now[place]):.6g}; give the energy that the training began with, or begin anew"
        )


def hash_of(states: Int64[Tensor, "m D"]) -> str:
    """A hash of data."""
    rows = states.cpu().long().contiguous()
    return sha256(str(tuple(rows.shape)).encode() + rows.numpy().tobytes()).hexdigest()[:16]


def packed(history: History) -> dict[str, Tensor]:
    """Figures as a column each, NaN where an update has none: small in a checkpoint."""
    names = dict.fromkeys(name for figures in history for name in figures)
    return {
        name: torch.tensor([figures.get(name, math.nan) for figures in history], dtype=torch.float64)
        for name in names
    }


def unpacked(columns: dict[str, Tensor]) -> History:
    """What :func:`packed` took."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [{n: v for n, v in zip(columns, row, strict=True) if not math.isnan(v)} for row in rows]
