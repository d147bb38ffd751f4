"""What a simulation starts from: device, model, positions; and how it tells its progress."""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn


def resolve_device(device: str | torch.device) -> torch.device:
    """The device that a name stands for; "auto" is CUDA where it is there."""
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device)


def placed(model: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """The model itself, or a copy on another device or in another dtype; the user's own stays as it is."""
    if not isinstance(model, nn.Module):
        return model
    tensors = [*model.parameters(), *model.buffers()]
    if all(t.device == device and (t.dtype == dtype or not t.is_floating_point()) for t in tensors):
        return model
    return copy.deepcopy(model).to(device, dtype)


def weights_of(model: Any) -> list[Any]:
    """What tells two models apart: names and values of their weights, or their class."""
    if not isinstance(model, nn.Module):
        return [type(model).__qualname__]
    return [item for name, value in sorted(model.state_dict().items()) for item in (name, value)]


def starting_positions(pos: Any, n_replicas: int, n_beads: int) -> Float[np.ndarray, "replicas beads 3"]:
    """Positions of all replicas, from those of one or of all.

    Raises:
        ValueError: another shape, or values that are not finite.
    """
    x = np.asarray(pos.detach().cpu() if isinstance(pos, Tensor) else pos, dtype=np.float64)
    if x.shape not in ((n_beads, 3), (n_replicas, n_beads, 3)):
        raise ValueError(
            f"starting positions have shape {list(x.shape)}; expected [{n_beads}, 3] or "
            f"[{n_replicas}, {n_beads}, 3]"
        )
    if not np.isfinite(x).all():
        place = np.argwhere(~np.isfinite(x))[0]
        raise ValueError(
            f"starting position of bead {int(place[-2])} is not finite: {x[tuple(place[:-1])].tolist()}"
        )
    return np.broadcast_to(x, (n_replicas, n_beads, 3)).copy()


def silent(done: int, figures: dict[str, float]) -> None:
    """Nobody asked for the progress."""


def print_progress(last: int) -> Callable[[int, dict[str, float]], None]:
    """A function that rewrites one line on standard error with the steps done of `last`."""
    begin, done = time.perf_counter(), 0

    def report(steps: int, figures: dict[str, float]) -> None:
        nonlocal done
        done += steps
        values = "  ".join(f"{name} {value:.5g}" for name, value in figures.items())
        rate = done / (time.perf_counter() - begin)
        print(
            f"\r{done} of {last} steps  {rate:.0f} steps/s  {values}   ", end="", file=sys.stderr, flush=True
        )

    return report
