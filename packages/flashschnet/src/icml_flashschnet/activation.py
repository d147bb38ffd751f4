"""The activations of SchNet networks, with the backward passes written from their outputs.

Both slopes are functions of the output alone, so that a hand-written backward pass keeps one tensor a
layer: ``tanh' = 1 - a^2``, and for the shifted softplus ``a = log(1 + e^z) - log 2``,
``a' = sigmoid(z) = 1 - e^-a / 2`` (arXiv 1706.08566).
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

Activation = Literal["tanh", "ssp"]

_LOG_2 = math.log(2.0)


def activate(kind: Activation, z: Tensor) -> Tensor:
    """``tanh(z)`` (CGSchNet) or the shifted softplus ``log(1 + e^z) - log 2`` (SchNet)."""
    return torch.tanh(z) if kind == "tanh" else functional.softplus(z) - _LOG_2


def activation_slope(kind: Activation, output: Tensor) -> Tensor:
    """The derivative of the activation where it gave ``output``."""
    return 1.0 - output * output if kind == "tanh" else 1.0 - 0.5 * torch.exp(-output)


def activation_backward(kind: Activation, gradient: Tensor, output: Tensor) -> Tensor:
    """``gradient`` times the slope where the activation gave ``output``, in one pass for tanh."""
    if kind == "tanh":
        return torch.ops.aten.tanh_backward(gradient, output)
    return gradient * activation_slope(kind, output)


def rounded(x: Tensor) -> Tensor:
    """``x`` rounded to float16 and back; the derivative is that of the identity."""
    return x + (x.detach().half().to(x.dtype) - x.detach())
