"""Measures in spawned workers, after the parent has used torch and numba itself."""

import sys
import textwrap

import numba
import numpy as np
import pytest
import torch
from icml_core.executors import executor
from icml_core.measuring import Task, cores

SUITE = """
from icml_core import ClaimSuite
suite = ClaimSuite("threads")

@suite.measure(seeds={"smoke": 1, "small": 1, "full": 1})
def threads(run, seed):
    import numba, torch
    import numpy as np
    torch.ones(200, 200).matmul(torch.ones(200, 200))
    @numba.njit(parallel=True)
    def add(x):
        for i in numba.prange(len(x)):
            x[i] += 1
    x = np.zeros(1000)
    add(x)
    return {"torch": torch.get_num_threads(), "numba": numba.get_num_threads(), "sum": x.sum()}
"""


@pytest.fixture
def suite(tmp_path, monkeypatch):
    (tmp_path / "threads_suite.py").write_text(textwrap.dedent(SUITE))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    yield "threads_suite:suite"
    sys.modules.pop("threads_suite", None)


def test_workers_share_the_cores_and_do_not_deadlock(suite, tmp_path):
    @numba.njit(parallel=True)
    def parent(x):
        for i in numba.prange(len(x)):
            x[i] += 1

    parent(np.zeros(1000))  # a forked child would hang here
    torch.ones(300, 300).matmul(torch.ones(300, 300))
    tasks = [
        Task(suite, "threads", i, i, "small", None, str(tmp_path / str(i)), exclusive=i == 2)
        for i in range(3)
    ]
    found = {task.index: outcome for task, outcome in executor("processes:2")(tasks)}
    assert [found[i].error for i in range(3)] == [None] * 3
    for index in (0, 1):
        assert found[index].figures["torch"] == found[index].figures["numba"] == max(1, cores() // 2)
    assert found[2].figures["torch"] == found[2].figures["numba"] == cores()
    assert all(found[i].figures["sum"] == 1000 for i in range(3))
