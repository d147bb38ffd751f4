"""GDT-TS where it is known: rigid motions, hinges, noise."""

from __future__ import annotations

import numpy as np
import pytest
from icml_flashschnet import StructureEvaluator, example_structure, read_pdb
from icml_flashschnet.global_distance import THRESHOLDS, gdt_ts
from scipy.spatial.transform import Rotation


@pytest.fixture(scope="module")
def trace() -> np.ndarray:
    return read_pdb(example_structure("1ubi"), cg="ca").pos


def test_a_rigid_motion_changes_nothing_and_a_mirror_image_much(trace):
    moved = Rotation.from_rotvec([0.3, -1.0, 2.0]).apply(trace) + np.array([4.0, 5.0, 6.0])
    assert gdt_ts(moved, trace) == 1.0
    assert gdt_ts(trace * [1, 1, -1], trace) < 0.5


@pytest.mark.parametrize("first", [20, 38, 50])
def test_of_two_domains_far_apart_the_larger_counts(trace, first):
    """Behind a hinge the rest is far away: no superposition brings both home."""
    moved = trace.copy()
    moved[first:] = Rotation.from_rotvec([0.0, 0.0, 1.5]).apply(trace[first:]) + np.array([0.0, 0.0, 200.0])
    assert gdt_ts(moved, trace) == pytest.approx(max(first, 76 - first) / 76)


def test_outliers_do_not_drag_the_rest_along(trace):
    """A tenth of the residues, spread out, is 20 Å off in several directions; the rest is within 0.6 Å."""
    rng = np.random.default_rng(1)
    shift = rng.normal(size=trace.shape)
    moved = trace + 0.6 * shift / np.linalg.norm(shift, axis=1, keepdims=True)
    moved[4::10] += 20.0 * np.resize([[0, 0, 1], [0, 1, 0], [-1, 0, 0], [0, 0, -1]], moved[4::10].shape)
    assert gdt_ts(moved, trace) == pytest.approx(1 - len(moved[4::10]) / 76)


def test_the_search_beats_one_superposition_of_all(trace):
    rng = np.random.default_rng(0)
    for _ in range(5):
        moved = trace + rng.normal(0, 1.0, trace.shape)
        moved[:25] += rng.normal(0, 6.0, 3)
        x, y = moved - moved.mean(0), trace - trace.mean(0)
        rotation, _ = Rotation.align_vectors(y, x)
        apart = np.linalg.norm(rotation.apply(x) - y, axis=1)
        one = np.mean([(apart < threshold).mean() for threshold in THRESHOLDS])
        assert gdt_ts(moved, trace) >= one


def test_the_evaluator_reports_it_for_late_frames():
    molecule = read_pdb(example_structure("1ejg"))
    pos = np.stack([molecule.pos] * 10)[None].repeat(2, 0)
    pos[:, :8, ::7] += 5.0
    figures = StructureEvaluator(molecule).evaluate(pos)
    assert figures["gdt_ts_late"] == 1.0


def test_what_cannot_be_compared_is_refused(trace):
    with pytest.raises(ValueError, match="three residues with as many"):
        gdt_ts(trace[:5], trace)
    with pytest.raises(ValueError, match="three residues"):
        gdt_ts(trace[:2], trace[:2])
