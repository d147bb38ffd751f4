"""One process of the distributed tests: runs every case and saves whole weights. Started by
test_distributed.py.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from icml_sso import SSO, Atomic
from torch import Tensor, nn

STEPS = 2
# Rows that 2 and 3 do not divide; a shard that is empty with 3 (2 rows); borders inside a head (7 x 4 rows).
SHAPES: dict[str, tuple[tuple[int, ...], Atomic]] = {
    "square": ((10, 10), Atomic()),
    "tall": ((23, 6), Atomic()),
    "wide": ((5, 16), Atomic()),
    "heads": ((28, 9), Atomic(blocks=(4,) * 7)),
    "tall heads": ((35, 6), Atomic(blocks=(7,) * 5)),
    "grouped query": ((8 + 4 + 4 + 3, 12), Atomic(blocks=(8, 4, 4, 3))),
    "few rows": ((2, 7), Atomic()),
    "experts": ((5, 6, 8), Atomic(batch_axes=1)),
    "convolution": ((7, 3, 2, 2), Atomic(flatten=True)),
    "stored transposed": ((9, 14), Atomic(transpose=True, blocks=(7, 7))),
    "interleaved": ((12, 8), Atomic(blocks=(2, 4, 2, 4), labels=(0, 1, 0, 1))),
    "large": ((67, 40), Atomic()),  # followed by blocks of vectors, as smaller ones are not
    "large heads": ((80, 36), Atomic(blocks=(40, 40))),
}


def tensor(name: str, salt: int) -> Tensor:
    """The same numbers in every process."""
    index = list(SHAPES).index(name)
    return torch.randn(SHAPES[name][0], generator=torch.Generator().manual_seed(100 * salt + index))


def group(params: dict[str, nn.Parameter]) -> list[dict[str, Any]]:
    """A matrix group, and a vector for AdamW."""
    atomic = [SHAPES[name][1] for name in params]
    return [{"params": list(params.items()), "kind": "matrix", "atomic": atomic}]


def optimizer_of(params: dict[str, nn.Parameter], **options: Any) -> SSO:
    """Float32 matrix signs, so that the form of the iteration does not matter."""
    return SSO(group(params), lr=0.05, msign_dtype=torch.float32, radius_scale=2.0, **options)


def train(
    params: dict[str, nn.Parameter], optimizer: SSO, shard: Any, begin: int = 0, steps: int = STEPS
) -> None:
    """Steps with given gradients."""
    for step in range(begin, begin + steps):
        for name, p in params.items():
            p.grad = shard(tensor(name, 10 + step))
        optimizer.step()


def plain() -> dict[str, nn.Parameter]:
    """Whole parameters."""
    return {name: nn.Parameter(tensor(name, 1)) for name in SHAPES}


def whole(params: dict[str, nn.Parameter]) -> dict[str, Tensor]:
    """Gathered weights."""
    return {
        n: (p.full_tensor() if hasattr(p, "full_tensor") else p).detach().clone() for n, p in params.items()
    }


def main(rank: int, world: int, folder: Path) -> None:
    """Every mode, then a resumption on what another number of processes saved."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store{world}", rank=rank, world_size=world)
    mesh = init_device_mesh("cpu", (world,))
    results: dict[str, Any] = {}

    def sharded(dim: int) -> dict[str, nn.Parameter]:
        return {n: nn.Parameter(distribute_tensor(tensor(n, 1), mesh, [Shard(dim)])) for n in SHAPES}

    def cut(dim: int) -> Any:
        return lambda t: distribute_tensor(t, mesh, [Shard(dim)])

    params = plain()
    optimizer = optimizer_of(params, distributed="owner")
    train(params, optimizer, lambda t: t)
    results["ddp"] = whole(params)
    results["ddp calls"] = optimizer.coverage()["msign_calls"]
    for mode, dim in (("auto", 0), ("gram", 0), ("duplicated", 1)):
        params = sharded(dim)
        optimizer = optimizer_of(params, distributed=mode)
        train(params, optimizer, cut(dim))
        results[f"{mode} {dim}"] = whole(params)
    results["v"] = optimizer.state[params["heads"]]["v"]

    # Saved half-way by 2 processes, finished by 3 (this script runs with 2 first).
    params = sharded(0)
    optimizer = optimizer_of(params, distributed="owner")
    checkpoint = folder / "checkpoint"

    def content() -> dict[str, Any]:
        state = {n: dict(optimizer.state[p]) for n, p in params.items()}
        return {"weights": {n: p.detach() for n, p in params.items()}, "state": state}

    if world == 2:
        train(params, optimizer, cut(0), 0, 1)
        dcp.save(content(), checkpoint_id=checkpoint)
    else:
        optimizer.init_state()
        dcp.load(content(), checkpoint_id=checkpoint)
        train(params, optimizer, cut(0), 1, 1)
        results["resumed"] = whole(params)

    params = sharded(0)
    optimizer = optimizer_of(params, distributed="owner")
    try:
        for name, p in params.items():
            bad = tensor(name, 10)
            if name == "square":
                bad.view(-1)[0] = float("nan")  # in the first process's shard alone
            p.grad = cut(0)(bad)
        optimizer.step()
        results["error"] = ""
    except FloatingPointError as error:
        results["error"] = str(error)
    if rank == 0:
        torch.save(results, folder / f"results{world}.pt")
    gathered: list[Any] = [None] * world
    dist.all_gather_object(gathered, results["error"])
    if rank == 0:
        torch.save(gathered, folder / f"errors{world}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    sys.stderr.flush()
    os._exit(0)  # gloo's threads now and then abort an interpreter that ends; the results are written
