"""The classical chain that steps are held against moves at its temperature, and stays a chain."""

from __future__ import annotations

import numpy as np
import pytest
from icml_flashschnet.classical_chain import classical_chain, seconds_of_a_step
from icml_flashschnet.compact_chain import compact_chain
from icml_flashschnet.units import BOLTZMANN
from openmm import unit


def test_the_chain_holds_together_at_300_kelvin():
    pos, _ = compact_chain(269, seed=1)
    start = pos.numpy()
    context = classical_chain(start, threads=1)
    context.getIntegrator().step(2000)  # 8 ps: the relaxed chain warms up
    temperatures = []
    for _ in range(20):
        assert seconds_of_a_step(context) > 0
        kinetic = context.getState(energy=True).getKineticEnergy().value_in_unit(unit.kilocalorie_per_mole)
        temperatures.append(2 * kinetic / (3 * 269 * BOLTZMANN))
    moved = context.getState(positions=True).getPositions(asNumpy=True).value_in_unit(unit.angstrom)
    assert np.mean(temperatures) == pytest.approx(300.0, rel=0.08)
    lengths, before = (np.linalg.norm(np.diff(x, axis=0), axis=1) for x in (moved, start))
    assert np.abs(lengths - before).max() < 0.8  # five deviations of a spring of 20 kcal/mol/Å^2
    assert np.abs(moved - start).max() > 0.3
