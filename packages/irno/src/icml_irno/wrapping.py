"""A corrector around any base a user has: neuralop's FNO and TFNO, a U-Net, a nested or plain callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from icml_irno.backbones import make_refiner

if TYPE_CHECKING:
    from icml_irno.operator import IRNO

_OWN = ("alpha", "K", "freeze_base", "scale", "mask", "resize", "resample", "spacing", "shape", "strict")
GUESS = {1: (64,), 2: (32, 32), 3: (16, 16, 16)}  # points of the dummy field where the grid is not told


def wrap(
    cls: type[IRNO],
    base: nn.Module | Callable[[Tensor], Tensor],
    in_channels: int,
    out_channels: int,
    *,
    refiner: str | nn.Module = "unet",
    grid: Sequence[int] | None = None,
    dims: int | None = None,
    seed: int = 0,
    **options: Any,
) -> IRNO:
    """An ``IRNO`` whose corrector fits the base, which is called once with a dummy field of zeros.

    Args:
        cls: the class to make.
        base: x [batch, in, *space] -> h_0 [batch, out, *space].
        in_channels, out_channels: of the base.
        refiner: ``"unet"``, ``"resnet"``, ``"convnext"``, ``"fno"``, or a module of the same signature.
        grid: the sizes that the base works on; without it one, two and three axes are tried.
        dims: number of spatial axes, where the grid is not given.
        seed: of the corrector's weights.
        options: of ``IRNO`` (alpha, K, mask, ...); the others go to the corrector.

    Raises:
        ValueError: the base accepts no dummy field, or gives another number of channels, or another grid
            without ``resize``.
    """
    own = {name: options.pop(name) for name in _OWN if name in options}
    tried = [tuple(grid)] if grid is not None else [GUESS[d] for d in ([dims] if dims else (2, 1, 3))]
    failures = []
    for shape in tried:
        try:
            found = _probe(base, in_channels, shape)
        except (RuntimeError, ValueError, TypeError, IndexError, AssertionError) as error:
            failures.append(f"{list(shape)}: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
            continue
        break
    else:
        raise ValueError(
            f"the base took no field of {in_channels} channels ({'; '.join(failures)}); give grid=(...), the "
            "sizes that it works on"
        )
    if found.dim() != 2 + len(shape) or found.shape[1] != out_channels:
        raise ValueError(
            f"the base gives {list(found.shape)} for a field {[1, in_channels, *shape]}; expected "
            f"[1, {out_channels}, *space]: set out_channels={found.shape[1]}, or another base"
        )
    if tuple(found.shape[2:]) != tuple(shape) and own.get("resize") is None:
        raise ValueError(
            f"the base maps the grid {list(shape)} to {list(found.shape[2:])}; give resize='bilinear'"
        )
    if isinstance(refiner, str):
        refiner = make_refiner(refiner, in_channels, out_channels, dims=len(shape), seed=seed, **options)
    elif options:
        raise ValueError(f"{', '.join(options)} cannot be applied to a corrector that is given as a module")
    device = next((p.device for p in base.parameters()), None) if isinstance(base, nn.Module) else None
    return cls(base, refiner.to(device) if device is not None else refiner, out_channels=out_channels, **own)


def _probe(base: nn.Module | Callable[[Tensor], Tensor], channels: int, shape: Sequence[int]) -> Tensor:
    parameter = next(base.parameters(), None) if isinstance(base, nn.Module) else None
    dummy = torch.zeros(1, channels, *shape)
    if parameter is not None:
        dtype = parameter.real.dtype if parameter.is_complex() else parameter.dtype
        dummy = dummy.to(parameter.device, dtype if dtype.is_floating_point else torch.float32)
    training = isinstance(base, nn.Module) and base.training
    if isinstance(base, nn.Module):
        base.eval()
    try:
        with torch.no_grad():
            found = base(dummy)
    finally:
        if training:
            base.train()  # type: ignore[union-attr]
    if not isinstance(found, Tensor):
        raise TypeError(f"the base returns a {type(found).__name__}; expected a tensor")
    return found
