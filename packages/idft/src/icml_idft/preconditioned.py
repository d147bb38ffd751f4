"""AdamW whose second moment comes from another loss's gradients, so that small weights make small steps.

Adam divides a gradient by its own size, which undoes a weight that all tokens share. With the second moment
of the unweighted loss the suppression of a weighted one is real. A diagnostic: it mostly slows learning down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class PreconditionedAdamW(torch.optim.Optimizer):
    """m ← β₁ m + (1 - β₁) g,  v ← β₂ v + (1 - β₂) h²,  x ← x - lr m̂ / (√v̂ + ε); h from ``measure``.

    Args:
        params: as for every optimizer of torch.
        lr: learning rate.
        betas, eps: of Adam.
        weight_decay: apart from the gradient.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        if not lr >= 0 or not all(0 <= b < 1 for b in betas) or not eps > 0 or not weight_decay >= 0:
            raise ValueError(f"lr={lr}, betas={betas}, eps={eps}, weight_decay={weight_decay} out of range")
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self._measured: dict[Tensor, Tensor] = {}

    def measure(self, loss: Tensor) -> None:
        """Add the gradients of a loss to those of which the next step takes the second moment."""
        parameters = [p for group in self.param_groups for p in group["params"] if p.requires_grad]
        found = torch.autograd.grad(loss, parameters, retain_graph=True, allow_unused=True)
        for parameter, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                held = self._measured.get(parameter)
                self._measured[parameter] = gradient if held is None else held + gradient

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """One update; a parameter that nothing was measured for uses its own gradient, as AdamW does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            first, second = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if not state:
                    state["step"] = 0
                    state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                size = self._measured.get(p, p.grad)
                state["exp_avg"].lerp_(p.grad, 1 - first)
                state["exp_avg_sq"].mul_(second).addcmul_(size, size, value=1 - second)
                mean = state["exp_avg"] / (1 - first ** state["step"])
                root = (state["exp_avg_sq"] / (1 - second ** state["step"])).sqrt_().add_(group["eps"])
                p.mul_(1 - group["lr"] * group["weight_decay"]).addcdiv_(mean, root, value=-group["lr"])
        self._measured.clear()
        return loss
