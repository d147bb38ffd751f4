"""Matrices that are spread over processes, or stepped by turns.

- ``"owner"`` with plain parameters (DDP): each process steps its share of the matrices, balanced by their
cost, and
  sends the new weights to all ("atomic module sharding", arXiv 2601.08393).
- ``"owner"`` with DTensors sharded by rows (FSDP2): shards of weights and momentum travel to the owner of
their
  matrix, and new shards back.
- ``"gram"``: for matrices with d_in <= d_out, sharded by rows, only d_in x d_in Gram matrices and blocks of
  a few vectors are summed over processes; weights and momenta stay where they are. Others go by owner.
- ``"duplicated"`` (tensor parallelism, any placement): weights and momenta are gathered, every process steps
all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from icml_sso.batches import Item, step_rows
from icml_sso.precision import working_dtype

if TYPE_CHECKING:
    from icml_sso.optimizer import SSO

MODES = ("auto", "none", "owner", "gram", "duplicated")


def is_sharded(p: Tensor) -> bool:
    """Whether a parameter is a DTensor."""
    return hasattr(p, "placements") and hasattr(p, "device_mesh")


def local(t: Tensor | None) -> Tensor:
    """The part of a tensor that this process holds."""
    assert t is not None
    return t.to_local() if is_sharded(t) else t


def whole(t: Tensor) -> Tensor:
    """The whole tensor, gathered where it is sharded."""
    return t.full_tensor() if is_sharded(t) else t


def gradient_norms(params: Sequence[Tensor]) -> Tensor:
    """A norm of this process's part of each gradient, infinite where an entry in any process is not
    finite.
    """
    gradients = [local(p.grad) for p in params]
    filled = [g for g in gradients if g.numel()]
    values = torch.zeros(len(gradients), dtype=torch.float64)
    if filled:
        # The Euclidean norm is the faster one. It overflows where entries do not: then each is looked at.
        norms = torch.stack([n.double() for n in torch._foreach_norm(filled)]).cpu()
        if not bool(norms.isfinite().all()):
            norms = torch.stack([n.double() for n in torch._foreach_norm(filled, float("inf"))]).cpu()
        values[torch.tensor([g.numel() > 0 for g in gradients])] = norms
    sharded = [p for p in params if is_sharded(p)]
    if sharded and dist.is_initialized():
        mesh = sharded[0].device_mesh
        bad = (~values.isfinite()).double().to(sharded[0].to_local().device)
        for axis in range(mesh.ndim):
            dist.all_reduce(bad, op=dist.ReduceOp.MAX, group=mesh.get_group(axis))
        values = torch.where(bad.cpu() > 0, torch.inf, values)
    return values


def step_cost(rows: int, columns: int) -> float:
    """Relative cost of a step of one matrix: the products of a Newton-Schulz step."""
    small, large = min(rows, columns), max(rows, columns)
    return float(4 * small * small * large + 2 * small**3)


def owners(optimizer: SSO, params: Sequence[Tensor], world: int) -> list[int]:
    """Which process steps each parameter: the costliest first, each to the least loaded."""
    costs = [
        sum(part.count * step_cost(part.rows, part.columns) for part in optimizer.layout(p).parts)
        for p in params
    ]
    load = [0.0] * world
    found = [0] * len(params)
    for index in sorted(range(len(params)), key=lambda k: (-costs[k], k)):
        found[index] = min(range(world), key=lambda r: (load[r], r))
        load[found[index]] += costs[index]
    return found


def step_owned(optimizer: SSO, group: dict[str, Any], params: list[Tensor], lr: float | Tensor) -> None:
    """Plain parameters, equal on all processes: each steps its share and sends it to all."""
    process_group = optimizer.process_group
    world = dist.get_world_size(process_group) if dist.is_initialized() else 1
    if world == 1:
        optimizer.step_local(group, params, lr)
        return
    rank = dist.get_rank(process_group)
    owner = owners(optimizer, params, world)
    mine = [p for p, r in zip(params, owner, strict=True) if r == rank]
    if mine:
        optimizer.step_local(group, mine, lr)
    works, buffers = [], []
    for r in range(world):
        shared = [p for p, o in zip(params, owner, strict=True) if o == r]
        if not shared:
            continue
        pieces = [t for p in shared for t in (optimizer.weight(p), *_replicated(optimizer, p))]
        dtype = torch.float64 if any(t.dtype == torch.float64 for t in pieces) else torch.float32
        buffer = torch.cat([t.reshape(-1).to(dtype) for t in pieces])
        source = dist.get_global_rank(process_group, r) if process_group is not None else r
        works.append(dist.broadcast(buffer, source, group=process_group, async_op=True))
        buffers.append((r, shared, buffer))
    for work, (r, shared, buffer) in zip(works, buffers, strict=True):
        work.wait()
        if r == rank:
            continue
        at = 0
        for p in shared:
            at = _take(buffer, at, new := torch.empty_like(optimizer.weight(p)))
            optimizer.write_back(p, new)
            for t in _replicated(optimizer, p):
                at = _take(buffer, at, t)


def step_sharded(optimizer: SSO, group: dict[str, Any], params: list[Tensor], lr: float | Tensor) -> None:
    """DTensors, by the mode of the optimizer as far as their placements allow."""
    by_rows = [p for p in params if _is_row_sharded(p) and optimizer.distributed != "duplicated"]
    rest = [p for p in params if not any(p is q for q in by_rows)]
    if rest:
        _duplicated(optimizer, group, rest, lr)
    gram = [p for p in by_rows if optimizer.distributed == "gram" and _suits_gram(optimizer, p)]
    for p in gram:
        _by_gram_matrices(optimizer, group, p, lr)
    owned = [p for p in by_rows if not any(p is q for q in gram)]
    meshes = {p.device_mesh: [q for q in owned if q.device_mesh == p.device_mesh] for p in owned}
    for own in meshes.values():
        for dtype in sorted({working_dtype(p.dtype) for p in own}, key=str):
            _by_owner(optimizer, group, [p for p in own if working_dtype(p.dtype) == dtype], lr)


def _is_row_sharded(p: Tensor) -> bool:
    placements = p.placements
    return len(placements) == 1 and type(placements[0]).__name__ == "Shard" and placements[0].dim == 0


def _suits_gram(optimizer: SSO, p: Tensor) -> bool:
    layout = optimizer.layout(p)
    rules = layout.atomic
    simple = rules.batch_axes == 0 and not rules.transpose and rules.labels is None
    return simple and all(part.columns <= part.rows for part in layout.parts)


def _duplicated(optimizer: SSO, group: dict[str, Any], params: list[Tensor], lr: float | Tensor) -> None:
    from torch.distributed.tensor import DTensor, Replicate

    items = []
    for p in params:
        n = optimizer.momentum_of(group, p, whole(optimizer.state[p]["momentum"]), whole(p.grad))
        full = whole(optimizer.weight(p)).clone(memory_format=torch.contiguous_format)
        items.append(_item(optimizer, p, full, n))
    optimizer.step_group(group, items, lr)
    for p, item in zip(params, items, strict=True):
        replicated = DTensor.from_local(
            item.weight, p.device_mesh, [Replicate()] * p.device_mesh.ndim, run_check=False
        )
        optimizer.write_back(p, replicated.redistribute(placements=p.placements))


def _by_owner(optimizer: SSO, group: dict[str, Any], params: list[Tensor], lr: float | Tensor) -> None:
    if not params:
        return
    process_group = params[0].device_mesh.get_group()
    world, rank = dist.get_world_size(process_group), dist.get_rank(process_group)
    owner = owners(optimizer, params, world)
    owned = [[p for p, o in zip(params, owner, strict=True) if o == r] for r in range(world)]
    shards = {p: _shard_sizes(p, world) for p in params}
    dtype, device = working_dtype(params[0].dtype), local(params[0]).device

    def pair(p: Tensor) -> list[Tensor]:
        n = optimizer.momentum_of(group, p, local(optimizer.state[p]["momentum"]), local(p.grad))
        return [local(optimizer.weight(p)).reshape(-1), n.reshape(-1)]

    sent = [_joined([t for p in owned[r] for t in pair(p)], dtype, device) for r in range(world)]
    expected = [2 * sum(shards[p][r] for p in owned[rank]) for r in range(world)]
    received = _exchange(sent, expected, process_group)
    items, at = [], [0] * world
    for p in owned[rank]:
        full = torch.empty(2, p.numel(), dtype=dtype, device=device)
        done = 0
        for r in range(world):
            size = shards[p][r]
            for k in range(2):
                full[k, done : done + size] = received[r][at[r] : at[r] + size]
                at[r] += size
            done += size
        items.append(_item(optimizer, p, full[0].view(p.shape), full[1].view(p.shape)))
    if items:
        optimizer.step_group(group, items, lr)
    returned = []
    for r in range(world):
        pieces: list[Tensor] = []
        for p, item in zip(owned[rank], items, strict=True):
            begin = sum(shards[p][:r])
            pieces.append(item.weight.reshape(-1)[begin : begin + shards[p][r]])
            pieces += _replicated(optimizer, p)
        returned.append(_joined(pieces, dtype, device))
    expected = [
        sum(shards[p][rank] + sum(t.numel() for t in _replicated(optimizer, p)) for p in owned[r])
        for r in range(world)
    ]
    for r, buffer in enumerate(_exchange(returned, expected, process_group)):
        place = 0
        for p in owned[r]:
            place = _take(buffer, place, new := torch.empty_like(local(optimizer.weight(p))))
            optimizer.write_back(p, new)
            for t in _replicated(optimizer, p):
                place = _take(buffer, place, t)


def _by_gram_matrices(optimizer: SSO, group: dict[str, Any], p: Tensor, lr: float | Tensor) -> None:
    """Step the local rows. Each matrix's rows here are padded with zeros, which change no Gram matrix."""
    process_group = p.device_mesh.get_group()
    world, rank = dist.get_world_size(process_group), dist.get_rank(process_group)
    layout, state = optimizer.layout(p), optimizer.state[p]
    weight = local(optimizer.weight(p))
    n = optimizer.momentum_of(group, p, local(state["momentum"]), local(p.grad)).reshape(-1, layout.columns)
    rows = weight.reshape(-1, layout.columns)
    first = sum(_shard_sizes(p, world)[:rank]) // layout.columns

    def reduce(t: Tensor) -> Tensor:
        t = t.contiguous()
        dist.all_reduce(t, group=process_group)
        return t

    item = Item(optimizer.name(p), layout, rows, lambda part, own: n, state, optimizer.report(p))
    step_rows(item, n, first, optimizer.step_options(group), lr, group, reduce)
    optimizer.write_back(p, rows.view(weight.shape))


