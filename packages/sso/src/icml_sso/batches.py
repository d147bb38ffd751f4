"""Equal matrices of many parameters, stepped together: heads of all layers, experts, equal projections.

Only what `Atomic` declares to be separate matrices is batched. A batch is bounded in size, so that memory
beyond the parameters stays that of one large matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from icml_kernels import lanczos_top
from icml_kernels.matrices.msign import Reduce
from torch import Tensor

from icml_sso.atoms import Layout, Part
from icml_sso.radius import update_scale
from icml_sso.sphere_step import StepOptions, sphere_step

BATCH_ENTRIES = 2**22  # of a batch; a part of one parameter is never divided
REPORTED = ("sigma", "lam", "residual", "calls", "factor", "failed", "rerun")  # of the last step
COUNTED = ("failures", "reruns")  # sums of the last two over all steps


@dataclass(frozen=True)
class Item:
    """A parameter to step.

    Attributes:
        name: of the parameter.
        layout: its atomic matrices.
        weight: its values in working precision; overwritten.
        momentum: ``momentum(part)`` gives N for the matrices of a part.
        state: holds ``v``, ``lam``, ``radius`` of each atomic matrix; updated.
        report: rows named by `REPORTED` and `COUNTED`, a column for each atomic matrix; receives what
            happened.
    """

    name: str
    layout: Layout
    weight: Tensor
    momentum: Callable[[Part], Tensor]
    state: dict[str, Any]
    report: Tensor


Member = tuple[Item, Part]


def step_items(
    items: Sequence[Item],
    options: StepOptions,
    lr: float | Tensor,
    scale_mode: str,
    *,
    scale_by_radius: bool = False,
    foreach: bool = True,
) -> None:
    """Step every atomic matrix of the items, equal shapes together."""
    for members in batches(items, foreach):
        item, part = members[0]
        atomic = item.layout.atomic
        chosen = replace(
            options,
            retract=atomic.retract or options.retract,
            tangent=options.tangent and atomic.tangent,
        )
        weight = _stacked([i.layout.read(i.weight, p) for i, p in members])
        momentum = _stacked([i.momentum(p) for i, p in members]).to(weight.dtype)
        v = _stacked([i.state["v"][p.atoms] for i, p in members]).to(weight.dtype)
        radius = _stacked([i.state["radius"][p.atoms] for i, p in members]).to(weight.dtype)
        scale = _scales(part, radius, scale_mode, scale_by_radius)
        done = sphere_step(weight, momentum, v, radius, lr, scale, chosen, turn=item.state["step"])
        reported = torch.stack([getattr(done, name).to(torch.float32) for name in REPORTED])
        at = 0
        for i, p in members:
            own = slice(at, at + p.count)
            at += p.count
            i.layout.write(i.weight, p, done.weight[own])
            i.state["v"][p.atoms] = done.v[own].to(i.state["v"].dtype)
            i.state["lam"][p.atoms] = done.lam[own].to(i.state["lam"].dtype)
            i.report[: len(REPORTED), p.atoms] = reported[:, own]
            i.report[len(REPORTED) :, p.atoms] += reported[-len(COUNTED) :, own]


def batches(items: Sequence[Item], foreach: bool) -> Iterator[list[Member]]:
    """Parts of equal shape and rules, up to `BATCH_ENTRIES` entries each."""
    buckets: dict[Any, list[Member]] = {}
    for number, item in enumerate(items):
        atomic = item.layout.atomic
        for part in item.layout.parts:
            key: tuple[Any, ...] = (part.rows, part.columns, item.weight.dtype, item.weight.device)
            key += (atomic.retract, atomic.tangent)
            buckets.setdefault(key if foreach else (*key, number, part.first), []).append((item, part))
    for members in buckets.values():
        batch: list[Member] = []
        entries = 0
        for item, part in members:
            own = part.count * part.rows * part.columns
            if batch and entries + own > BATCH_ENTRIES:
                yield batch
                batch, entries = [], 0
            batch.append((item, part))
            entries += own
        yield batch


def step_rows(
    item: Item,
    momentum: Tensor,
    first: int,
    options: StepOptions,
    lr: float | Tensor,
    group: dict[str, Any],
    reduce: Reduce,
) -> None:
    """Step a parameter of which this process holds rows from ``first`` on, by sums over processes.

    Args:
        item: The parameter; ``weight`` holds the local rows (rows, d_in) and is overwritten.
        momentum: N of the local rows.
        first: Number of the first local row.
        options: Of the group.
        lr: Learning rate.
        group: Scale mode of the group.
        reduce: Sums a tensor over processes.
    """
    rows = item.weight
    chosen = replace(options, retract=item.layout.atomic.retract or options.retract)
    chosen = replace(chosen, tangent=options.tangent and item.layout.atomic.tangent)
    for part in item.layout.parts:
        begin = part.ranges[0][0]
        bounds = [
            (begin + k * part.rows - first, begin + (k + 1) * part.rows - first) for k in range(part.count)
        ]
        local = [(max(a, 0), max(min(b, len(rows)), 0)) for a, b in bounds]
        height = max(1, *(b - a for a, b in local))
        weight, n = rows.new_zeros(2, part.count, height, part.columns)
        for k, (a, b) in enumerate(local):
            if b > a:
                weight[k, : b - a], n[k, : b - a] = rows[a:b], momentum[a:b]
        v = item.state["v"][part.atoms].to(rows.dtype)
        sigma, v, u = lanczos_top(weight.mT, v, options.power_iters, turn=item.state["step"], reduce=reduce)
        radius = item.state["radius"][part.atoms].to(rows.dtype)
        scale = _scales(part, radius, group["scale_mode"], group["scale_update_by_radius"])
        # The small side is whole on every process: the transposed problem, its columns spread.
        done = sphere_step(weight.mT, n.mT, u, radius, lr, scale, chosen, reduce, triplet=(sigma, v, u))
        for k, (a, b) in enumerate(local):
            if b > a:
                rows[a:b] = done.weight[k].mT[: b - a]
        item.state["v"][part.atoms] = v.to(item.state["v"].dtype)
        item.state["lam"][part.atoms] = done.lam.to(item.state["lam"].dtype)
        reported = torch.stack([getattr(done, name).to(torch.float32) for name in REPORTED])
        item.report[: len(REPORTED), part.atoms] = reported
        item.report[len(REPORTED) :, part.atoms] += reported[-len(COUNTED) :]


def _scales(part: Part, radius: Tensor, mode: str, by_radius: bool) -> Tensor:
    return radius if by_radius else torch.full_like(radius, update_scale(part.rows, part.columns, mode))


def new_report(layout: Layout, device: torch.device) -> Tensor:
    """Room for what is reported of each atomic matrix."""
    return torch.zeros(len(REPORTED) + len(COUNTED), layout.count, device=device)


def _stacked(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
