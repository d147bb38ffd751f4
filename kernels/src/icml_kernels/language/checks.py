"""Argument checks shared by the public functions of this family."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from icml_kernels.molecules.checks import require_shape as require_shape

FLOATS = (torch.bfloat16, torch.float16, torch.float32, torch.float64)


def require_head(
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
) -> int:
    """Hidden states with a head, or logits without one; the size of the vocabulary.

    Raises:
        TypeError: for a dtype that is no floating one, or two different ones.
        ValueError: for shapes or devices that do not fit together, or numbers out of range.
    """
    name = "hidden" if weight is not None else "logits"
    if hidden.dtype not in FLOATS:
        raise TypeError(f"{name} has dtype {hidden.dtype}; expected one of {', '.join(map(str, FLOATS))}")
    require_shape(name, hidden, (None, None))
    vocabulary = hidden.shape[1] if weight is None else weight.shape[0]
    if weight is not None:
        require_shape("weight", weight, (None, hidden.shape[1]))
    if bias is not None:
        if weight is None:
            raise ValueError("bias was given without weight; add it to the logits, or pass hidden and weight")
        require_shape("bias", bias, (vocabulary,))
    for other_name, other in (("weight", weight), ("bias", bias)):
        if other is not None and other.dtype != hidden.dtype:
            raise TypeError(
                f"{other_name} has dtype {other.dtype} but {name} has {hidden.dtype}; convert one"
            )
        if other is not None and other.device != hidden.device:
            raise ValueError(f"{other_name} lies on {other.device} but {name} on {hidden.device}; move one")
    if vocabulary == 0:
        raise ValueError("the vocabulary is empty; weight needs one row, or logits one column, a token")
    if not (temperature > 0 and math.isfinite(temperature)):
        raise ValueError(f"temperature={temperature} is not a positive number")
    if not math.isfinite(logit_scale):
        raise ValueError(f"logit_scale={logit_scale} is not a finite number")
    if softcap is not None and not (softcap > 0 and math.isfinite(softcap)):
        raise ValueError(f"softcap={softcap} is not a positive number; None stands for no cap")
    return vocabulary


def require_targets(targets: Tensor, rows: int, device: torch.device) -> Tensor:
    """One index a row, as int64. Their range is checked where the values are read, in the operator.

    Raises:
        TypeError: for a dtype that is neither int32 nor int64.
        ValueError: for another shape or device.
    """
    if targets.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"targets has dtype {targets.dtype}; expected torch.int64 or torch.int32")
    require_shape("targets", targets, (rows,))
    if targets.device != device:
        raise ValueError(f"targets lies on {targets.device} but the other tensors on {device}; move one")
    return targets.long()
