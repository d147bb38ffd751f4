"""What contracts promise together: every optimizer trains every module."""

from itertools import product

import pytest
import torch
from icml_core import Registry
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
