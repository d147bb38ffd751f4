"""Cuts of parameters against matrices cut out by hand."""

from __future__ import annotations

import pytest
import torch
from icml_sso import Atomic
from icml_sso.atoms import Layout


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


CUTS = {
    "whole": ((4, 3), Atomic(), lambda x: [x]),
    "heads": ((6, 3), Atomic(blocks=(2, 2, 2)), lambda x: [x[0:2], x[2:4], x[4:6]]),
    "grouped query": ((7, 3), Atomic(blocks=(4, 2, 1)), lambda x: [x[:4], x[4:6], x[6:]]),
    "interleaved": (
        (8, 3),
        Atomic(blocks=(2, 1, 1) * 2, labels=(0, 1, 2) * 2),
        lambda x: [torch.cat([x[0:2], x[4:6]]), torch.cat([x[2:3], x[6:7]]), torch.cat([x[3:4], x[7:8]])],
    ),
    "stored transposed": ((3, 6), Atomic(transpose=True, blocks=(2, 4)), lambda x: [x.T[:2], x.T[2:]]),
    "experts": (
        (2, 4, 3),
        Atomic(batch_axes=1, blocks=(2, 2)),
        lambda x: [x[0, :2], x[0, 2:], x[1, :2], x[1, 2:]],
    ),
    "experts transposed": ((2, 3, 4), Atomic(batch_axes=1, transpose=True), lambda x: [x[0].T, x[1].T]),
    "experts as one": ((2, 4, 3), Atomic(batch_axes=1, merge_batch=True), lambda x: [x.reshape(8, 3)]),
    "convolution": ((4, 2, 3, 3), Atomic(flatten=True), lambda x: [x.reshape(4, 18)]),
    "grouped convolution": ((4, 1, 5), Atomic(flatten=True, blocks=(2, 2)), lambda x: [x[:2, 0], x[2:, 0]]),
    "grouped experts": ((3, 8), Atomic(transpose=True, blocks=(4, 4)), lambda x: [x[:, :4].T, x[:, 4:].T]),
}


@pytest.mark.parametrize("name", CUTS)
def test_reads_what_a_hand_cuts_out(name):
    shape, atomic, by_hand = CUTS[name]
    x = numbers(*shape)
    layout = Layout(x.shape, atomic, "w")
    found = [m for part in layout.parts for m in layout.read(x, part)]
    expected = by_hand(x)
    assert layout.count == len(expected) == len(found)
    for f, e in zip(found, expected, strict=True):
        assert torch.equal(f, e)


@pytest.mark.parametrize("name", CUTS)
def test_writes_reach_the_parameter_and_not_a_copy(name):
    shape, atomic, by_hand = CUTS[name]
    x = numbers(*shape)
    layout = Layout(x.shape, atomic, "w")
    for part in layout.parts:
        factors = torch.arange(part.first, part.first + part.count)[:, None, None] + 2.0
        layout.write(x, part, layout.read(x, part) * factors)
    expected = [m * (k + 2.0) for k, m in enumerate(by_hand(numbers(*shape)))]
    # Numbers of atomic matrices run part by part, and inside a part over batch entries.
    order = [m for part in layout.parts for m in layout.read(x, part)]
    if name == "experts":
        expected = [m * (k + 2.0) for k, m in enumerate(by_hand(numbers(*shape)))]
    for f, e in zip(order, expected, strict=True):
        assert torch.equal(f, e)


def test_plain_data_and_back():
    atomic = Atomic(blocks=(2, 1), labels=(0, 1), role="qkv", retract="off", tangent=False)
    assert Atomic.from_dict(atomic.to_dict()) == atomic


def test_bad_cuts_are_named():
    with pytest.raises(ValueError, match="blocks of 'w' sum to 5, but it has 6 rows"):
        Layout((6, 3), Atomic(blocks=(2, 3)), "w")
    with pytest.raises(ValueError, match=r"'w' has shape \[64, 32, 3\]; after 0 batch axes"):
        Layout((64, 32, 3), Atomic(), "w")
    with pytest.raises(ValueError, match="it is empty"):
        Layout((0, 3), Atomic(), "w")
    with pytest.raises(ValueError, match="must name each of blocks"):
        Atomic(blocks=(2, 2), labels=(0,))
    with pytest.raises(ValueError, match="retract='soft'"):
        Atomic(retract="soft")
    with pytest.raises(ValueError, match="batch_axes=-1"):
        Atomic(batch_axes=-1)
    with pytest.raises(ValueError, match="positive sizes"):
        Atomic(blocks=(0, 2))
