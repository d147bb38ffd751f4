"""States on which every route of the Langevin steps is compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icml_kernels.molecules.langevin_baoab import baoab_drift, brownian_step, half_kick, philox_normal
from icml_kernels.testing import Case


def state(
    n_replicas: int = 3, n_beads: int = 7, dtype: torch.dtype = torch.float64, seed: int = 11
) -> dict[str, Tensor]:
    """pos, vel, force and mass of random replicas."""
    generator = torch.Generator().manual_seed(seed)
    pos, vel, force = torch.randn(3, n_replicas, n_beads, 3, generator=generator, dtype=torch.float64).to(
        dtype
    )
    mass = torch.rand(n_beads, generator=generator, dtype=torch.float64) * 10 + 2
    return {"pos": pos, "vel": vel, "force": force, "mass": mass.to(dtype)}


def steps(dtype: torch.dtype, n_replicas: int, n_beads: int, key: dict[str, Any]) -> list[Tensor]:
    """What the four public functions give for one state."""
    s = state(n_replicas, n_beads, dtype)
    temperature = torch.linspace(250.0, 400.0, n_replicas, dtype=dtype)
    replica = torch.arange(n_replicas) * 5 + key["first"]
    frozen = torch.arange(n_replicas) % 3 == 1
    options = {"temperature": temperature, "dt": 0.004, "replica": replica, "frozen": frozen}
    options |= {"seed": key["seed"], "step": key["step"]}
    pos, vel, force, mass = s.values()
    return [
        *baoab_drift(**s, friction=1.5, **options),
        *baoab_drift(**s, friction=0.0, **options),
        half_kick(vel, force, mass, dt=0.004, frozen=frozen),
        brownian_step(pos, force, mass, friction=20.0, **options),
        philox_normal(key["seed"], replica, key["step"], n_beads, stream=key.get("stream", 0)),
    ]


CASES = (
    Case("small", lambda: (3, 7, {"seed": 1, "step": 0, "first": 0})),
    Case("more than a block", lambda: (5, 61, {"seed": 1, "step": 3, "first": 2})),
    Case(
        "large keys",
        lambda: (2, 3, {"seed": 2**62 + 12345, "step": 2**40 + 7, "first": 2**32 - 9, "stream": 65535}),
    ),
    Case("single bead", lambda: (1, 1, {"seed": 0, "step": 1, "first": 0})),
    Case("no replicas", lambda: (0, 4, {"seed": 0, "step": 1, "first": 0})),
    Case("no beads", lambda: (4, 0, {"seed": 0, "step": 1, "first": 0})),
)
