"""Optimizers of a pre-training by name: the paper's four, and any that a plug-in offers.

The paper's comparison (arXiv 2601.08393, section 4) gives all four the same learning rate, the same spectral
initial weights, momentum 0.9 with Nesterov for the three that orthogonalise, and AdamW(0.9, 0.95, 1e-8) with
weight decay 0.1 for embedding, head and norms. So does this module:

    adamw        AdamW on everything
    muon         W ← (1 - lr wd) W - lr s Φ,  Φ = msign of the Nesterov momentum, s = sqrt(m/n), split by
    heads:
                 torch.optim.Muon's rule with the split, scale and matrix sign of the two below, and the
                 published weight decay of 0.1, so that it is a fair peer
    muonsphere   muon with each matrix put back on its sphere, λ = 0
    sso          muonsphere with the exact tangent direction
"""

from __future__ import annotations

from typing import Any

import torch
from icml_core.optimizers import torch_optimizer
from torch import nn

PAPER_OPTIMIZERS = ("adamw", "muon", "muonsphere", "sso")
ADAMW_BETAS, ADAMW_EPS, WEIGHT_DECAY = (0.9, 0.95), 1e-8, 0.1


def named_optimizer(
    name: str,
    model: nn.Module,
    *,
    lr: float,
    radius_scale: float = 1.0,
    weight_decay: float = WEIGHT_DECAY,
    **options: Any,
) -> torch.optim.Optimizer:
    """The optimizer called ``name``, over the parameters of ``model``.

    Args:
        name: "adamw", "muon", "muonsphere", "sso", or "plugin.component" of an installed plug-in.
        model: its matrices are found by module type and name.
        lr: learning rate, of matrices and of the AdamW groups alike.
        radius_scale: c, of muonsphere and sso.
        weight_decay: of the AdamW groups, and of muon's matrices; with "adamw" vectors have none.
        options: further ones of ``icml_sso.SSO``, or of the plug-in's optimizer.

    Raises:
        ValueError: an unknown name, or a learning rate that is not positive.
        icml_core.UserError: a plug-in's component that is not installed or broken.
    """
    if not lr > 0:
        raise ValueError(f"lr={lr!r} must be positive")
    short = name.removeprefix("sso.") if name in ("sso.sso", "sso.muonsphere") else name
    if short == "adamw":
        return torch.optim.AdamW(
            _decayed(model, weight_decay), lr=lr, betas=ADAMW_BETAS, eps=ADAMW_EPS, **options
        )
    if short in PAPER_OPTIMIZERS:
        from icml_sso.optimizer import SSO
        from icml_sso.param_groups import build_param_groups

        muon = {"solver": "none", "retract": "off", "weight_decay": weight_decay}
        extra: dict[str, Any] = {"muon": muon, "muonsphere": {"solver": "none"}, "sso": {}}[short]
        if next(model.parameters()).device.type == "cpu":
            # Processors without matrix units for bfloat16 multiply it more slowly than float32.
            extra = {"msign_dtype": torch.float32, **extra}
        return SSO(
            build_param_groups(model),
            lr=lr,
            radius_scale=radius_scale,
            adamw_betas=ADAMW_BETAS,
            adamw_eps=ADAMW_EPS,
            adamw_weight_decay=weight_decay,
            **{**extra, **options},
        )
    if "." in name:
        return torch_optimizer(name)(model.named_parameters(), lr=lr, **options)
    raise ValueError(
        f"no optimizer is called {name!r}; there are {', '.join(PAPER_OPTIMIZERS)}, or plugin.component"
    )


def _decayed(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Matrices with weight decay, vectors without."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
