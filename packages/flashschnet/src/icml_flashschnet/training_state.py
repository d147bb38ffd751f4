"""The whole state of a training between two epochs, and its file."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from icml_core.checkpoint import load_state, save_state
from torch import Tensor, nn

KIND = "icml-flashschnet-training"
FREE_OPTIONS = ("options.epochs", "options.patience")
"""Training options that may be given anew when a training continues."""
_WEIGHTS = ("weights", "averaged", "best")

Weights = dict[str, Tensor]


@dataclass
class TrainingState:
    """What an epoch leaves behind.

    Attributes:
        weights: the network's.
        averaged: their moving average.
        best: the averaged weights of the best epoch.
        optimizer: the optimizer's ``state_dict``; empty before the first epoch.
        epoch, step: done so far.
        best_epoch, best_error: of ``best``.
        history: one line an epoch.
    """

    weights: Weights
    averaged: Weights
    best: Weights
    optimizer: dict[str, Any] = field(default_factory=dict)
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
        """Take over the network's weights and the optimizer's state."""
        self.weights = _copy(network)
        self.optimizer = optimizer.state_dict()

    def restore(self, network: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Give both back."""
        network.load_state_dict(self.weights)
        if self.optimizer:
            optimizer.load_state_dict(self.optimizer)


def save_training(path: Path, state: TrainingState, identity: dict[str, Any]) -> None:
    """Write the state, whole or not at all.

    Args:
        path: the file.
        state: the state.
        identity: configuration, options and digest of the data.
    """
    save_state(path, vars(state), kind=KIND, identity=identity)


def load_training(path: Path, identity: dict[str, Any], network: nn.Module) -> TrainingState:
    """Read a state that belongs to the training described by ``identity``.

    Args:
        path: the file.
        identity: as in :func:`save_training`.
        network: gives the names, shapes, dtype and device of the weights.

    Raises:
        ValueError: not such a file, a newer format, or another training (the differing keys are shown).
    """
    reference = network.state_dict()
    device = next(iter(reference.values())).device
    found = load_state(path, kind=KIND, identity=identity, may_differ=FREE_OPTIONS, device=device)
    for part in _WEIGHTS:
        given = found.get(part, {})
        if missing := sorted(reference.keys() - given.keys()):
            raise ValueError(f"{path} lacks {part} of {', '.join(missing)}")
        for name, tensor in given.items():
            like = reference.get(name)
            if like is None or like.shape != tensor.shape or like.dtype != tensor.dtype:
                raise ValueError(
                    f"{path}: {part} {name} of shape {list(tensor.shape)} is no weight of this network"
                )
    return TrainingState(**found)


def _copy(network: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in network.state_dict().items()}
