"""Argument checks shared by the public functions of this family."""

from __future__ import annotations

import torch
from torch import Tensor

MAX_SEED = 2**63
MAX_STREAM = 2**16
MAX_STEP = 2**48


def require_restricted_boltzmann_machine(weight: Tensor, hidden_bias: Tensor, visible_bias: Tensor) -> None:
    """Weights [spins, hidden] and biases of one floating dtype, on one device.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes or devices that do not fit together, or weights that are not finite.
    """
    if weight.dim() != 2 or hidden_bias.shape != weight.shape[1:] or visible_bias.shape != weight.shape[:1]:
        shapes = ", ".join(str(list(t.shape)) for t in (weight, hidden_bias, visible_bias))
        raise ValueError(
            f"weight, hidden_bias and visible_bias have shapes {shapes}; "
            "expected [spins, hidden], [hidden] and [spins]"
        )
    for name, tensor in (("hidden_bias", hidden_bias), ("visible_bias", visible_bias)):
        if tensor.dtype != weight.dtype:
            raise TypeError(f"{name} has dtype {tensor.dtype} and weight {weight.dtype}; give all in one")
        if tensor.device != weight.device:
            raise ValueError(f"{name} is on {tensor.device} and weight on {weight.device}")
    if weight.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"weight has dtype {weight.dtype}; expected float32 or float64")


def require_spins(x: Tensor, n_spins: int, device: torch.device) -> None:
    """int8 [rows, spins] of ±1.

    Raises:
        TypeError: another dtype.
        ValueError: another shape, device, or values other than ±1.
    """
    if x.dtype != torch.int8:
        raise TypeError(f"x has dtype {x.dtype}; expected int8")
    if x.dim() != 2 or x.shape[1] != n_spins:
        raise ValueError(f"x has shape {list(x.shape)}; expected [rows, {n_spins}]")
    if x.device != device:
        raise ValueError(f"x is on {x.device} and weight on {device}")
    if x.numel() and bool((x.abs() != 1).any()):
        raise ValueError("spins are +1 or -1; other values were found in x")


def require_stream(seed: int, step: int, stream: int) -> None:
    """Numbers that select random words.

    Raises:
        ValueError: one out of range.
    """
    if not 0 <= seed < MAX_SEED:
        raise ValueError(f"seed={seed}; expected 0 <= seed < 2**63")
    if not 0 <= step < MAX_STEP:
        raise ValueError(f"step={step}; expected 0 <= step < 2**48")
    if not 0 <= stream < MAX_STREAM:
        raise ValueError(f"stream={stream}; expected 0 <= stream < 2**16")


def chain_numbers(chain: Tensor | None, n_chains: int, device: torch.device) -> Tensor:
    """The numbers of the chains, 0, 1, 2, ... by default.

    Raises:
        ValueError: another shape, dtype or device.
    """
    if chain is None:
        return torch.arange(n_chains, device=device)
    if chain.shape != (n_chains,) or chain.dtype != torch.int64 or chain.device != device:
        raise ValueError(
            f"chain is {chain.dtype} {list(chain.shape)} on {chain.device}; "
            f"expected int64 [{n_chains}] on {device}"
        )
    return chain
