"""Another package's optimizer trains a wavefunction, and another sampler's density gets a report."""

from __future__ import annotations

import pytest
import torch
from icml_core.optimizers import torch_optimizer
from icml_mpvmc import RBM, EnumeratedSampler, exact, local_energies, log_derivatives, precision_report
from icml_mpvmc.hamiltonians import TFIM
from icml_mpvmc.reconfiguration import centred_rows, gradient


@pytest.mark.parametrize("name", ["adamw", "sso.sso", "sso.muonsphere"])
def test_any_optimizer_lowers_the_energy(name):
    if "." in name:
        pytest.importorskip("icml_sso")
    H, model = TFIM(6), RBM(6, 2, std=0.1, seed=1)
    optimizer = torch_optimizer(name)(model.named_parameters(), lr=2e-2)
    sampler = EnumeratedSampler(model, 6)
    before = exact.energy(model, H)[0]
    for _ in range(60):
        x = sampler.sample(256).x
        A, r = centred_rows(log_derivatives(model, x), local_energies(model, H, x))
        parameters = list(model.parameters())
        for p, d in zip(parameters, gradient(A, r).split([p.numel() for p in parameters]), strict=True):
            p.grad = d.reshape(p.shape)
        optimizer.step()
    assert exact.energy(model, H)[0] < before - 0.5


def test_energy_of_a_discrete_model_gets_a_report():
    """A Potts-like energy on one-hot rows, as samplers of discrete models have them."""
    g = torch.Generator().manual_seed(0)
    coupling = torch.randn(12, 12, generator=g, dtype=torch.float64)
    x = torch.nn.functional.one_hot(torch.randint(0, 3, (400, 4), generator=g), 3).flatten(1)
    report = precision_report(lambda v: torch.einsum("ni,ij,nj->n", v, coupling, v), x)
    assert report["f32"].sigma < 1e-4 < report["bf16"].sigma
