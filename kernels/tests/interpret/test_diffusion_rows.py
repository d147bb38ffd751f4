"""The Triton kernels of diffusion decoding in Triton's interpreter: what the table of cases does not show."""

from __future__ import annotations

import math
import os

import pytest
import torch
from icml_kernels import buffer_mix, masked_entropy_argmax
from icml_kernels.language.cases import ruled_out
from icml_kernels.language.every_case import averaged, every_case, scored
from icml_kernels.testing import check_route, use_route

pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="needs TRITON_INTERPRET=1 before Python starts"
)
OWN = [(f, c) for f, c in every_case() if f in (scored, averaged) and c.name == "several runs of a row"]


@pytest.mark.parametrize(("function", "case"), OWN, ids=["scores", "mixtures"])
def test_several_blocks_of_a_row(monkeypatch, function, case):
    monkeypatch.setattr("icml_kernels.language.masked_entropy_argmax.triton.BLOCK", 64)
    monkeypatch.setattr("icml_kernels.language.buffer_mix.triton.BLOCK", 64)
    check_route(case.bind(function), case.arguments(), route="triton")


def test_of_equal_logits_the_first_token_is_taken(monkeypatch):
    monkeypatch.setattr("icml_kernels.language.masked_entropy_argmax.triton.BLOCK", 64)
    logits = torch.zeros(2, 300)
    logits[1, 100] = logits[1, 290] = 1.0
    with use_route("triton"):
        assert masked_entropy_argmax(logits, torch.tensor([0, 1])).argmax.tolist() == [0, 100]


def test_nan_ruled_out_and_absent_rows_are_seen():
    logits = ruled_out(4, 40)
    logits[1, 6], logits[2] = math.nan, -math.inf
    with use_route("triton"):
        found = masked_entropy_argmax(logits, torch.tensor([0, 1, 2, 9]))
        mixed = buffer_mix(logits.log_softmax(1), torch.ones(3, 1).double(), torch.tensor([[0], [1], [9]]))
    assert torch.isnan(found.neg_entropy).tolist() == [False, True, True, True]
    assert torch.isnan(mixed.entropy).tolist() == [False, True, True]


def test_sixteen_bits_are_read_in_place():
    logits = ruled_out(3, 77).bfloat16()
    expected = masked_entropy_argmax(logits.float(), torch.arange(3))
    with use_route("triton"):
        found = masked_entropy_argmax(logits, torch.arange(3))
    for a, e in zip(found, expected, strict=True):
        torch.testing.assert_close(a, e, rtol=1e-5, atol=1e-6)
