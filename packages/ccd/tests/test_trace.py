"""The trace and its picture."""

from __future__ import annotations

import pytest
import torch
from icml_ccd import ExactDenoiser, Sudoku, decode, order_picture
from icml_ccd.small_languages import sudoku_grids
from icml_ccd.tasks import masked_out


@pytest.fixture(scope="module")
def out():
    model = ExactDenoiser(sudoku_grids(), 1.0, 0, vocab=4, floor=0.01)
    return decode(model, masked_out(Sudoku(), 3, seed=1)[0], rule="ccd", infill=True, budget=2)


def test_steps_and_frame_say_the_same(out):
    frame = out.trace.to_frame()
    assert len(frame) == 3 * 12
    for row in range(3):
        steps = list(out.trace.steps(row))
        assert [s.step for s in steps] == list(range(6))
        flat = [(s.step, p, t) for s in steps for p, t in zip(s.positions, s.tokens, strict=True)]
        own = frame[frame.row == row]
        assert flat == list(zip(own.step, own.position, own.token, strict=True))
        assert all(out.sequences[row, p] == t for _, p, t in flat)


def test_settings_hold_everything_in_force(out):
    settings = out.trace.settings
    assert {
        "rule": "ccd",
        "d": 3,
        "V": 4,
        "warmup": 3,
        "least": 2,
        "budget": 2,
        "infill": True,
    }.items() <= settings.items()
    assert out.n_forward == 6
    assert out.report["n_forward"] == 6
    assert out.report["tokens"] == 36
    assert out.report["seconds"] > 0


def test_correlation_of_an_order_reversed_is_minus_one(out):
    trace = out.trace.repeated(1)
    trace.step[0] = torch.where(trace.step[0] >= 0, 15 - torch.arange(16), -1)
    assert trace.order_correlation()[0] == pytest.approx(-1)


def test_a_picture_is_drawn(out, tmp_path):
    path = tmp_path / "order.png"
    order_picture(out.trace, path, row=1, labels=[str(t) for t in out.sequences[1].tolist()])
    from matplotlib.image import imread

    image = imread(path)
    assert image.shape[0] > 200
    assert image[..., :3].std() > 0.05
