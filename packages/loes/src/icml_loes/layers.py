"""Layers of embeddings, from whatever form the user has them in: one tensor, a list of widths, hidden states.

X_l in R^{n x D_l}: the pooled output of block l for each of n examples; widths may differ.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Embeddings: TypeAlias = Any
"""[n, L, D], a sequence of L arrays [n, D_l], a mapping from names to such arrays, or hidden states."""


@dataclass(frozen=True)
class Layers:
    """Checked embeddings.

    Attributes:
        values: one tensor [n, D_l] a layer, float32 or float64.
        names: of the layers.
        stacked: the tensor [n, L, D] that they are slices of, where they are.
        notes: what was done to the input, in words.
    """

    values: list[Float[Tensor, "n dim"]]
    names: list[str]
    stacked: Float[Tensor, "n layers dim"] | None = None
    notes: tuple[str, ...] = ()

    @property
    def examples(self) -> int:
        """n."""
        return len(self.values[0])

    @property
    def widths(self) -> list[int]:
        """D_l of each layer."""
        return [int(v.shape[1]) for v in self.values]

    def __len__(self) -> int:
        return len(self.values)


def as_layers(
    embeddings: Embeddings,
    *,
    names: Sequence[str] | None = None,
    attention_mask: Any = None,
    pooling: str = "mean",
    device: str | torch.device | None = None,
    least_examples: int = 2,
) -> Layers:
    """Check embeddings and bring them into one form. Half precision becomes float32; nothing else is copied.

    Args:
        embeddings: [n, L, D] as a tensor or array; a sequence of L of [n, D_l]; a mapping name → [n, D_l]; an
            output of transformers with ``hidden_states``, or the tuple of these, [n, tokens, D] each. Of such
            states the first, of the input embedding, is dropped, and a warning says so.
        names: of the layers; 0, 1, … by default.
        attention_mask: [n, tokens], for hidden states.
        pooling: of hidden states: ``"mean"`` over attended tokens, ``"cls"`` or ``"last"``.
        device: where to work; where the embeddings are, by default.
        least_examples: fewer are refused.

    Raises:
        TypeError: what has no real numbers, or no such form.
        ValueError: another number of dimensions, lengths that differ, too few examples, NaN or infinity (the
            layer is named), no layer.
    """
    notes: list[str] = []
    if isinstance(embeddings, Mapping) and "hidden_states" in embeddings:
        embeddings = embeddings["hidden_states"]
    elif hasattr(embeddings, "hidden_states") and not isinstance(embeddings, (Tensor, np.ndarray)):
        embeddings = embeddings.hidden_states
    if isinstance(embeddings, Mapping):
        names = list(embeddings) if names is None else names
        embeddings = list(embeddings.values())
    stacked = None
    if isinstance(embeddings, (Tensor, np.ndarray)):
        whole = _tensor(embeddings, "embeddings", device)
        if whole.dim() != 3:
            raise ValueError(
                f"embeddings have shape {list(whole.shape)}; expected [examples, layers, dim], or a list of "
                "one "
                "[examples, dim] a layer"
            )
        stacked, values = whole, list(whole.unbind(1))
    elif isinstance(embeddings, (list, tuple)):
        values = [_tensor(v, f"layer {i}", device) for i, v in enumerate(embeddings)]
        if values and all(v.dim() == 3 for v in values):
            from icml_loes.pooling import pool_states

            if len(values) < 2:
                raise ValueError("hidden states hold the embedding's entry alone; expected one more a block")
            notes.append("the entry of the input embedding, first of the hidden states, was dropped")
            warnings.warn(
                f"of {len(values)} hidden states the first, of the input embedding, is dropped: layer 0 is "
                "the "
                "first block. The last entry is after the final norm in many models; hooks on the blocks "
                "(select_layers_from_model) are unambiguous",
                UserWarning,
                stacklevel=3,
            )
            mask = None if attention_mask is None else torch.as_tensor(attention_mask)
            values = [pool_states(v, mask, pooling) for v in values[1:]]
    else:
        raise TypeError(
            f"embeddings are {type(embeddings).__name__}; expected a tensor or array [examples, layers, "
            "dim], or a "
            "list of one [examples, dim] a layer"
        )
    _check(values, least_examples)
    if names is None:
        names = [str(i) for i in range(len(values))]
    elif len(names) != len(values):
        raise ValueError(f"{len(names)} names were given for {len(values)} layers")
    for name, v in zip(names, values, strict=True):
        if not bool(torch.isfinite(v).all()):
            row = int((~torch.isfinite(v).all(1)).nonzero()[0])
            raise ValueError(f"layer {name} has NaN or infinity, first in example {row}; drop or repair it")
    return Layers(values, [str(n) for n in names], stacked, tuple(notes))


def constant_layers(layers: Layers) -> list[int]:
    """Layers whose every column is constant over the examples, so that they can tell none from another."""
    return [i for i, v in enumerate(layers.values) if bool((v == v[:1]).all())]


def _tensor(value: Any, what: str, device: Any) -> Tensor:
    try:
        tensor = torch.as_tensor(np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{what} is {type(value).__name__}, not an array of numbers: {error}") from error
    if not tensor.is_floating_point():
        raise TypeError(f"{what} has dtype {tensor.dtype}; expected floating numbers")
    tensor = tensor.detach()
    if tensor.dtype in (torch.float16, torch.bfloat16):
        tensor = tensor.float()
    return tensor if device is None else tensor.to(device)


def _check(values: list[Tensor], least_examples: int) -> None:
    if not values:
        raise ValueError("no layer was given")
    for i, v in enumerate(values):
        if v.dim() != 2 or v.shape[1] == 0:
            raise ValueError(f"layer {i} has shape {list(v.shape)}; expected [examples, dim]")
        if len(v) != len(values[0]):
            raise ValueError(
                f"layer {i} has {len(v)} examples but layer 0 has {len(values[0])}; all need the same ones"
            )
    if len(values[0]) < least_examples:
        raise ValueError(f"{len(values[0])} examples were given; at least {least_examples} are needed")
