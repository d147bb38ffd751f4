"""What blocks return, read by hooks and pooled inside them, so that states of all tokens are never kept
together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from icml_loes.pooling import first_tensor


@dataclass
class Reading:
    """Pooled states of the latest forward pass.

    Attributes:
        calls: module and pooled states, in the order in which the modules ran.
        wanted: modules that are read, in order.
    """

    wanted: list[str]
    calls: list[tuple[str, Tensor]] = field(default_factory=list)

    def layers(self) -> tuple[list[str], list[Tensor]]:
        """Names and pooled states of all layers; forgets them.

        A module that ran several times, as shared blocks do, is a layer each time: ``name[0]``, …

        Raises:
            ValueError: a module has not run.
        """
        ran = [name for name, _ in self.calls]
        missing = [name for name in self.wanted if name not in ran]
        if missing:
            some = ", ".join(missing[:3])
            raise ValueError(
                f"{len(self.wanted) - len(missing)} of {len(self.wanted)} blocks ran; {some} did not. Give "
                "layers= that take part in the forward pass"
            )
        calls, self.calls = self.calls, []
        if len(ran) == len(self.wanted):
            held = dict(calls)
            return list(self.wanted), [held[name] for name in self.wanted]
        seen = dict.fromkeys(ran, 0)
        names = []
        for name in ran:
            names.append(f"{name}[{seen[name]}]")
            seen[name] += 1
        return names, [state for _, state in calls]


@contextmanager
def read_states(
    model: nn.Module, names: Sequence[str], pool: Callable[[Tensor], Tensor], *, gradient: bool = False
) -> Iterator[Reading]:
    """Read what modules return while the body runs.

    Args:
        model: the network.
        names: of modules, as ``named_modules`` has them.
        pool: of states to what is kept; called inside the hook.
        gradient: keep the graph, for training.
    """
    reading = Reading(list(names))
    modules = dict(model.named_modules())
    handles = []
    for name in names:

        def hook(_: nn.Module, __: object, output: object, name: str = name) -> None:
            states = first_tensor(output)
            with torch.set_grad_enabled(gradient and torch.is_grad_enabled()):
                reading.calls.append((name, pool(states if gradient else states.detach())))

        handles.append(modules[name].register_forward_hook(hook))
    try:
        yield reading
    finally:
        for handle in handles:
            handle.remove()
