"""What contracts promise together: every optimizer trains every module."""

from itertools import product

import pytest
import torch
from icml_core import Registry, UserError
from icml_core.errors import UnknownNameError
from icml_core.optimizers import torch_optimizer
from icml_core.testing import build_example
from icml_core.testing.checks import _tensors

REGISTRY = Registry.discover()
MODULES = [e for e in REGISTRY.entries(contract="Module") if e.component.example]
OPTIMIZERS = {
    "torch.AdamW": lambda params: torch.optim.AdamW(params, lr=1e-3),
    "torch.Adagrad": lambda params: torch.optim.Adagrad(params, lr=1e-3),
}
OPTIMIZERS |= {
    e.name: build_example(e).build()
    for e in REGISTRY.entries(contract="TorchOptimizer")
    if e.component.example
}


@pytest.mark.parametrize(
    ("module_entry", "optimizer"),
    list(product(MODULES, OPTIMIZERS)),
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_an_optimizer_trains_a_module(module_entry, optimizer):
    example = build_example(module_entry)
    module = example.build()

    def loss():
        results = [t for t in _tensors(example.call(module, example.inputs())) if t.is_floating_point()]
        return sum(t.square().mean() for t in results)

    stepper = OPTIMIZERS[optimizer]([p for p in module.parameters() if p.requires_grad])
    before = loss()
    for _ in range(5):
        stepper.zero_grad()
        loss().backward()
        stepper.step()
    after = loss()
    assert torch.isfinite(after)
    assert after < before


def test_the_matrix_is_not_empty():
    assert MODULES
    assert OPTIMIZERS


def test_optimizers_have_names():
    layer = torch.nn.Linear(3, 2)
    stepper = torch_optimizer("adamw")(layer.named_parameters(), lr=0.25)
    assert type(stepper) is torch.optim.AdamW
    assert stepper.param_groups[0]["lr"] == 0.25
    assert torch_optimizer("SGD") is torch.optim.SGD


@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - {"torch.AdamW", "torch.Adagrad"}))
def test_optimizers_of_plugins_have_names_and_take_named_parameters(name):
    """By its name and its module's parameters alone, it must do what its example does: train."""
    generator = torch.Generator().manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    x = torch.randn(64, 3, generator=generator)
    y = x[:, :1] * x[:, 1:2]
    stepper = torch_optimizer(name)(layers.named_parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        stepper.zero_grad()
        loss = (layers(x) - y).square().mean()
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_what_is_no_optimizer_is_refused():
    with pytest.raises(UserError, match="does not honour the contract TorchOptimizer"):
        torch_optimizer("flashschnet.schnet")
    with pytest.raises(UnknownNameError, match="torch has no optimizer 'adamx'"):
        torch_optimizer("adamx")
    with pytest.raises(UnknownNameError):
        torch_optimizer("nobody.nothing")
