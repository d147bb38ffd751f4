"""A head trained by another package's optimizer, and layers chosen from another package's model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_core import Registry
from icml_loes import FineTuning, FineTuningOptions, LoesHead, select_layers_from_model
from icml_loes.synthetic import layers_like_a_transformer

OPTIMIZERS = [e.name for e in Registry.discover(strict=False).entries(contract="TorchOptimizer")]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_any_optimizer_trains_the_head(name):
    layers, labels = layers_like_a_transformer(60, [12] * 2, classes=3)
    x = torch.stack(layers, 1).float()
    options = FineTuningOptions(epochs=8, batch=20, lr=1e-2, optimizer=name, weight_decay=0.0)
    rows = FineTuning(LoesHead([12, 12], 3, proj_dim=16), x, labels, options=options).fit().rows
    assert rows[-1]["loss"] < rows[0]["loss"]


def test_layers_of_a_tiny_language_model_are_chosen():
    lm = pytest.importorskip("icml_lm")
    config = lm.TinyConfig(vocab=20, d=16, layers=4, heads=2, kv_heads=2, hidden=24)
    model = lm.TinyLM(config, seed=0)
    g = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 20, (60, 7), generator=g)
    labels = (ids[:, -1] < 10).long()
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    result = select_layers_from_model(model, [batch], 2, pooling="last", mode="loo")
    assert len(result.names) == 4
    assert result.metrics["accuracy"] > 0.8
    assert len(np.unique(result.selected)) == 2
