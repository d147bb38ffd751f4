"""A classical coarse-grained chain in OpenMM: springs along the chain and Lennard-Jones between its beads.

It is what a step of a network is held against: the cheapest force field of as many beads.
"""

from __future__ import annotations

import time

import numpy as np
import openmm
from jaxtyping import Float
from openmm import unit

SPRING = 20.0 * 4.184 * 100.0
"""kJ/mol/nm^2, of 20 kcal/mol/Å^2."""
DEPTH, DIAMETER, CUTOFF = 0.2 * 4.184, 0.38, 1.1
"""Depth (kJ/mol), diameter and cutoff (nm) of the Lennard-Jones potential; MARTINI cuts off at 1.1 nm."""
STEPS = 50
"""Steps that are timed at once."""


def classical_chain(pos: Float[np.ndarray, "beads 3"], *, threads: int) -> openmm.Context:
    """The chain on OpenMM's CPU platform, relaxed, under Langevin dynamics at 300 K.

    Args:
        pos: starting positions, Å; consecutive beads are bonded at the distances that they have.
        threads: of OpenMM.
    """
    system = openmm.System()
    bonds, pairs = openmm.HarmonicBondForce(), openmm.NonbondedForce()
    pairs.setNonbondedMethod(openmm.NonbondedForce.CutoffNonPeriodic)
    pairs.setCutoffDistance(CUTOFF)
    for bead in range(len(pos)):
        system.addParticle(72.0)  # amu, a bead of MARTINI
        pairs.addParticle(0.0, DIAMETER, DEPTH)
        if bead:
            length = float(np.linalg.norm(pos[bead] - pos[bead - 1])) / 10.0
            bonds.addBond(bead - 1, bead, length, 2.0 * SPRING)
            pairs.addException(bead - 1, bead, 0.0, DIAMETER, 0.0)
    system.addForce(bonds)
    system.addForce(pairs)
    integrator = openmm.LangevinMiddleIntegrator(300.0, 1.0, 0.004)
    integrator.setRandomNumberSeed(1)
    platform = openmm.Platform.getPlatformByName("CPU")
    context = openmm.Context(system, integrator, platform, {"Threads": str(threads)})
    context.setPositions(pos / 10.0 * unit.nanometer)
    openmm.LocalEnergyMinimizer.minimize(context, maxIterations=200)
    context.setVelocitiesToTemperature(300.0, 1)
    integrator.step(STEPS)
    return context


def seconds_of_a_step(context: openmm.Context) -> float:
    """Wall time of a step, mean of fifty."""
    begin = time.perf_counter()
    context.getIntegrator().step(STEPS)
    context.getState(energy=True)  # waits for the last step
    return (time.perf_counter() - begin) / STEPS
