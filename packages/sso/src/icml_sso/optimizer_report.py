"""What an optimizer tells of its steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from icml_sso.batches import COUNTED, REPORTED

if TYPE_CHECKING:
    from icml_sso.optimizer import SSO


def coverage(optimizer: SSO) -> dict[str, float]:
    """How much of the model is on spheres, and what the steps took.

    ``share`` of the elements are in matrices; ``msign_calls`` of the last step; ``failures`` of the solver
    and ``reruns`` of matrix signs in float32 since the beginning; ``skipped`` parameters for their gradients.
    """
    totals = [report.double().sum(1).cpu() for report in optimizer.reports.values()]
    total = torch.stack(totals).sum(0) if totals else torch.zeros(len(REPORTED) + len(COUNTED))
    named = dict(zip((*REPORTED, *COUNTED), total.tolist(), strict=True))
    return {
        "share": share(optimizer),
        "msign_calls": named["calls"],
        "failures": named["failures"],
        "reruns": named["reruns"],
        "skipped": float(optimizer.skipped),
    }


def share(optimizer: SSO) -> float:
    """The share of all elements that are in matrices."""
    sizes = {"matrix": 0, "adamw": 0}
    for group in optimizer.param_groups:
        sizes[group["kind"]] += sum(p.numel() for p in group["params"])
    return sizes["matrix"] / max(sizes["matrix"] + sizes["adamw"], 1)


def stats(optimizer: SSO) -> dict[str, dict[str, Any]]:
    """See `SSO.stats`."""
    found: dict[str, dict[str, Any]] = {}
    for p, report in optimizer.reports.items():
        row = dict(zip(REPORTED, report.double().cpu(), strict=False))
        radius = optimizer.state[p]["radius"].double().cpu()
        found[optimizer.name(p)] = {
            "sigma": row["sigma"].tolist(),
            "sigma/R": (row["sigma"] / radius).tolist(),
            "lambda": row["lam"].tolist(),
            "|h|": row["residual"].tolist(),
            "msign_calls": row["calls"].tolist(),
            "retraction": row["factor"].tolist(),
        }
    return found | {"coverage": coverage(optimizer)}
