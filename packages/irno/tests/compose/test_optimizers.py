"""Another package's optimizer trains the corrector."""

from __future__ import annotations

import pytest
import torch
from icml_core import Registry
from icml_irno import IRNO, Refiner, fit


def names() -> list[str]:
    return [entry.name for entry in Registry.discover().entries(contract="TorchOptimizer")]


@pytest.mark.parametrize("name", names())
def test_any_plug_ins_optimizer_takes_error_away(name):
    x = torch.randn(32, 1, 16, generator=torch.Generator().manual_seed(0))
    model = IRNO(lambda x: 0.5 * x, Refiner(1, 1, base_channels=4, depth=1, dims=1))
    history = fit(model, (x, x), (x, x), epochs=8, batch=8, lr=1e-2, optimizer=name)
    assert min(row["vrmse"] for row in history.rows) < 0.95 * history.base_vrmse
