"""The kernels of Markov chains on lattices under Triton's interpreter: the states of the definition."""

from __future__ import annotations

import os

import pytest
import torch
from icml_kernels import hamming_ball_mh, swendsen_wang
from icml_kernels.lattices.hamming_ball_mh.cases import CASES as CHAINS
from icml_kernels.lattices.swendsen_wang.cases import CASES as SWEEPS
from icml_kernels.testing import use_route

pytestmark = [
    pytest.mark.skipif(
        os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
    ),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def both(function, given):
    with use_route("reference"):
        expected = function(*given)
    with use_route("triton"):
        return function(*given), expected


@pytest.mark.parametrize("case", [c for c in SWEEPS if not c.large], ids=str)
def test_sweeps_give_the_states_of_the_definition(case):
    found, expected = both(case.bind(swendsen_wang), case.arguments())
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize("case", CHAINS, ids=str)
def test_chains_take_the_steps_of_the_definition(case):
    found, expected = both(hamming_ball_mh, case.arguments())
    assert torch.equal(found.x, expected.x)
    assert torch.equal(found.moved, expected.moved)
    torch.testing.assert_close(found.gained, expected.gained, rtol=1e-11, atol=1e-11)
