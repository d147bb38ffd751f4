"""Pooled states of all layers of a model over many batches, in one pass without gradients.

Only [n, L, D] is stored. With a folder as cache it is written in chunks, from which an interrupted collection
goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from icml_loes.baselines import token_curvature
from icml_loes.batches import Batch, as_batch
from icml_loes.blocks import find_blocks
from icml_loes.pooling import MaskFunction, choose_pooling, pool_states, prefix_length, states_mask
from icml_loes.state_chunks import Chunk, StateChunks
from icml_loes.state_reader import read_states


@dataclass(frozen=True)
class Collected:
    """States of a model's layers.

    Attributes:
        layers: [n, D_l] a layer, on the CPU.
        names: of the layers.
        targets: [n, …] of the examples kept, or None.
        dropped: positions, in the order of the batches, of examples without finite states.
        pooling: how tokens were pooled.
        curvatures: [n, L], where they were asked for.
        notes: what happened on the way.
    """

    layers: list[Float[Tensor, "n dim"]]
    names: list[str]
    targets: np.ndarray | None
    dropped: list[int]
    pooling: str
    curvatures: Float[Tensor, "n layers"] | None = None
    notes: list[str] = field(default_factory=list)

    def stacked(self) -> Float[Tensor, "n layers dim"]:
        """[n, L, D].

        Raises:
            ValueError: widths differ.
        """
        if len({v.shape[1] for v in self.layers}) > 1:
            raise ValueError(f"layers of widths {[v.shape[1] for v in self.layers]} cannot be stacked")
        return torch.stack(self.layers, 1)


def collect_states(
    model: Any,
    batches: Iterable[Any],
    *,
    layers: str | Sequence[str] | None = None,
    pooling: str = "auto",
    final_norm: bool = False,
    target_key: str = "labels",
    tokenizer: Any = None,
    max_length: int | None = None,
    mask_fn: MaskFunction | None = None,
    prefix_tokens: int | None = None,
    max_examples: int | None = None,
    curvature: bool = False,
    dtype: torch.dtype = torch.float32,
    cache: str | Path | None = None,
    batches_per_chunk: int = 16,
    progress: Callable[[int], None] | None = None,
) -> Collected:
    """Run a frozen model over batches and keep each block's pooled state.

    Args:
        model: a module of any library: its blocks are found by name (see ``find_blocks``). Of a
            SentenceTransformer the backbone and tokenizer are taken.
        batches: mappings, pairs, tensors, or lists of texts; see ``as_batch``.
        layers: names of modules to read, or of the list of blocks.
        pooling: ``"auto"``, ``"cls"``, ``"mean"``, ``"last"`` or ``"patch_mean"``.
        final_norm: add the state after the final norm as one more layer.
        target_key: name of the targets in a mapping.
        tokenizer, max_length: for texts.
        mask_fn: (length of states, mask of the input) → mask of the states, for models that shorten their
            input.
        prefix_tokens: class and register tokens, for ``"patch_mean"``.
        max_examples: stop after the batch in which so many are reached.
        curvature: also measure how token paths bend.
        dtype: in which states are kept.
        cache: folder for chunks.
        batches_per_chunk: how many batches are lost by an interrupt at most.
        progress: called with the number of examples read so far.

    Raises:
        ValueError: no batch; blocks that are not found or do not run; a mask that does not fit; a cache of
            other data.
    """
    model, tokenizer, max_length = _opened(model, tokenizer, max_length)
    blocks = find_blocks(model, layers)
    names = list(blocks.names)
    if final_norm:
        if blocks.norm is None:
            raise ValueError(f"{type(model).__name__} has no norm after its blocks that is known by its name")
        names.append(blocks.norm)
    pooling = choose_pooling(model, pooling)
    prefix = prefix_length(model, prefix_tokens) if pooling == "patch_mean" else 0
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    pass_ = _Pass(model, names, pooling, prefix, mask_fn, curvature, dtype)
    identity = {
        "names": names, "pooling": pooling, "dtype": str(dtype), "curvature": curvature, "prefix": prefix,
        "model": type(model).__name__,
    }  # fmt: skip
    store = StateChunks(None if cache is None else Path(cache), identity, batches_per_chunk)
    seen = 0
    with _frozen(model):
        for given in batches:
            batch = as_batch(
                given, model, target_key=target_key, tokenizer=tokenizer, device=device, max_length=max_length
            )
            if not store.has(batch):
                store.add(batch, pass_(batch, seen))
            seen += batch.size
            if progress is not None:
                progress(seen)
            if max_examples is not None and seen >= max_examples:
                break
    return _joined(store.finish(), pooling)


class _Pass:
    """Pooled states of one batch."""

    def __init__(
        self,
        model: nn.Module,
        names: list[str],
        pooling: str,
        prefix: int,
        mask_fn: MaskFunction | None,
        curvature: bool,
        dtype: torch.dtype,
    ) -> None:
        self.model, self.names, self.pooling, self.prefix = model, names, pooling, prefix
        self.mask_fn, self.curvature, self.dtype = mask_fn, curvature, dtype

    def __call__(self, batch: Batch, first: int) -> Chunk:
        names, values, bends = self._read(batch)
        finite = torch.stack([torch.isfinite(v).all(1) for v in values]).all(0)
        dropped = []
        for row in (~finite).nonzero().flatten().tolist():
            _, alone, bend = self._read(batch.alone(row))
            if all(bool(torch.isfinite(v).all()) for v in alone):
                for value, one in zip(values, alone, strict=True):
                    value[row] = one[0]
                if bend is not None and bends is not None:
                    bends[row] = bend[0]
                finite[row] = True
            else:
                dropped.append(first + row)
        kept = finite.cpu()
        targets = None if batch.targets is None else batch.targets[kept.numpy()]
        values = [v.cpu()[kept] for v in values]
        return Chunk(values, names, targets, dropped, None if bends is None else bends.cpu()[kept])

    def _read(self, batch: Batch) -> tuple[list[str], list[Tensor], Tensor | None]:
        bends: list[Tensor] = []

        def pool(states: Tensor) -> Tensor:
            length = states.shape[1] if states.dim() == 3 else 0
            mask = states_mask(self.model, length, batch.mask, self.mask_fn) if length else None
            if self.curvature and length:
                attended = states.new_ones(states.shape[:2]) if mask is None else mask
                bends.append(token_curvature(states, attended))
            return pool_states(states, mask, self.pooling, self.prefix).to(self.dtype)

        with read_states(self.model, self.names, pool) as reading:
            batch.run(self.model)
            names, values = reading.layers()
        wrong = next((n for n, v in zip(names, values, strict=True) if len(v) != batch.size), None)
        if wrong is not None:
            raise ValueError(
                f"{wrong} returned another number of examples than the batch has; read other layers="
            )
        return names, values, torch.stack(bends, 1) if len(bends) == len(values) else None


@contextmanager
def _frozen(model: nn.Module) -> Iterator[None]:
    """Evaluation without gradients; the modes of all modules are put back."""
    training = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in training.items():
            module.training = mode


def _opened(model: Any, tokenizer: Any, max_length: int | None) -> tuple[nn.Module, Any, int | None]:
    """The network itself, and what reads texts for it."""
    if hasattr(model, "encode") and hasattr(model, "tokenizer") and hasattr(model, "__getitem__"):
        first = model[0]
        backbone = getattr(first, "auto_model", None)
        if isinstance(backbone, nn.Module):
            return (
                backbone,
                tokenizer or model.tokenizer,
                max_length or getattr(model, "max_seq_length", None),
            )
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is {type(model).__name__}; expected a torch module or a SentenceTransformer")
    return model, tokenizer, max_length


def _joined(chunks: list[Chunk], pooling: str) -> Collected:
    """All chunks as one; each is let go as soon as it is copied."""
    if not chunks:
        raise ValueError("there was no batch to read")
    names, n = chunks[0].names, sum(len(c.layers[0]) for c in chunks)
    if n == 0:
        raise ValueError("no example has finite states")
    if any(c.names != names for c in chunks):
        raise ValueError(
            "blocks ran in another order or number in different batches; give layers= one by one"
        )
    layers = [v.new_empty(n, v.shape[1]) for v in chunks[0].layers]
    has_targets, has_bends = chunks[0].targets is not None, chunks[0].curvatures is not None
    targets, dropped, bends, at = [], [], [], 0
    while chunks:
        chunk = chunks.pop(0)
        size = len(chunk.layers[0])
        for whole, part in zip(layers, chunk.layers, strict=True):
            whole[at : at + size] = part
        at += size
        dropped += chunk.dropped
        if (chunk.targets is not None) != has_targets:
            raise ValueError("some batches have targets and others have none")
        if chunk.targets is not None:
            targets.append(chunk.targets)
        if chunk.curvatures is not None:
            bends.append(chunk.curvatures)
    notes = []
    if dropped:
        notes.append(f"{len(dropped)} examples have no finite states, even alone, and were dropped")
    return Collected(
        layers,
        names,
        np.concatenate(targets) if targets else None,
        dropped,
        pooling,
        torch.cat(bends) if has_bends else None,
        notes,
    )
