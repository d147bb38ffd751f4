"""A cell whose parameters another package's optimizer moves, through the adjoint of its whole trajectory."""

from __future__ import annotations

import pytest
import torch
from icml_core.optimizers import torch_optimizer
from icml_hhmea import RGC, IClamp, simulate


@pytest.mark.parametrize("optimizer", ["sso.sso", "sso.muonsphere"])
def test_matrix_optimizers_fit_a_batch_of_cells_to_a_voltage(optimizer):
    """Real numbers u of four cells are a matrix: traces come nearer to those of the middle of the bounds."""
    cell, stim = RGC(axon_length=60.0).double(), IClamp("soma", 1.0, 0.0, 0.2)
    with torch.no_grad():
        target = simulate(cell, cell.bounds.center()[None], stim, 0.5, 0.02, record=["soma"]).v
    generator = torch.Generator().manual_seed(0)
    u = torch.nn.Parameter(0.7 * torch.randn(4, len(cell.bounds), generator=generator, dtype=torch.float64))
    stepper = torch_optimizer(optimizer)([("u", u)], lr=3e-2)
    losses = []
    for _ in range(25):
        stepper.zero_grad()
        found = simulate(cell, cell.bounds.values(u), stim, 0.5, 0.02, record=["soma"]).v
        loss = ((found - target) / 10).square().mean()
        loss.backward()
        stepper.step()
        losses.append(float(loss.detach()))
    assert min(losses[-5:]) < 0.5 * losses[0]
    assert bool(torch.isfinite(u).all())
