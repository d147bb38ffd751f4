"""Chains of hydrogen molecules from pyscf: a one-electron Hamiltonian with the overlap of the basis as B."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from icml_core.errors import NeedsError, install_command

from icml_deepcontour.datasets import Instance


def hydrogen_chain(molecules: int, seed: int, *, basis: str = "sto-3g", cutoff: float = 1e-10) -> Instance:
    """Core Hamiltonian and overlap matrix of H2 molecules on a line, hartree and bohr.

    Args:
        molecules: H2 molecules, 3 bohr apart or a little more.
        seed: changes bond lengths and distances.
        basis: of pyscf.
        cutoff: smaller entries are left out.

    Raises:
        NeedsError: pyscf is not installed.
        ValueError: no molecule.
    """
    if molecules < 1:
        raise ValueError(f"molecules={molecules}; expected at least one")
    try:
        from pyscf import gto
    except ImportError as error:
        raise NeedsError("pyscf", hint=install_command("pyscf")) from error
    rng = np.random.default_rng(seed)
    bonds, gaps = rng.uniform(1.2, 1.8, molecules), rng.uniform(3.0, 4.0, molecules)
    starts = np.concatenate([[0.0], np.cumsum(bonds + gaps)[:-1]])
    places = np.stack([starts, starts + bonds], axis=1).ravel()
    atoms = [("H", (0.0, 0.0, float(z))) for z in places]
    mol = gto.M(atom=atoms, basis=basis, unit="Bohr", spin=0, verbose=0)
    H = mol.intor("int1e_kin") + mol.intor("int1e_nuc")
    S = mol.intor("int1e_ovlp")
    H[np.abs(H) < cutoff], S[np.abs(S) < cutoff] = 0.0, 0.0
    fields = np.stack([bonds, gaps])[:, :, None]
    return Instance(
        sp.csc_array((H + H.T) / 2), sp.csc_array((S + S.T) / 2), fields, f"hydrogen-{molecules}-{seed}"
    )
