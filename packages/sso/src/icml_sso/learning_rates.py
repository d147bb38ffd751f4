"""Learning rates that move weights as far as a known AdamW learning rate does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from icml_sso.atoms import Atomic, Layout
from icml_sso.param_groups import ADAMW, belongs_to_adamw
from icml_sso.radius import ADAMW_RMS, SCALE_MODES, update_rms


def suggest_lr(
    groups: Sequence[Mapping[str, Any]],
    adamw_lr: float,
    *,
    scale_mode: str = "spectral_mup",
    show: bool = True,
) -> list[float]:
    """For each group the lr at which an update's root mean square equals that of AdamW, 0.2 adamw_lr.

    An update of SSO has lr s on all its singular values, hence RMS lr s / sqrt(max(d_out, d_in)).

    Args:
        groups: Of `build_param_groups`, or ``optimizer.param_groups``.
        adamw_lr: The learning rate that is known to work.
        scale_mode: Of s, where a group does not say.
        show: Print a line for each group.

    Raises:
        ValueError: A learning rate that is not positive, or an unknown scale mode.

    Example:
        >>> from torch import nn
        >>> from icml_sso import build_param_groups
        >>> groups = build_param_groups(nn.Linear(64, 64, bias=False))
        >>> suggest_lr(groups, 1e-3, show=False)
        [0.0016]
    """
    if not adamw_lr > 0:
        raise ValueError(f"adamw_lr={adamw_lr} must be positive")
    if scale_mode not in SCALE_MODES:
        raise ValueError(f"scale_mode={scale_mode!r} is not one of {', '.join(SCALE_MODES)}")
    found = []
    for number, group in enumerate(groups):
        if group.get("kind") == ADAMW:
            found.append(adamw_lr)
        else:
            squares, entries = 0.0, 0
            mode = group.get("scale_mode", scale_mode)
            for name, p, atomic in _members(group):
                for part in Layout(p.shape, atomic, name).parts:
                    size = part.count * part.rows * part.columns
                    squares += size * update_rms(part.rows, part.columns, mode) ** 2
                    entries += size
            found.append(ADAMW_RMS * adamw_lr / math.sqrt(squares / entries))
        if show:
            print(
                f"group {number} ({group.get('kind', 'matrix')}): lr {found[-1]:.3g} "
                f"for AdamW's {adamw_lr:.3g}"
            )
    return found


def misplaced(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Names of matrices in matrix groups that look like input, output or embedding layers."""
    return [
        name
        for group in groups
        if group.get("kind") == "matrix"
        for name, _, _ in _members(group)
        if belongs_to_adamw(name)
    ]


def _members(group: Mapping[str, Any]) -> list[tuple[str, Tensor, Atomic]]:
    params = group["params"]
    names = group.get("param_names") or [f"parameter {k}" for k in range(len(params))]
    plain = [(x if isinstance(x, tuple) else (n, x)) for n, x in zip(names, params, strict=True)]
    atoms = group.get("atomic") or [Atomic()] * len(plain)
    return [
        (name, p, a if isinstance(a, Atomic) else Atomic.from_dict(a))
        for (name, p), a in zip(plain, atoms, strict=True)
        if p.dim() >= 2
    ]
