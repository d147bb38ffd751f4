"""Key and value caches: a preallocated one for TinyLM, and functions that also take transformers'.

``cache_length``, ``repeat_rows``, ``select_rows`` and ``crop`` work in place on a ``KeyValueCache`` and on a
``transformers.DynamicCache``; ``run_cached`` feeds either to its model.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor


class KeyValueCache:
    """Keys and values of the tokens read so far, in buffers that double where they are full.

    New entries are written in place. Where a gradient must flow through them they are appended by
    concatenation instead, so that what autograd has saved stays as it was.

    Attributes:
        length: number of positions held, padding included.
    """

    def __init__(self, layers: int, capacity: int = 0) -> None:
        if layers < 1 or capacity < 0:
            raise ValueError(
                f"a cache needs at least one layer and no negative capacity, not {layers} and {capacity}"
            )
        self.length = 0
        self._capacity = capacity
        self._keys: list[Tensor | None] = [None] * layers
        self._values: list[Tensor | None] = [None] * layers
        self._filled = [0] * layers

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self._keys)

    @property
    def batch_size(self) -> int:
        """Number of rows; 0 before the first entry."""
        return 0 if self._keys[0] is None else self._keys[0].shape[0]

    def update(
        self,
        layer: int,
        keys: Float[Tensor, "batch heads new head_dim"],
        values: Float[Tensor, "batch heads new head_dim"],
    ) -> tuple[Float[Tensor, "batch heads all head_dim"], Float[Tensor, "batch heads all head_dim"]]:
        """Append the entries of one layer and return all that it holds.

        Raises:
            ValueError: another number of rows than the cache holds.
        """
        start, new = self._filled[layer], keys.shape[2]
        end = start + new
        stored_keys, stored_values = self._keys[layer], self._values[layer]
        if stored_keys is None:
            shape = (*keys.shape[:2], max(self._capacity, end), keys.shape[3])
            if keys.requires_grad or end == shape[2]:
                stored_keys, stored_values = keys, values
            else:
                stored_keys, stored_values = keys.new_empty(shape), values.new_empty(shape)
                stored_keys[:, :, :end], stored_values[:, :, :end] = keys, values
        else:
            if stored_keys.shape[0] != keys.shape[0]:
                raise ValueError(f"the cache holds {stored_keys.shape[0]} rows and was given {keys.shape[0]}")
            if keys.requires_grad or stored_keys.requires_grad:
                stored_keys = torch.cat((stored_keys[:, :, :start], keys), 2)
                stored_values = torch.cat((stored_values[:, :, :start], values), 2)
            else:
                if end > stored_keys.shape[2]:
                    room = max(2 * start, end)
                    stored_keys = _grown(stored_keys, start, room)
                    stored_values = _grown(stored_values, start, room)
                stored_keys[:, :, start:end], stored_values[:, :, start:end] = keys, values
        self._keys[layer], self._values[layer] = stored_keys, stored_values
        self._filled[layer] = end
        if layer == self.layers - 1:
            self.length = end
        return stored_keys[:, :, :end], stored_values[:, :, :end]

    def repeat(self, times: int) -> None:
        """Hold every row ``times`` times, one after the other: rows 0, 0, 1, 1, ... for two."""
        self._map(lambda held: held.repeat_interleave(times, 0))

    def select(self, rows: Int[Tensor, " kept"]) -> None:
        """Hold the given rows only, in the given order; a row may come more than once."""
        self._map(lambda held: held.index_select(0, rows))

    def crop(self, length: int) -> None:
        """Forget all positions from ``length`` on.

        Raises:
            ValueError: the cache holds fewer.
        """
        if not 0 <= length <= self.length:
            raise ValueError(f"cannot crop a cache of length {self.length} to {length}")
        self.length = length
        self._filled = [length] * self.layers

    def copy(self) -> KeyValueCache:
        """A cache with its own buffers and the same entries."""
        other = KeyValueCache(self.layers, self._capacity)
        other.length, other._filled = self.length, list(self._filled)
        other._keys = [None if held is None else held.clone() for held in self._keys]
        other._values = [None if held is None else held.clone() for held in self._values]
        return other

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """``length``, under transformers' name."""
        return self.length

    def _map(self, change: Any) -> None:
        # Only what is filled is moved; the room beyond it comes back at the next growth.
        for held in (self._keys, self._values):
            for layer, tensor in enumerate(held):
                if tensor is not None:
                    kept = change(tensor[:, :, : self._filled[layer]])
                    room = max(self._capacity, self._filled[layer])
                    held[layer] = kept if kept.requires_grad else _grown(kept, self._filled[layer], room)


def _grown(held: Tensor, filled: int, room: int) -> Tensor:
    if held.shape[2] == room:
        return held
    out = held.new_empty(*held.shape[:2], room, held.shape[3])
    out[:, :, :filled] = held[:, :, :filled]
    return out


def cache_length(cache: Any) -> int:
    """Number of positions that a cache holds; 0 for None."""
    return 0 if cache is None else int(cache.get_seq_length())


def repeat_rows(cache: Any, times: int) -> None:
    """Hold every row ``times`` times, one after the other, in place."""
    if isinstance(cache, KeyValueCache):
        cache.repeat(times)
    else:
        cache.batch_repeat_interleave(times)


def select_rows(cache: Any, rows: Int[Tensor, " kept"]) -> None:
    """Hold the given rows only, in place."""
    if isinstance(cache, KeyValueCache):
        cache.select(rows)
    else:
        cache.batch_select_indices(rows)


def crop(cache: Any, length: int) -> None:
    """Forget all positions from ``length`` on, in place.

    Raises:
        ValueError: the cache holds fewer.
    """
    if isinstance(cache, KeyValueCache):
        cache.crop(length)
        return
    held = cache_length(cache)
    if not 0 <= length <= held:
        raise ValueError(f"cannot crop a cache of length {held} to {length}")
    if length < held:
        cache.crop(length - held)


def new_cache(model: Any, capacity: int = 0) -> Any:
    """An empty cache of the kind that the model takes; TinyLM's has room for ``capacity`` positions."""
    make = getattr(model, "new_cache", None)
    if make is not None:
        return make(capacity)
    from transformers import DynamicCache

    return DynamicCache(config=model.config)


def run_cached(
    model: Any, input_ids: Int[Tensor, "batch new"], cache: Any, *, last_only: bool = False, **inputs: Any
) -> Any:
    """The model's output for new tokens behind those in ``cache``, which takes them up.

    Args:
        model: TinyLM, or a transformers causal model.
        input_ids: the new tokens.
        cache: from ``new_cache``, changed in place.
        last_only: logits of the last position alone, where the model can be asked for that.
        inputs: ``attention_mask`` over all positions, ``position_ids`` of the new ones, and others.
    """
    if last_only and accepts(model, "logits_to_keep"):
        inputs["logits_to_keep"] = 1
    # transformers renamed ``past_key_values`` to ``cache``.
    name = "cache" if accepts(model, "cache") else "past_key_values"
    return model(input_ids=input_ids, use_cache=True, **{name: cache}, **inputs)


def accepts(model: Any, name: str) -> bool:
    """Whether the model's forward, or that of the model under PEFT's wrapper, names this argument."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    return name in _arguments(type(inner))


@cache
def _arguments(kind: type) -> frozenset[str]:
    return frozenset(inspect.signature(kind.forward).parameters)
