"""An optimizer by its name, so that any training can be run with any plug-in's: ``--optimizer sso.sso``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from icml_core.errors import UnknownNameError, UserError
from icml_core.registry import Registry

if TYPE_CHECKING:
    import torch

CONTRACT = "TorchOptimizer"


def torch_optimizer(name: str) -> Callable[..., torch.optim.Optimizer]:
    """What constructs the optimizer: call it with ``module.named_parameters()`` and options such as ``lr``.

    Names matter: an optimizer for matrices treats embeddings and heads apart, and finds them by name.

    Args:
        name: one of torch's in any case (``"adamw"``, ``"Muon"``), or a component that honours the contract
            ``TorchOptimizer`` (``"sso.sso"``).

    Raises:
        UnknownNameError: neither torch nor a plug-in has it; names the nearest.
        UserError: the component is no optimizer for torch's training loops.
        BrokenPluginError: its plug-in is installed and did not load.

    Example:
        ``torch_optimizer("adamw")(module.named_parameters(), lr=1e-3)``
    """
    if "." not in name:
        own = _of_torch()
        if name.lower() not in own:
            raise UnknownNameError(
                f"torch has no optimizer {name!r}; it has {', '.join(sorted(own))}, and plug-ins have "
                f"{', '.join(_of_plugins()) or 'none'}"
            )
        return own[name.lower()]
    entry = Registry.discover().entry(name)
    if CONTRACT not in entry.component.implements:
        raise UserError(
            f"{name} does not honour the contract {CONTRACT}, so that a training cannot step it; "
            f"these do: {', '.join(_of_plugins()) or 'none'}"
        )
    constructor: Callable[..., Any] = entry.component.load()
    return constructor


def _of_torch() -> dict[str, Callable[..., Any]]:
    import torch

    return {
        name.lower(): found
        for name, found in vars(torch.optim).items()
        if inspect.isclass(found)
        and issubclass(found, torch.optim.Optimizer)
        and found is not torch.optim.Optimizer
    }


def _of_plugins() -> list[str]:
    return [entry.name for entry in Registry.discover().entries(contract=CONTRACT)]
