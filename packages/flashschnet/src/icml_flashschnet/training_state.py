"""The whole state of a training between two epochs, and its file: safetensors, with the rest as JSON.

Nothing is ever unpickled. A file says what it was trained on, and refuses to continue on anything else.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from icml_core.run import write_atomically
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

KIND = "icml-flashschnet-training"
FORMAT = 1
FREE_OPTIONS = ("epochs", "patience")
"""Training options that may be given anew when a training continues."""

Weights = dict[str, Tensor]


@dataclass
class TrainingState:
    """What an epoch leaves behind.

    Attributes:
        weights: the network's.
        averaged: their moving average.
        best: the averaged weights of the best epoch.
        moments: AdamW's two moments of every parameter, ``"exp_avg/<name>"`` and ``"exp_avg_sq/<name>"``.
        epoch, step: done so far.
        best_epoch, best_error: of ``best``.
        history: one line an epoch.
    """

    weights: Weights
    averaged: Weights
    best: Weights
    moments: Weights = field(default_factory=dict)
    epoch: int = 0
    step: int = 0
    best_epoch: int = 0
    best_error: float = math.inf
    history: list[dict[str, float]] = field(default_factory=list)

    @classmethod
    def begin(cls, network: nn.Module) -> TrainingState:
        """The state before the first epoch."""
        return cls(_copy(network), _copy(network), _copy(network))

    def capture(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Take over the network's weights and the optimizer's moments."""
        self.weights = _copy(network)
        self.moments = {
            f"{moment}/{name}": optimizer.state[parameter][moment].clone()
            for name, parameter in network.named_parameters()
            for moment in ("exp_avg", "exp_avg_sq")
            if parameter in optimizer.state
        }

    def restore(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Give weights and moments back."""
        network.load_state_dict(self.weights)
        for name, parameter in network.named_parameters():
            if f"exp_avg/{name}" in self.moments:
                optimizer.state[parameter] = {
                    "step": torch.tensor(float(self.step)),
                    "exp_avg": self.moments[f"exp_avg/{name}"].clone(),
                    "exp_avg_sq": self.moments[f"exp_avg_sq/{name}"].clone(),
                }


def save_training(path: Path, state: TrainingState, identity: dict[str, Any]) -> None:
    """Write the state, whole or not at all.

    Args:
        path: the file.
        state: the state.
        identity: configuration, options and digest of the data.
    """
    tensors = {
        f"{part}/{name}": tensor.detach().cpu().contiguous()
        for part in ("weights", "averaged", "best", "moments")
        for name, tensor in getattr(state, part).items()
    }
    rest = {name: getattr(state, name) for name in ("epoch", "step", "best_epoch", "best_error", "history")}
    metadata = {
        "kind": KIND,
        "format": str(FORMAT),
        "state": json.dumps(rest),
        "identity": json.dumps(identity),
    }
    with write_atomically(path) as temporary:
        save_file(tensors, temporary, metadata)


def load_training(path: Path, identity: dict[str, Any], network: nn.Module) -> TrainingState:
    """Read a state that belongs to the training described by ``identity``.

    Args:
        path: the file.
        identity: as in :func:`save_training`.
        network: gives the names, shapes, dtype and device of the weights.

    Raises:
        ValueError: not such a file, a newer format, or another training (the differing keys are shown).
    """
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
    except Exception as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error
    if metadata.get("kind") != KIND:
        raise ValueError(f"{path} holds {metadata.get('kind')!r}, not the state of a training")
    if int(metadata["format"]) > FORMAT:
        raise ValueError(f"{path} has format {metadata['format']}; this version reads up to {FORMAT}")
    different = _differences(json.loads(metadata["identity"]), json.loads(json.dumps(identity)))
    if different:
        raise ValueError(f"{path} belongs to another training: {'; '.join(different)}")
    reference = network.state_dict()
    parts: dict[str, Weights] = {"weights": {}, "averaged": {}, "best": {}, "moments": {}}
    for key, tensor in tensors.items():
        part, _, name = key.partition("/")
        like = reference.get(name.rpartition("/")[2])
        if part not in parts or like is None or like.shape != tensor.shape or like.dtype != tensor.dtype:
            raise ValueError(f"{path}: {key} of shape {list(tensor.shape)} is no weight of this network")
        parts[part][name] = tensor.to(like.device)
    for part in ("weights", "averaged", "best"):
        if missing := sorted(reference.keys() - parts[part].keys()):
            raise ValueError(f"{path} lacks {part} of {', '.join(missing)}")
    return TrainingState(**parts, **json.loads(metadata["state"]))


def _copy(network: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}


def _differences(old: dict[str, Any], new: dict[str, Any], where: str = "") -> list[str]:
    found = []
    for key in sorted(old.keys() | new.keys()):
        if where == "options." and key in FREE_OPTIONS:
            continue
        a, b = old.get(key), new.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += _differences(a, b, f"{where}{key}.")
        elif a != b:
            found.append(f"{where}{key} was {a!r}, now {b!r}")
    return found
