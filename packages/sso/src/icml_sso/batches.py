"""Equal matrices of many parameters, stepped together: heads of all layers, experts, equal projections.

Only what `Atomic` declares to be separate matrices is batched. A batch is bounded in size, so that memory
beyond the parameters stays that of one large matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from icml_kernels.matrices.block_krylov import KrylovTop, krylov_top
from icml_kernels.matrices.msign import Reduce
from torch import Tensor

from icml_sso.atoms import Layout, Part
from icml_sso.radius import update_scale
from icml_sso.singular_vectors import part_vectors
from icml_sso.sphere_step import StepOptions, Stepped, sphere_step

# Entries of a batch, of more than one matrix. A processor gains nothing from larger ones; a GPU starts fewer
# kernels.
BATCH_ENTRIES = {"cpu": 2**18}
GPU_BATCH_ENTRIES = 2**22
REPORTED = ("sigma", "lam", "residual", "calls", "factor", "failed", "rerun")  # of the last step
COUNTED = ("failures", "reruns")  # sums of the last two over all steps


@dataclass(frozen=True)
class Item:
    """A parameter to step.

    Attributes:
        name: of the parameter.
        layout: its atomic matrices.
        weight: its values in working precision; overwritten.
        momentum: ``momentum(part, own)`` gives N for those matrices of a part.
        state: holds ``v``, ``lam``, ``radius`` of each atomic matrix; updated.
        report: rows named by `REPORTED` and `COUNTED`, a column for each atomic matrix; receives what
            happened.
    """

    name: str
    layout: Layout
    weight: Tensor
    momentum: Callable[[Part, slice], Tensor]
    state: dict[str, Any]
    report: Tensor


@dataclass(frozen=True)
class Member:
    """Some matrices of one part of a parameter: those numbered ``own`` within the part."""

    item: Item
    part: Part
    own: slice

    @property
    def count(self) -> int:
        """How many matrices."""
        return int(self.own.stop - self.own.start)

    @property
    def atoms(self) -> slice:
        """Their numbers among all atomic matrices of the parameter."""
        return slice(self.part.first + self.own.start, self.part.first + self.own.stop)

    @property
    def is_view(self) -> bool:
        """Whether their values surely lie in the parameter as they are, so that what is written stays."""
        part = self.part
        return len(part.ranges) == 1 and (part.batch in (1, part.count) or self.count == 1)

    @property
    def weight(self) -> Tensor:
        """Their values: a view of the parameter where `is_view`."""
        return self.item.layout.read(self.item.weight, self.part, self.own)


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
        item, part = members[0].item, members[0].part
        atomic = item.layout.atomic
        chosen = replace(
            options,
            retract=atomic.retract or options.retract,
            tangent=options.tangent and atomic.tangent,
        )
        vectors = part_vectors(part)
        weight = _stacked([m.weight for m in members])
        momentum = _stacked([m.item.momentum(m.part, m.own) for m in members]).to(weight.dtype)
        block = _stacked([m.item.state["v"][m.atoms, :vectors] for m in members])
        radius = _stacked([m.item.state["radius"][m.atoms] for m in members]).to(weight.dtype)
        scale = _scales(part, radius, scale_mode, scale_by_radius)
        done = sphere_step(weight, momentum, block, radius, lr, scale, chosen, turn=item.state["step"])
        reported = _reported(done)
        at = 0
        for member in members:
            own = slice(at, at + member.count)
            at += member.count
            if len(members) > 1 or not member.is_view:
                member.item.layout.write(member.item.weight, member.part, weight[own], member.own)
            _keep(member.item, member.atoms, done, own, reported)


def batches(items: Sequence[Item], foreach: bool) -> Iterator[list[Member]]:
    """Matrices of equal shape and rules, up to `BATCH_ENTRIES` entries together."""
    buckets: dict[Any, list[Member]] = {}
    for number, item in enumerate(items):
        atomic = item.layout.atomic
        for part in item.layout.parts:
            key: tuple[Any, ...] = (part.rows, part.columns, item.weight.dtype, item.weight.device)
            key += (atomic.retract, atomic.tangent)
            whole = Member(item, part, slice(0, part.count))
            buckets.setdefault(key if foreach else (*key, number, part.first), []).append(whole)
    for members in buckets.values():
        part = members[0].part
        entries = BATCH_ENTRIES.get(members[0].item.weight.device.type, GPU_BATCH_ENTRIES)
        most = max(1, entries // (part.rows * part.columns))
        batch: list[Member] = []
        room = most
        for whole in members:
            at = 0
            while at < whole.count:
                taken = min(room, whole.count - at)
                batch.append(Member(whole.item, whole.part, slice(at, at + taken)))
                at += taken
                room -= taken
                if room == 0:
                    yield batch
                    batch, room = [], most
        if batch:
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
        block = item.state["v"][part.atoms, : part_vectors(part)]
        top = krylov_top(weight, block, options.power_iters, turn=item.state["step"], reduce=reduce)
        radius = item.state["radius"][part.atoms].to(rows.dtype)
        scale = _scales(part, radius, group["scale_mode"], group["scale_update_by_radius"])
        # The small side is whole on every process: the transposed problem, its columns spread.
        turned = KrylovTop(top.sigma, top.v, top.u, top.block)
        done = sphere_step(weight.mT, n.mT, top.block, radius, lr, scale, chosen, reduce, turned)
        for k, (a, b) in enumerate(local):
            if b > a:
                rows[a:b] = weight[k, : b - a]
        _keep(item, part.atoms, done, slice(None), _reported(done))


def _keep(item: Item, atoms: slice, done: Stepped, own: slice, reported: Tensor) -> None:
    state = item.state
    state["v"][atoms, : done.block.shape[1]] = done.block[own].to(state["v"].dtype)
    state["lam"][atoms] = done.lam[own].to(state["lam"].dtype)
    item.report[: len(REPORTED), atoms] = reported[:, own]
    item.report[len(REPORTED) :, atoms] += reported[-len(COUNTED) :, own]


def _reported(done: Stepped) -> Tensor:
    return torch.stack([getattr(done, name).to(torch.float32) for name in REPORTED])


def _scales(part: Part, radius: Tensor, mode: str, by_radius: bool) -> Tensor:
    return radius if by_radius else torch.full_like(radius, update_scale(part.rows, part.columns, mode))


def new_report(layout: Layout, device: torch.device) -> Tensor:
    """Room for what is reported of each atomic matrix."""
    return torch.zeros(len(REPORTED) + len(COUNTED), layout.count, device=device)


def _stacked(tensors: list[Tensor]) -> Tensor:
    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
