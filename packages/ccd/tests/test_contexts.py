"""H(p̄), its divergence, and the mutual information that it stands for."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_ccd import ExactDenoiser
from icml_ccd.claims_theory import exact_information
from icml_ccd.small_languages import balanced_brackets, sudoku_grids


def test_information_of_enumerated_tokens_is_that_of_a_joint_table():
    denoiser = ExactDenoiser(balanced_brackets(3))
    context = torch.tensor([0, 2, 2, 2, 2, 2])
    joint = np.zeros((2, 2))
    for string in balanced_brackets(3).tolist():
        joint[string[2], string[4]] += 1 / 5
    outer = joint.sum(1)[:, None] * joint.sum(0)[None]
    expected = (joint[joint > 0] * np.log(joint[joint > 0] / outer[joint > 0])).sum()
    assert exact_information(denoiser, context, 2, [4]) == pytest.approx(expected)


def test_a_cell_that_is_decided_by_another_shares_all_its_entropy():
    denoiser = ExactDenoiser(sudoku_grids(), vocab=4)
    grid = sudoku_grids()[0].clone()
    grid[[0, 1]] = 4
    assert exact_information(denoiser, grid, 0, [1]) == pytest.approx(0.0, abs=1e-12)
    grid = torch.full((16,), 4)
    found = exact_information(denoiser, grid, 0, [1, 2, 3])
    assert found == pytest.approx(np.log(4))
