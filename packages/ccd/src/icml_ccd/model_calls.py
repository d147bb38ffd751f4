"""Calls of the user's model: what it takes, what it gives, and how often it was called.

A model is any callable from ids [batch, length] to logits [batch, length, vocabulary]: a module, a function,
or one of transformers' (whose results carry ``.logits``). Two optional methods save work:

    forward_rows(ids, rows, **inputs)          logits of chosen rows of the flattened batch only, so that the
    head
                                               runs on masked positions alone
    forward_cached(ids, start, stop, refresh)  logits of positions start to stop - 1, with keys and values of
    the
                                               others kept since the last call with ``refresh``
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

Model = Callable[..., Any]


class ModelCalls:
    """A model with what every call passes along.

    Args:
        model: the callable.
        attention_mask: 1 for real tokens, over all positions; None where every token is real.
        use_cache: whether ``forward_cached`` is called.

    Raises:
        TypeError: the model takes no attention mask where one is needed, or has no cache.
    """

    def __init__(
        self, model: Model, attention_mask: Int[Tensor, "batch length"] | None, use_cache: bool = False
    ) -> None:
        self.model, self.use_cache = model, use_cache
        self.forwards = self.computed_tokens = self.cached_tokens = 0
        self._slim = getattr(model, "forward_rows", None)
        self._cached = getattr(model, "forward_cached", None)
        if use_cache and self._cached is None:
            raise TypeError(
                "cache=True needs a model with forward_cached(ids, start, stop, refresh); this "
                f"{type(model).__name__} has none"
            )
        if use_cache and attention_mask is not None:
            raise ValueError("cache=True takes no attention_mask: decode prompts of one length together")
        self._inputs: dict[str, Tensor] = {}
        if attention_mask is not None:
            names = _parameters(model)
            if names is not None and "attention_mask" not in names:
                raise TypeError(
                    f"attention_mask was given, but this {type(model).__name__} takes none; decode prompts "
                    "of different lengths one by one, or give the model an argument attention_mask"
                )
            self._inputs["attention_mask"] = attention_mask
            if names is None or "position_ids" in names:
                positions = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
                self._inputs["position_ids"] = positions

    def rows(
        self, ids: Int[Tensor, "batch length"], alive: Int[Tensor, " kept"] | None, rows: Int[Tensor, " k"]
    ) -> tuple[Float[Tensor, "r X"], Int[Tensor, " k"]]:
        """Logits that hold those of chosen rows of the flattened batch, and where each of these is in them.

        Args:
            ids: tokens of all rows.
            alive: rows of the batch that are computed; all where None.
            rows: places in the flattened batch of those that are alive.
        """
        inputs = self._inputs
        if alive is not None:
            ids = ids[alive]
            inputs = {name: value[alive] for name, value in inputs.items()}
        self.forwards += 1
        self.computed_tokens += ids.numel()
        if self._slim is not None:
            found = _logits(self._slim(ids, rows, **inputs))
            if found.dim() != 2 or found.shape[0] != len(rows):
                raise ValueError(
                    f"forward_rows gave logits of shape {list(found.shape)} for {len(rows)} rows"
                )
            return found, torch.arange(len(rows), device=found.device)
        found = _logits(self.model(ids, **inputs))
        if found.dim() != 3 or found.shape[:2] != ids.shape:
            raise ValueError(
                f"the model gave logits of shape {list(found.shape)} for ids of shape {list(ids.shape)}; "
                "expected [batch, length, vocabulary]"
            )
        return found.flatten(0, 1), rows

    def span(
        self, ids: Int[Tensor, "batch length"], start: int, stop: int, refresh: bool
    ) -> Float[Tensor, "batch span X"]:
        """Logits of positions start to stop - 1, by the model's cache."""
        before = getattr(self.model, "cached_tokens", 0)
        found = _logits(self._cached(ids, start, stop, refresh))
        if found.shape[:2] != (ids.shape[0], stop - start):
            raise ValueError(
                f"forward_cached gave logits of shape {list(found.shape)} for positions {start} to {stop - 1}"
            )
        saved = getattr(self.model, "cached_tokens", 0) - before
        self.forwards += 1
        self.cached_tokens += saved
        self.computed_tokens += ids.numel() - saved
        return found


def _logits(output: Any) -> Tensor:
    found = getattr(output, "logits", output)
    if not isinstance(found, Tensor) or not found.is_floating_point():
        raise TypeError(
            f"the model gave {type(output).__name__}; expected a floating tensor of logits, or something "
            "with .logits"
        )
    return found


def _parameters(model: Model) -> set[str] | None:
    """Names that the model takes; None where it takes any."""
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except (TypeError, ValueError):
        return None
    if any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}
