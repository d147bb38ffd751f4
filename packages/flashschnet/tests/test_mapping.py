"""Force maps: the mean force of a chain where it is known exactly, and the maps that are refused."""

from __future__ import annotations

import numpy as np
import pytest
from icml_flashschnet.mapping import force_map, force_variance, map_forces, map_positions

KT = 0.6


def gaussian_chain(n_frames: int, seed: int = 0):
    """Four atoms that move along x, tethered and joined by harmonic bonds: samples, forces, stiffness."""
    stiffness = np.diag([3.0, 4.0, 7.0, 2.0])
    for i, k in ((0, 2.0), (1, 1.5), (2, 30.0)):
        stiffness[i, i] += k
        stiffness[i + 1, i + 1] += k
        stiffness[i, i + 1] -= k
        stiffness[i + 1, i] -= k
    rng = np.random.default_rng(seed)
    x = rng.multivariate_normal(np.zeros(4), KT * np.linalg.inv(stiffness), n_frames)
    coords, forces = np.zeros((n_frames, 4, 3)), np.zeros((n_frames, 4, 3))
    coords[..., 0], forces[..., 0] = x, -x @ stiffness
    return coords, forces, stiffness


@pytest.mark.parametrize("mode", ["slice", "aggregate", "optimal"])
def test_every_map_has_the_mean_force_of_the_beads(mode):
    """The beads' marginal is Gaussian: their mean force is minus the inverse covariance times x."""
    coords, forces, stiffness = gaussian_chain(40_000)
    kept = np.array([0, 2])
    mapped = map_forces(forces, mode, kept=kept, groups=[(2, 3)])[..., 0]
    x = map_positions(coords, kept)[..., 0]
    measured = np.linalg.lstsq(x, mapped, rcond=None)[0]
    exact = -np.linalg.inv(np.linalg.inv(stiffness)[np.ix_(kept, kept)])
    np.testing.assert_allclose(measured, exact, atol=0.25)


def test_grouped_and_optimal_maps_are_less_noisy():
    _, forces, _ = gaussian_chain(5000)
    kept = np.array([0, 2])
    variance = {
        mode: force_variance(map_forces(forces, mode, kept=kept, groups=[(2, 3)]))
        for mode in ("slice", "aggregate", "optimal")
    }
    assert variance["optimal"] < variance["aggregate"] < 0.6 * variance["slice"]


def test_optimal_weights_solve_the_least_squares_problem():
    """Against numpy: the force of bead 0 minus its projection on the force of the only free atom."""
    _, forces, _ = gaussian_chain(3000)
    matrix = force_map(forces, "optimal", kept=np.array([0, 2, 3]))
    base, free = forces[:, 0].ravel(), forces[:, 1].ravel()
    assert matrix[0, 1] == pytest.approx(-(base @ free) / (free @ free), rel=1e-3)
    only_third = np.array([[False] * 4, [False, True, False, False], [False] * 4])
    limited = force_map(forces, "optimal", kept=np.array([0, 2, 3]), sources=only_third)
    assert limited[0, 1] == 0.0
    assert limited[1, 1] != 0.0


def test_constrained_atoms_are_summed():
    forces = np.arange(12.0).reshape(1, 4, 3)
    mapped = map_forces(forces, "aggregate", kept=np.array([0, 3]), constraints=[(0, 1), (1, 2)])
    np.testing.assert_array_equal(mapped[0, 0], forces[0, :3].sum(0))
    np.testing.assert_array_equal(mapped[0, 1], forces[0, 3])


@pytest.mark.parametrize(
    ("mode", "options", "message"),
    [
        ("aggregate", {"constraints": [(0, 2)]}, r"kept atoms \[0, 2\] stand in one group"),
        ("slice", {"constraints": [(0, 1)]}, "equal weights"),
        (np.array([[1.0, 0, 0.5, 0], [0, 0, 1, 0]]), {}, "identity on the kept atoms; bead 0 has weight 0.5"),
        (np.eye(3), {}, r"shape \[2, 4\]"),
        ("mean", {}, "'mean' is none of"),
        ("aggregate", {"groups": [(0, 9)]}, "outside 0 to 3"),
    ],
)
def test_invalid_maps_are_refused(mode, options, message):
    forces = np.ones((2, 4, 3))
    with pytest.raises(ValueError, match=message):
        map_forces(forces, mode, kept=np.array([0, 2]), **options)


def test_wrong_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\[frames, atoms, 3\]"):
        map_forces(np.ones((4, 3)), "slice", kept=np.array([0]))
    with pytest.raises(ValueError, match="kept names atom 7"):
        map_positions(np.ones((1, 4, 3)), np.array([7]))
    with pytest.raises(ValueError, match="once"):
        map_positions(np.ones((1, 4, 3)), np.array([1, 1]))
