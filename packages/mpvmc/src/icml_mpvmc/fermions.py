"""Molecules in second quantisation as Pauli sums, by the transformation of Jordan and Wigner.

    H = E_nuc + Σ h_pq a†_pσ a_qσ + ½ Σ (pq|rs) a†_pσ a†_rτ a_sτ a_qσ

over spatial orbitals with real integrals in chemists' order. Spin orbitals are spins of the lattice, those of
spin up first; occupied is -1. a_k = X_k (1 - Z_k)/2 Π_{l<k} Z_l. Operators are kept as {(f, z): c} for c X^f
Z^z, f and z as the bits of integers.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
from jaxtyping import Float

from icml_mpvmc.hamiltonian import Sector
from icml_mpvmc.pauli import PauliSum

Algebra = dict[tuple[int, int], complex]
NEGLIGIBLE = 1e-12
"""Coefficients below this many Hartree are left out."""


def product(a: Algebra, b: Algebra) -> Algebra:
    """X^f Z^z X^g Z^y = (-1)^|z∩g| X^(f+g) Z^(z+y)."""
    found: Algebra = defaultdict(complex)
    for (f, z), one in a.items():
        for (g, y), other in b.items():
            found[f ^ g, z ^ y] += one * other * (-1 if (z & g).bit_count() % 2 else 1)
    return dict(found)


def annihilator(k: int) -> Algebra:
    """a_k."""
    before = (1 << k) - 1
    return {(1 << k, before): 0.5, (1 << k, before | 1 << k): -0.5}


def creator(k: int) -> Algebra:
    """a†_k."""
    before = (1 << k) - 1
    return {(1 << k, before): 0.5, (1 << k, before | 1 << k): 0.5}


def jordan_wigner(
    one_body: Float[np.ndarray, "orbitals orbitals"],
    two_body: Float[np.ndarray, "orbitals orbitals orbitals orbitals"],
    constant: float = 0.0,
) -> Algebra:
    """The Hamiltonian of these integrals on twice as many spins as orbitals.

    Args:
        one_body: h_pq in Hartree.
        two_body: (pq|rs) in chemists' order, in Hartree.
        constant: the energy of the nuclei.

    Raises:
        ValueError: shapes that do not fit together, or integrals that are not symmetric.
    """
    h, v = np.asarray(one_body, dtype=float), np.asarray(two_body, dtype=float)
    n = len(h)
    if h.shape != (n, n) or v.shape != (n,) * 4:
        raise ValueError(f"integrals have shapes {h.shape} and {v.shape}; expected [n, n] and [n, n, n, n]")
    if not np.allclose(h, h.T, atol=1e-8) or not np.allclose(v, v.transpose(2, 3, 0, 1), atol=1e-8):
        raise ValueError("the integrals are not symmetric: h_pq = h_qp and (pq|rs) = (rs|pq) are expected")
    excite: dict[tuple[int, int], Algebra] = {}
    for p in range(n):
        for q in range(n):
            total: Algebra = defaultdict(complex)
            for spin in (0, n):
                for key, value in product(creator(p + spin), annihilator(q + spin)).items():
                    total[key] += value
            excite[p, q] = dict(total)
    found: Algebra = defaultdict(complex)
    found[0, 0] += constant
    # a†_p a†_r a_s a_q = E_pq E_rs - δ_qr E_ps, so that the one-body part absorbs the second term.
    effective = h - 0.5 * np.einsum("prrs->ps", v)
    for (p, q), operator in excite.items():
        inner: Algebra = defaultdict(complex)
        inner[0, 0] += effective[p, q]
        for (r, s), other in excite.items():
            if abs(v[p, q, r, s]) > NEGLIGIBLE:
                for key, value in other.items():
                    inner[key] += 0.5 * v[p, q, r, s] * value
        for key, value in product(operator, dict(inner)).items():
            found[key] += value
    return {key: value for key, value in found.items() if abs(value) > NEGLIGIBLE}


def from_integrals(
    one_body: Float[np.ndarray, "orbitals orbitals"],
    two_body: Float[np.ndarray, "orbitals orbitals orbitals orbitals"],
    n_electrons: tuple[int, int],
    constant: float = 0.0,
) -> PauliSum:
    """The Hamiltonian as a Pauli sum in the sector of so many electrons of either spin; energies in Hartree.

    Raises:
        ValueError: more electrons than orbitals, or integrals as in ``jordan_wigner``.
    """
    n = len(one_body)
    if not all(0 <= count <= n for count in n_electrons):
        raise ValueError(f"n_electrons={n_electrons}; expected up to {n} of either spin")
    sectors = [Sector(tuple(range(k * n, (k + 1) * n)), n - 2 * count) for k, count in enumerate(n_electrons)]
    return PauliSum.from_algebra(jordan_wigner(one_body, two_body, constant), 2 * n, sectors=sectors)


def from_molecule(molecule: Any) -> PauliSum:
    """The electronic Hamiltonian of a PySCF molecule, in its Hartree-Fock orbitals; energies in Hartree.

    Args:
        molecule: a ``pyscf.gto.Mole``, a converged restricted mean field of one, or an atom string as PySCF
            takes it (``"H 0 0 0; H 0 0 0.74"``, in the basis STO-3G).

    Raises:
        NeedsError: PySCF is not installed.
        ValueError: an unrestricted mean field, or one that does not converge.

    Example:
        ``from_molecule("H 0 0 0; H 0 0 0.74").n_spins`` is 4.
    """
    from icml_core import NeedsError

    try:
        from pyscf import ao2mo, gto, scf
    except ImportError as error:
        from icml_core.errors import install_command

        raise NeedsError("pyscf>=2.8", hint=install_command("icml-mpvmc[molecules]")) from error
    if isinstance(molecule, str):
        molecule = gto.M(atom=molecule, basis="sto-3g", verbose=0)
    field = molecule
    if not hasattr(field, "mo_coeff"):
        field = (scf.RHF if molecule.spin == 0 else scf.ROHF)(molecule)
        field.verbose = 0
        field.kernel()
    if field.mo_coeff is None or not field.converged:
        raise ValueError("the mean field has not converged; run it first, with more cycles or another start")
    orbitals = np.asarray(field.mo_coeff)
    if orbitals.ndim != 2:
        raise ValueError("the mean field is unrestricted; give RHF or ROHF, whose orbitals serve both spins")
    n = orbitals.shape[1]
    one_body = orbitals.T @ field.get_hcore() @ orbitals
    two_body = ao2mo.restore(1, ao2mo.kernel(field.mol, orbitals), n)
    return from_integrals(one_body, two_body, tuple(field.mol.nelec), float(field.mol.energy_nuc()))
