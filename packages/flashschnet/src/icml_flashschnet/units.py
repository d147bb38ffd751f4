"""Units: Å, ps, amu, kcal/mol and K inside; conversion from what other programs write; a guard against
mix-ups.

One kcal/mol/Å accelerates one amu by 418.4 Å/ps² (4184 J/kcal over 1e-3 kg/mol, in (Å/ps)²).
"""

from __future__ import annotations

import warnings

import numpy as np
from icml_kernels.molecules.langevin_baoab import ACCELERATION, BOLTZMANN
from jaxtyping import Float

__all__ = [
    "ACCELERATION",
    "BOLTZMANN",
    "check_length_unit",
    "nearest_neighbour_distance",
    "ns_per_day",
    "to_internal",
]

LENGTHS = {"Å": 1.0, "A": 1.0, "angstrom": 1.0, "nm": 10.0, "bohr": 0.529177210903}
"""Å in one of each."""
ENERGIES = {"kcal/mol": 1.0, "kJ/mol": 1.0 / 4.184, "eV": 23.060547830619, "hartree": 627.5094740631}
"""kcal/mol in one of each (CODATA 2018)."""
NEAREST_NEIGHBOUR_RANGE = (0.7, 8.0)
"""Distances (Å) between nearest beads or atoms that molecules have; outside, the unit is probably another."""


def to_internal(length: str, force: str) -> tuple[float, float]:
    """Factors that turn positions and forces of other units into Å and kcal/mol/Å.

    Args:
        length: "Å" (or "angstrom"), "nm" or "bohr".
        force: an energy over a length, such as "kJ/mol/nm", "eV/Å" or "kcal/mol/Å".

    Raises:
        ValueError: a unit that is not known.

    Example:
        >>> to_internal("nm", "kJ/mol/nm")[0]
        10.0
    """
    energy, _, per = force.rpartition("/")
    if length not in LENGTHS:
        raise ValueError(f"length unit {length!r} is none of {', '.join(LENGTHS)}")
    if energy not in ENERGIES or per not in LENGTHS:
        raise ValueError(
            f"force unit {force!r} is not an energy ({', '.join(ENERGIES)}) over a length "
            f"({', '.join(LENGTHS)}), such as 'kJ/mol/nm'"
        )
    return LENGTHS[length], ENERGIES[energy] / LENGTHS[per]


def nearest_neighbour_distance(pos: Float[np.ndarray, "beads 3"]) -> float:
    """Median over the beads of the distance to the nearest other bead; infinite for a single bead."""
    if len(pos) < 2:
        return float("inf")
    sample = pos[: min(len(pos), 512)]
    squared = ((sample[:, None] - pos[None]) ** 2).sum(-1)
    squared[np.arange(len(sample)), np.arange(len(sample))] = np.inf
    return float(np.sqrt(np.median(squared.min(1))))


def check_length_unit(pos: Float[np.ndarray, "beads 3"], what: str = "positions") -> bool:
    """Warn where the positions are hardly in Å, and name the unit that they are likely in.

    Args:
        pos: positions of one structure, supposed to be in Å.
        what: what the warning calls them.

    Returns:
        Whether the distances are those of a molecule in Å.
    """
    distance = nearest_neighbour_distance(np.asarray(pos, dtype=np.float64))
    low, high = NEAREST_NEIGHBOUR_RANGE
    if low <= distance <= high or not np.isfinite(distance):
        return True
    likely = next(
        (unit for unit in ("nm", "bohr") if low <= distance * LENGTHS[unit] <= high),
        "no unit known here" if distance > high else "nm",
    )
    warnings.warn(
        f"{what}: nearest beads are {distance:.3g} apart, outside {low} to {high} Å; "
        f"likely unit: {likely} (convert with units=('nm', 'kJ/mol/nm') and the like)",
        stacklevel=2,
    )
    return False


def ns_per_day(replica_steps: float, seconds: float, dt: float) -> float:
    """Aggregate throughput: nanoseconds a day of all replicas together.

    Args:
        replica_steps: steps times replicas.
        seconds: the wall time that they took.
        dt: time step, ps.
    """
    return replica_steps / seconds * dt * 86.4
