"""Checkpoints of simulations: one .npz file, written whole or not at all, that knows its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from icml_core.run import write_atomically
from torch import Tensor

FORMAT = 1


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What a checkpoint file holds."""

    config: dict[str, Any]
    step: int
    blown: list[dict[str, Any]]
    arrays: dict[str, np.ndarray]


def fingerprint(*values: Any) -> str:
    """A short hash of arrays, tensors and texts."""
    hash_ = sha256()
    for value in values:
        if isinstance(value, Tensor):
            value = value.detach().cpu().numpy()
        if isinstance(value, np.ndarray):
            hash_.update(f"{value.dtype}{value.shape}".encode())
            hash_.update(np.ascontiguousarray(value).tobytes())
        else:
            hash_.update(repr(value).encode())
    return hash_.hexdigest()[:16]


def save_checkpoint(
    path: Path,
    config: Mapping[str, Any],
    step: int,
    blown: Sequence[Mapping[str, Any]],
    arrays: Mapping[str, np.ndarray],
) -> None:
    """Write a checkpoint atomically.

    Args:
        path: the file.
        config: what a later run must agree with; JSON.
        step: number of steps done.
        blown: reports of frozen replicas; JSON.
        arrays: the state.
    """
    header = json.dumps({"format": FORMAT, "config": dict(config), "step": step, "blown": list(blown)})
    with write_atomically(path) as temporary:
        contents: dict[str, Any] = {"header": np.array(header), **arrays}
        np.savez(temporary, **contents)


def load_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint; nothing in it is unpickled.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a checkpoint, or of another format.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}")
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        header = json.loads(str(arrays.pop("header")))
        found = header["format"]
    except (ValueError, KeyError, OSError) as error:
        raise ValueError(f"{path} is no checkpoint of a simulation: {error!r}") from error
    if found != FORMAT:
        raise ValueError(f"{path} has format {found}; this version reads {FORMAT}")
    return Checkpoint(header["config"], int(header["step"]), header["blown"], arrays)


def compare_configs(saved: Mapping[str, Any], present: Mapping[str, Any], path: Path) -> None:
    """Refuse a checkpoint of another simulation.

    Raises:
        ValueError: the configurations differ; names the keys with both values.
    """
    keys = [key for key in {**saved, **present} if saved.get(key) != present.get(key)]
    if keys:
        listed = "; ".join(f"{key}: {saved.get(key)!r} there, {present.get(key)!r} here" for key in keys)
        raise ValueError(f"{path} belongs to another simulation: {listed}")
