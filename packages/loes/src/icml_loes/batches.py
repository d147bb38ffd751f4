"""Batches as users have them: mappings, pairs, tensors, or texts with a tokenizer."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

MASKS = ("attention_mask", "padding_mask")


@dataclass(frozen=True)
class Batch:
    """What one forward pass takes.

    Attributes:
        args: positional inputs.
        kwargs: named inputs.
        targets: of the examples, or None.
        mask: which tokens are attended, or None.
        size: number of examples.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: np.ndarray | None
    mask: Tensor | None
    size: int

    def run(self, model: nn.Module) -> None:
        """One forward pass."""
        model(*self.args, **self.kwargs)

    def alone(self, row: int) -> Batch:
        """One example without the padding of the others."""
        kept = None
        if self.mask is not None:
            attended = self.mask[row].nonzero().flatten()
            kept = slice(int(attended[0]), int(attended[-1]) + 1) if len(attended) else slice(0, 1)

        def cut(value: Any) -> Any:
            if not isinstance(value, Tensor) or value.dim() == 0 or len(value) != self.size:
                return value
            one = value[row : row + 1]
            fits = self.mask is not None and value.dim() >= 2 and value.shape[1] == self.mask.shape[1]
            return one[:, kept] if fits and kept is not None else one

        mask = None if self.mask is None else cut(self.mask)
        return Batch(tuple(map(cut, self.args)), {k: cut(v) for k, v in self.kwargs.items()}, None, mask, 1)

    def fingerprint(self) -> str:
        """Of the inputs: equal for equal batches."""
        found = hashlib.sha256()
        for value in (*self.args, *(self.kwargs[k] for k in sorted(self.kwargs))):
            if isinstance(value, Tensor):
                found.update(str(tuple(value.shape)).encode())
                found.update(value.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return found.hexdigest()[:16]


def as_batch(
    given: Any,
    model: nn.Module,
    *,
    target_key: str,
    tokenizer: Any,
    device: torch.device,
    max_length: int | None,
) -> Batch:
    """A batch for the model.

    Args:
        given: a mapping of tensors with ``target_key``; a pair (inputs, targets); a tensor; a list of texts.
        model: entries that its ``forward`` does not take are left out.
        target_key: name of the targets; they are not handed to the model.
        tokenizer: for texts.
        device: where the model is.
        max_length: of texts, in tokens.

    Raises:
        TypeError: another form.
        ValueError: texts without a tokenizer; targets of another length.
    """
    inputs, targets = _split(given, target_key)
    if isinstance(inputs, (list, tuple)) and inputs and all(isinstance(v, str) for v in inputs):
        if tokenizer is None:
            raise ValueError("a batch of texts needs tokenizer=")
        options = {} if max_length is None else {"max_length": max_length}
        inputs = tokenizer(list(inputs), padding=True, truncation=True, return_tensors="pt", **options)
    if isinstance(inputs, Mapping):
        kwargs = {k: _to(v, device) for k, v in inputs.items() if _takes(model, k) and k != target_key}
        tensors = [v for v in kwargs.values() if isinstance(v, Tensor) and v.dim()]
        if not tensors:
            raise TypeError(f"a batch with {', '.join(map(str, inputs))} has no tensor that the model takes")
        size = len(tensors[0])
        mask = next((kwargs[k] for k in MASKS if isinstance(kwargs.get(k), Tensor)), None)
        if mask is not None and mask.dim() == 2:
            kwargs, mask = _right_padded(kwargs, mask)
        else:
            mask = None
        return Batch((), kwargs, _targets(targets, size), mask, size)
    if isinstance(inputs, Tensor):
        value = _to(inputs, device)
        return Batch((value,), {}, _targets(targets, len(value)), None, len(value))
    raise TypeError(
        f"a batch is {type(given).__name__}; expected a mapping of tensors, a pair (inputs, targets), a "
        "tensor, or texts"
    )


def _split(given: Any, target_key: str) -> tuple[Any, Any]:
    if isinstance(given, Mapping):
        return given, given.get(target_key)
    if isinstance(given, (tuple, list)) and len(given) == 2 and not all(isinstance(v, str) for v in given):
        inputs, targets = given
        if isinstance(inputs, Mapping) and targets is None:
            targets = inputs.get(target_key)
        return inputs, targets
    if isinstance(given, (tuple, list)) and len(given) == 1 and not isinstance(given[0], str):
        return given[0], None
    return given, None


def _to(value: Any, device: torch.device) -> Any:
    return value.to(device) if isinstance(value, Tensor) else value


def _takes(model: nn.Module, name: str) -> bool:
    parameters = inspect.signature(model.forward).parameters
    return name in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _targets(targets: Any, size: int) -> np.ndarray | None:
    if targets is None:
        return None
    array = targets.detach().cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)
    if array.ndim == 0 or len(array) != size:
        raise ValueError(f"a batch of {size} examples has targets of shape {list(array.shape)}")
    return array


def _right_padded(kwargs: dict[str, Any], mask: Tensor) -> tuple[dict[str, Any], Tensor]:
    """Move padding on the left to the right, where positions count from the first token in every model.

    Absolute positions would else depend on how long the other texts of the batch are.
    """
    start = mask.ne(0).int().argmax(1)
    if not bool((start > 0).any()):
        return kwargs, mask
    places = (torch.arange(mask.shape[1], device=mask.device)[None] + start[:, None]) % mask.shape[1]

    def moved(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 2 or tuple(value.shape[:2]) != tuple(mask.shape):
            return value
        index = places.reshape(*places.shape, *[1] * (value.dim() - 2)).expand(value.shape)
        return value.gather(1, index)

    # Positions that the tokenizer gave for left padding are those of right padding once moved.
    return {k: moved(v) for k, v in kwargs.items()}, moved(mask)
