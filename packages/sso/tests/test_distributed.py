"""Two and three gloo processes give what one gives, to 1e-5."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from icml_sso.distributed import _shard_sizes, owners, step_cost

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from spread_worker import SHAPES, optimizer_of, plain, train, whole  # noqa: E402

MODES = ("ddp", "auto 0", "gram 0", "duplicated 1")  # and the axis of the shards


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What 2 and then 3 processes found."""
    folder = tmp_path_factory.mktemp("spread")
    found = {}
    for world in (2, 3):
        command = [sys.executable, str(HERE / "spread_worker.py")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
        processes = [
            subprocess.Popen(
                [*command, str(rank), str(world), str(folder)],
                env=environment,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        for process in processes:
            _, errors = process.communicate(timeout=300)
            assert process.returncode == 0, errors
        found[world] = torch.load(folder / f"results{world}.pt")
        found[world]["errors"] = torch.load(folder / f"errors{world}.pt")
    return found


@pytest.fixture(scope="module")
def alone():
    params = plain()
    optimizer = optimizer_of(params)
    train(params, optimizer, lambda t: t)
    return whole(params), optimizer


@pytest.mark.timeout(180)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("world", [2, 3])
def test_processes_together_equal_one(results, alone, world, mode):
    for name in SHAPES:
        torch.testing.assert_close(
            results[world][mode][name],
            alone[0][name],
            rtol=1e-5,
            atol=1e-5,
            msg=lambda m, n=name: f"{n}: {m}",
        )


def test_every_process_knows_every_multiplier(results, alone):
    """The share of matrix signs that others computed arrives too."""
    assert results[2]["ddp calls"] == results[3]["ddp calls"] == alone[1].coverage()["msign_calls"]


def test_a_run_is_resumed_by_another_number_of_processes(results, alone):
    for name in SHAPES:
        torch.testing.assert_close(results[3]["resumed"][name], alone[0][name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("world", [2, 3])
def test_a_gradient_that_is_not_finite_in_one_shard_stops_all(results, world):
    assert len(results[world]["errors"]) == world
    assert all("the gradient of 'square' holds NaN" in text for text in results[world]["errors"])


def test_shards_are_those_of_torch_chunk():
    for rows in (1, 2, 5, 7, 12):
        for world in (2, 3, 4):
            expected = [c.numel() for c in torch.empty(rows, 3).chunk(world)]
            expected += [0] * (world - len(expected))
            assert _shard_sizes(torch.empty(rows, 3), world) == expected


def test_matrices_are_dealt_out_by_cost(alone):
    optimizer = alone[1]
    params = optimizer.param_groups[0]["params"]
    owner = owners(optimizer, params, 2)
    costs = [
        sum(part.count * step_cost(part.rows, part.columns) for part in optimizer.layout(p).parts)
        for p in params
    ]
    load = [sum(c for c, o in zip(costs, owner, strict=True) if o == r) for r in range(2)]
    assert max(load) - min(load) <= max(costs)
    assert sorted(set(owner)) == [0, 1]
