"""AdamW for everything that is no matrix: torch's functional form on this optimizer's state and masters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from icml_sso.distributed import local
from icml_sso.precision import working_dtype

if TYPE_CHECKING:
    from icml_sso.optimizer import SSO


def adamw_update(optimizer: SSO, group: dict[str, Any], params: list[Tensor], lr: float | Tensor) -> None:
    """One step of AdamW, in float32 for 16-bit parameters."""
    states = [optimizer.state[p] for p in params]
    weights = [local(optimizer.weight(p)) for p in params]
    gradients = [local(p.grad).to(working_dtype(p.dtype)) for p in params]
    on_gpu = all(p.is_cuda for p in params)
    beta1, beta2 = group["betas"]
    adamw(
        weights,
        gradients,
        [local(s["exp_avg"]) for s in states],
        [local(s["exp_avg_sq"]) for s in states],
        [],
        [s["step"] for s in states],
        foreach=on_gpu or not isinstance(lr, torch.Tensor),
        capturable=optimizer.capturable and on_gpu,
        amsgrad=False,
        beta1=float(beta1),
        beta2=float(beta2),
        lr=lr,
        weight_decay=float(group["weight_decay"]),
        eps=float(group["eps"]),
        maximize=False,
    )
    for p, weight in zip(params, weights, strict=True):
        optimizer.write_back(p, weight)
