"""The battery of a ``TorchOptimizer``, on one least-squares probe with a matrix and a vector.

The example's ``build`` gives a factory ``(params) -> torch.optim.Optimizer``.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from icml_core.components import Example

_PROBE_STEPS = 60
_FALL = 0.9  # the loss must fall below this part of its beginning


class Probe:
    """Least squares: fit ``weight`` [5, 4] and ``bias`` [5] to 64 noiseless points."""

    def __init__(self) -> None:
        import torch

        generator = torch.Generator().manual_seed(20260)
        self.points = torch.randn(64, 4, generator=generator)
        self.targets = self.points @ torch.randn(4, 5, generator=generator) + torch.randn(
            5, generator=generator
        )
        self.weight = torch.nn.Parameter(0.1 * torch.randn(5, 4, generator=generator))
        self.bias = torch.nn.Parameter(torch.zeros(5))
        self.parameters = [self.weight, self.bias]

    def loss(self) -> Any:
        """Mean squared error."""
        return (self.points @ self.weight.T + self.bias - self.targets).square().mean()

    def step(self, optimizer: Any) -> float:
        """One step; the loss before it."""
        optimizer.zero_grad()
        value = self.loss()
        value.backward()
        optimizer.step()
        return float(value.detach())


def check_loss_falls(make: Callable[..., Example]) -> None:
    """The probe's loss falls."""
    import torch

    probe = Probe()
    optimizer = make().build()(probe.parameters)
    assert isinstance(optimizer, torch.optim.Optimizer), (
        f"{type(optimizer).__name__} is no torch.optim.Optimizer"
    )
    first = float(probe.loss().detach())
    for _ in range(_PROBE_STEPS):
        probe.step(optimizer)
    last = float(probe.loss().detach())
    assert last < _FALL * first, (
        f"the probe's loss went from {first:.4g} to {last:.4g} in {_PROBE_STEPS} steps"
    )


def check_state_dict(make: Callable[..., Example]) -> None:
    """Saved after five steps and loaded into a fresh optimizer, five more steps give the same weights."""
    import torch

    probe = Probe()
    build = make().build()
    optimizer = build(probe.parameters)
    for _ in range(5):
        probe.step(optimizer)
    state, twin = copy.deepcopy(optimizer.state_dict()), Probe()
    with torch.no_grad():
        for mine, other in zip(twin.parameters, probe.parameters, strict=True):
            mine.copy_(other)
    resumed = build(twin.parameters)
    resumed.load_state_dict(state)
    for _ in range(5):
        probe.step(optimizer)
        twin.step(resumed)
    for mine, other in zip(twin.parameters, probe.parameters, strict=True):
        torch.testing.assert_close(mine, other, rtol=0, atol=0)


def check_groups(make: Callable[..., Example]) -> None:
    """A group with learning rate 0 stays, the other moves."""
    import torch

    probe = Probe()
    optimizer = make().build()([{"params": [probe.weight]}, {"params": [probe.bias], "lr": 0.0}])
    weight, bias = probe.weight.detach().clone(), probe.bias.detach().clone()
    for _ in range(3):
        probe.step(optimizer)
    assert not torch.equal(probe.weight, weight), "the first group did not move"
    assert torch.equal(probe.bias, bias), "a group with learning rate 0 moved"


def check_closure(make: Callable[..., Example]) -> None:
    """``step(closure)`` evaluates the closure with gradients and returns its loss."""
    probe = Probe()
    optimizer = make().build()(probe.parameters)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = probe.loss()
        loss.backward()
        return loss

    before = float(probe.loss().detach())
    returned = optimizer.step(closure)
    assert returned is not None, "step(closure) returned nothing"
    loss = float(returned.detach()) if hasattr(returned, "detach") else float(returned)
    assert abs(loss - before) < 1e-6, f"step(closure) returned {loss}, not {before}"


def check_missing_gradients(make: Callable[..., Example]) -> None:
    """A parameter without gradient is left alone."""
    import torch

    probe = Probe()
    idle = torch.nn.Parameter(torch.ones(3, 2))
    optimizer = make().build()([*probe.parameters, idle])
    probe.step(optimizer)
    assert torch.equal(idle, torch.ones(3, 2)), "a parameter without gradient was changed"


def check_scheduler(make: Callable[..., Example]) -> None:
    """torch's schedulers drive it."""
    import torch

    probe = Probe()
    optimizer = make().build()(probe.parameters)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.5)
    before = [group["lr"] for group in optimizer.param_groups]
    probe.step(optimizer)
    scheduler.step()
    after = [group["lr"] for group in optimizer.param_groups]
    assert after == [0.5 * lr for lr in before], f"the scheduler made {after} of {before}"


CHECKS = {
    "loss-falls": check_loss_falls,
    "state-dict": check_state_dict,
    "groups": check_groups,
    "closure": check_closure,
    "missing-gradients": check_missing_gradients,
    "scheduler": check_scheduler,
}
