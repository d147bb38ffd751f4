"""Traces of every rule are those that were kept in ``traces.json``.

They were made by a decoder that sorts all positions at every step and lays every score out by itself, so that
what saves time can be seen to change nothing.

``python tests/test_kept_traces.py`` writes the file anew.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from icml_ccd import ExactDenoiser, Sudoku, decode
from icml_ccd.rules import RULES
from icml_ccd.small_languages import sudoku_grids
from icml_ccd.tasks import masked_out

FILE = Path(__file__).parent / "traces.json"
CASES = {
    **{name: {"rule": name} for name in sorted(RULES)},
    "entropy, 2 at once": {"rule": "neg_entropy", "budget": 2},
    "ccd, 3 at once": {"rule": "ccd", "budget": 3},
    "ccd, all contexts": {"rule": "ccd", "rule_options": {"least": None, "warmup": 0}},
    "ccd in blocks": {"rule": "ccd", "budget": 1, "block_length": 8, "d": 2},
    "ccd sampled": {"rule": "ccd", "temperature": 1.0, "generator": 3},
    "ccd_ds, loose": {"rule": "ccd_ds", "eps": 0.9, "V": 6},
    "ccd_plus, 3 at once": {"rule": "ccd_plus", "budget": 3},
    "ccd_plus with end tokens": {"rule": "ccd_plus", "budget": 1, "eos_id": 3, "stop_at_eos": True},
    "released, 2 at once": {"rule": "ccd_released", "budget": 2},
}
WORDS, NUMBERS = ("step", "token", "reason"), ("score", "neg_entropy", "maxprob", "mixed_entropy", "jsd")


def trace(case):
    model = ExactDenoiser(sudoku_grids(), 1.2, 0, vocab=4, floor=0.02)
    return decode(model, masked_out(Sudoku(), 3, seed=7)[0], infill=True, **CASES[case]).trace


def kept(case):
    """Words of all positions; numbers of those that the decoder decided, -1 where there is none."""
    found = trace(case)
    words = {name: getattr(found, name).tolist() for name in WORDS}
    decided = found.step >= 0
    numbers = {name: getattr(found, name)[decided].nan_to_num(nan=-1.0) for name in NUMBERS}
    counts = {"forwards": found.forwards.tolist(), "steps_by_tie": found.steps_by_tie.tolist()}
    return words | counts, numbers


@pytest.mark.parametrize("case", CASES)
def test_traces_have_not_changed(case):
    words, numbers = kept(case)
    expected = json.loads(FILE.read_text(encoding="utf-8"))[case]
    assert words == {name: expected[name] for name in words}
    for name, found in numbers.items():
        torch.testing.assert_close(found, torch.tensor(expected[name]), rtol=2e-5, atol=2e-6)


def write():
    lines = []
    for case in CASES:
        words, numbers = kept(case)
        entry = words | {name: [float(f"{x:.6g}") for x in found.tolist()] for name, found in numbers.items()}
        lines.append(f"{json.dumps(case)}: {json.dumps(entry, separators=(',', ':'))}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
