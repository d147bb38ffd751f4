"""Gram matrices of layers in plain torch: the definition."""

from __future__ import annotations

import torch
from torch import Tensor


def batched_gram(embeddings: Tensor, center: bool, wide: bool) -> Tensor:
    """K_l = X_l X_l^T for the slices X_l = embeddings[:, l], centred or not, in float64 where wide."""
    layers = centred_layers(embeddings, center, wide)
    return layers @ layers.mT


def centred_layers(embeddings: Tensor, center: bool, wide: bool) -> Tensor:
    """The slices as a batch [layers, examples, dim], of the working precision, with or without their
    means."""
    dtype = torch.float64 if wide or embeddings.dtype == torch.float64 else torch.float32
    layers = embeddings.transpose(0, 1).to(dtype)
    return layers - layers.mean(1, keepdim=True) if center else layers
