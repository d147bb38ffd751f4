"""A SentenceTransformer that gives the fused vector of chosen blocks, cut above the deepest of them."""

from __future__ import annotations

import copy
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from icml_loes.blocks import find_blocks
from icml_loes.collector import _opened
from icml_loes.fused_layers import FusedLayers
from icml_loes.pooling import choose_pooling, pool_states
from icml_loes.state_reader import read_states


class BlocksAboveCut(nn.Module):
    """The backbone of a SentenceTransformer, read at chosen blocks.

    Args:
        first: the model's first module, cut.
        names: of the chosen blocks in the backbone.
        fused: how the vectors are put together.
        pooling: of tokens.
    """

    def __init__(self, first: nn.Module, names: list[str], fused: FusedLayers, pooling: str) -> None:
        super().__init__()
        self.first, self.names, self.pooling = first, names, pooling
        self.fusion = fused.fusion
        self.divisors = list(fused.norms) if fused.scale else [1.0] * len(names)

    def forward(self, features: dict[str, Any], **options: Any) -> dict[str, Any]:
        """Add ``sentence_embedding`` to the features."""
        mask = features.get("attention_mask")

        def pool(states: Tensor) -> Tensor:
            return pool_states(states, mask, self.pooling)

        backbone = self.first.auto_model
        assert isinstance(backbone, nn.Module)
        with read_states(backbone, self.names, pool, gradient=True) as reading:
            self.first(features, **options)
            _, values = reading.layers()
        values = [v / d for v, d in zip(values, self.divisors, strict=True)]
        if self.fusion == "concat":
            fused = torch.cat(values, -1)
        else:
            fused = torch.stack(values).sum(0) / (len(values) if self.fusion == "mean" else 1)
        features["sentence_embedding"] = fused
        return features

    def preprocess(self, *args: Any, **options: Any) -> Any:
        """Of texts, by the backbone's own."""
        return self.first.preprocess(*args, **options)  # type: ignore[operator]

    def tokenize(self, *args: Any, **options: Any) -> Any:
        """Of texts, by the backbone's own."""
        return self.first.tokenize(*args, **options)  # type: ignore[operator]

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            first = self.__dict__.get("_modules", {}).get("first")
            if first is None or name.startswith("__"):
                raise
            return getattr(first, name)


def fused_sentence_transformer(model: Any, fused: FusedLayers) -> Any:
    """A ``SentenceTransformer`` whose ``encode`` gives the features of chosen blocks.

    Weights are shared with the given model; blocks above the deepest chosen one do not exist in the new
    model.

    Args:
        model: a SentenceTransformer over a transformers backbone.
        fused: the chosen layers, by ``LoesResult.fused``; they were read from the blocks of this backbone.

    Raises:
        TypeError: no SentenceTransformer.
        ValueError: another number of blocks, or chosen layers that are no blocks.
    """
    # Whoever has such a model has the library; it is no dependency of this distribution.
    SentenceTransformer = import_module("sentence_transformers").SentenceTransformer

    if not isinstance(model, SentenceTransformer):
        raise TypeError(f"model is {type(model).__name__}; expected a SentenceTransformer")
    backbone, _, _ = _opened(model, None, None)
    blocks = find_blocks(backbone)
    if fused.n_layers != len(blocks.names) or blocks.list_name is None:
        raise ValueError(
            f"the layers are {fused.n_layers} but the backbone has {len(blocks.names)} blocks; select on the "
            "blocks of "
            "this model, without the final norm"
        )
    names = [blocks.names[i] for i in fused.selected]
    pooling = fused.pooling or choose_pooling(backbone)
    if pooling == "patch_mean":
        raise ValueError("pooling='patch_mean' is of images; a SentenceTransformer reads texts")
    first = _shallow(model[0])
    cut = _cut(backbone, blocks.list_name, max(fused.selected) + 1)
    for name, child in list(first._modules.items()):
        if child is backbone:
            first._modules[name] = cut
    return SentenceTransformer(
        modules=[BlocksAboveCut(first, names, fused, pooling)], device=str(model.device)
    )


def _cut(model: nn.Module, list_name: str, keep: int) -> nn.Module:
    """The model with the first blocks of a list alone; modules on the way are copied, weights shared."""
    root = _shallow(model)
    at = root
    *path, last = list_name.split(".")
    for part in path:
        child = at._modules[part]
        assert child is not None
        at._modules[part] = _shallow(child)
        at = at._modules[part]  # type: ignore[assignment]
    held = at._modules[last]
    assert held is not None
    kept: list[Any] = list(held.children())[:keep]
    at._modules[last] = type(held)(*kept) if isinstance(held, nn.Sequential) else nn.ModuleList(kept)
    return root


def _shallow(module: nn.Module) -> nn.Module:
    twin = copy.copy(module)
    twin._modules = dict(module._modules)
    twin._forward_hooks = module._forward_hooks.copy()
    return twin
