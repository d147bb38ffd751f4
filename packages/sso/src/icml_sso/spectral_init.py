"""Initial weights on their spheres: draw N(0, std), then scale each atomic matrix to its radius by an exact
norm.

Step 0 of arXiv 2601.08393, Algorithm 1. The norm is that of the atomic matrix, not of the fused or sharded
parameter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from icml_sso import distributed as spread
from icml_sso.atoms import Atomic, Layout
from icml_sso.optimizer_state import LEAST_NORM
from icml_sso.param_groups import build_param_groups
from icml_sso.precision import working_dtype
from icml_sso.radius import target_radius

STD = 0.02


@torch.no_grad()
def spectral_mup_init_(
    model: nn.Module,
    radius_scale: float = 1.0,
    std: float | None = STD,
    *,
    radius_mode: str = "spectral_mup",
    generator: torch.Generator | None = None,
    **cut: Any,
) -> None:
    """Draw every hidden matrix anew and place its atomic matrices on their spheres, in place.

    Args:
        model: Any module; matrices are found and cut as by `build_param_groups`.
        radius_scale: c of R = c sqrt(d_out / d_in); the same as the optimizer's.
        std: Standard deviation of the draw; None scales the present weights.
        radius_mode: ``"spectral_mup"`` or ``"identity"``.
        generator: Where the draws come from, on the device of the parameters; seeded 0 on that device where
            absent.
        cut: Options of `build_param_groups`.

    Raises:
        ValueError: ``radius_scale`` not positive, another radius mode, or a zero matrix to be scaled.
    """
    if not radius_scale > 0:
        raise ValueError(f"radius_scale={radius_scale} must be positive")
    if radius_mode not in ("spectral_mup", "identity"):
        raise ValueError(f"radius_mode={radius_mode!r}; an initialisation needs 'spectral_mup' or 'identity'")
    for group in build_param_groups(model, **cut):
        if group["kind"] != "matrix":
            continue
        for (name, p), rules in zip(group["params"], group["atomic"], strict=True):
            atomic = Atomic.from_dict(rules)
            if atomic.retract == "off":
                continue
            if generator is None:
                generator = torch.Generator(p.device).manual_seed(0)
            _place(name, p, Layout(p.shape, atomic, name), generator, std, radius_scale, radius_mode)


def _place(
    name: str,
    p: Tensor,
    layout: Layout,
    generator: torch.Generator,
    std: float | None,
    radius_scale: float,
    radius_mode: str,
) -> None:
    work = working_dtype(p.dtype)
    weight = spread.whole(p.detach()).to(work).clone(memory_format=torch.contiguous_format)
    if std is not None:
        weight.normal_(0.0, std, generator=generator)
    for part in layout.parts:
        matrices = layout.read(weight, part)
        norms = torch.linalg.matrix_norm(matrices, ord=2)
        if float(norms.min()) < LEAST_NORM:
            raise ValueError(f"an atomic matrix of {name!r} is zero, and std=None draws no new one; give std")
        radius = target_radius(part.rows, part.columns, radius_mode, radius_scale, 1.0)
        layout.write(weight, part, matrices * (radius / norms)[:, None, None])
    if spread.is_sharded(p):
        from torch.distributed.tensor import distribute_tensor

        p.copy_(distribute_tensor(weight.to(p.dtype), p.device_mesh, p.placements))
    else:
        p.copy_(weight)
