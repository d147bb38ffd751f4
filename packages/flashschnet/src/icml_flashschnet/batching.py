"""Which beads belong to which replica, and the checks of positions and types where they enter a model."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def replica_ptr(
    n_beads: int,
    batch: Int[Tensor, " beads"] | None,
    n_replicas: int | None,
    device: torch.device,
) -> Int[Tensor, " replicas+1"]:
    """Where each replica begins: replica b owns the beads ``ptr[b]`` to ``ptr[b+1] - 1``.

    Args:
        n_beads: number of beads of all replicas together.
        batch: replica of each bead, in ascending order (replicas of different sizes).
        n_replicas: number of replicas of equal size; both absent means one.
        device: of the result.

    Raises:
        ValueError: both are given, the batch is not sorted or of another length, or the beads cannot be
            divided into that many equal replicas.
    """
    if batch is not None and n_replicas is not None:
        raise ValueError("give batch (replicas of any sizes) or n_replicas (equal sizes), not both")
    if batch is None:
        count = 1 if n_replicas is None else n_replicas
        if count < 1 or n_beads % count:
            raise ValueError(f"{n_beads} beads cannot be divided into n_replicas={count} equal replicas")
        return torch.arange(count + 1, device=device) * (n_beads // count)
    if batch.shape != (n_beads,) or batch.dtype != torch.int64:
        raise ValueError(
            f"batch must be int64 of length {n_beads}, one replica number a bead; "
            f"got {batch.dtype} of shape {tuple(batch.shape)}"
        )
    if n_beads and (bool((batch.diff() < 0).any()) or int(batch[0]) < 0):
        raise ValueError("batch must ascend from 0: sort the beads by replica")
    count = int(batch[-1]) + 1 if n_beads else 0
    return torch.searchsorted(batch, torch.arange(count + 1, device=batch.device))


def check_beads(
    pos: Float[Tensor, "beads 3"], types: Int[Tensor, " beads"], n_types: int, dtype: torch.dtype
) -> None:
    """Refuse positions and types that a model cannot take.

    Args:
        pos: positions, Å.
        types: bead types, 0 to ``n_types - 1``.
        n_types: size of the model's embedding.
        dtype: the model's dtype.

    Raises:
        ValueError: a wrong shape, NaN or infinity in ``pos`` (the first bead is named), or a type outside
            the embedding.
        TypeError: a dtype that is not the model's, or types that are not int64.
    """
    if pos.ndim != 2 or pos.shape[1] != 3:
        raise ValueError(
            f"pos must have shape [beads, 3], replicas one after the other; got {list(pos.shape)}"
        )
    if pos.dtype != dtype:
        raise TypeError(f"pos is {pos.dtype}, the model {dtype}: convert one (model.to({pos.dtype}))")
    if types.dtype != torch.int64:
        raise TypeError(f"types must be int64, got {types.dtype}")
    if types.shape != pos.shape[:1]:
        raise ValueError(f"types must have one entry a bead: {pos.shape[0]} beads, types {list(types.shape)}")
    if pos.shape[0] == 0:
        raise ValueError("pos holds no beads")
    # A sum is finite unless an entry is not (or the coordinates are absurd): one pass in the usual case.
    if not bool(torch.isfinite(pos.detach().sum())):
        finite = torch.isfinite(pos).all(1)
        if not bool(finite.all()):
            bead = int((~finite).nonzero()[0, 0])
            raise ValueError(f"pos of bead {bead} is not finite: {pos[bead].tolist()}")
    low, high = (int(v) for v in torch.aminmax(types))
    if low < 0 or high >= n_types:
        wrong = low if low < 0 else high
        raise ValueError(
            f"type {wrong} {'< 0' if low < 0 else f'>= n_types {n_types}'}: "
            f"bead types must lie in 0 to {n_types - 1} (SchNetConfig.n_types)"
        )