def _item(optimizer: SSO, p: Tensor, weight: Tensor, n: Tensor) -> Item:
    layout = optimizer.layout(p)
    return Item(
        optimizer.name(p),
        layout,
        weight,
        lambda part, own: layout.read(n, part, own),
        optimizer.state[p],
        optimizer.report(p),
    )


def _replicated(optimizer: SSO, p: Tensor) -> list[Tensor]:
    """State that every process holds whole."""
    return [optimizer.state[p]["v"], optimizer.state[p]["lam"], optimizer.report(p)]


def _shard_sizes(p: Tensor, world: int) -> list[int]:
    """Entries of each process's shard by rows: torch.chunk's rule, the last ones short or empty."""
    rows = p.shape[0]
    chunk = -(-rows // world)
    inner = p.numel() // rows
    return [max(0, min(chunk, rows - r * chunk)) * inner for r in range(world)]


def _joined(pieces: list[Tensor], dtype: torch.dtype, device: torch.device) -> Tensor:
    if not pieces:
        return torch.empty(0, dtype=dtype, device=device)
    return torch.cat([t.reshape(-1).to(dtype) for t in pieces])


def _exchange(sent: list[Tensor], expected: list[int], process_group: Any) -> list[Tensor]:
    """Send a buffer to each process, receive one from each."""
    flat = torch.cat(sent)
    received = flat.new_empty(sum(expected))
    dist.all_to_all_single(received, flat, expected, [len(t) for t in sent], group=process_group)
    return list(received.split(expected))


def _take(buffer: Tensor, at: int, into: Tensor) -> int:
    into.copy_(buffer[at : at + into.numel()].view(into.shape))
    return at + into.numel()
