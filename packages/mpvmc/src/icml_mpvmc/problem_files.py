"""Hamiltonians from the command line and from files; nothing is unpickled, and sizes are looked at first."""

from __future__ import annotations

import json
import re
from pathlib import Path

from icml_mpvmc.foreign import from_scipy
from icml_mpvmc.hamiltonian import Hamiltonian
from icml_mpvmc.lattices import J1J2, TFIM, Heisenberg
from icml_mpvmc.pauli import PauliSum

LATTICES = ("tfim", "heisenberg", "j1j2")
MAX_FILE = 2**30
MAX_SPINS = 4096


def read_shape(text: str) -> tuple[int, ...]:
    """``"12"`` or ``"10x10"``.

    Raises:
        ValueError: another form, or more than 4096 sites.
    """
    if not re.fullmatch(r"\d{1,4}(x\d{1,4}){0,2}", text):
        raise ValueError(f"--shape {text!r}; expected sides as 12 or 10x10")
    shape = tuple(int(s) for s in text.split("x"))
    size = 1
    for side in shape:
        size *= side
    if not 1 <= size <= MAX_SPINS:
        raise ValueError(f"--shape {text!r} has {size} sites; up to {MAX_SPINS} are taken")
    return shape


def lattice(
    name: str, shape: tuple[int, ...], *, J: float = 1.0, h: float = 1.0, J2: float = 0.5, pbc: bool = True
) -> Hamiltonian:
    """A lattice model by its name.

    Raises:
        ValueError: an unknown name.
    """
    if name == "tfim":
        return TFIM(shape, J, h, pbc)
    if name == "heisenberg":
        return Heisenberg(shape, J, pbc)
    if name == "j1j2":
        return J1J2(shape, J, J2, pbc)
    raise ValueError(f"--lattice {name!r}; expected one of {', '.join(LATTICES)}")


def read_hamiltonian(path: Path) -> Hamiltonian:
    """A Hamiltonian from ``.npz`` (``scipy.sparse.save_npz``) or ``.json`` (Pauli strings to coefficients).

    A JSON file holds ``{"XXI": 0.5, "ZIZ": -1}``, or a list of ``["ZZ", [0, 1], 0.5]``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another ending, a file that is too large, or contents of another form.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.stat().st_size > MAX_FILE:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; up to {MAX_FILE} are read")
    if path.suffix == ".npz":
        from scipy import sparse

        try:
            matrix = sparse.load_npz(path)
        except Exception as error:
            raise ValueError(
                f"{path} holds no sparse matrix as scipy.sparse.save_npz writes it: {error}"
            ) from error
        return from_scipy(matrix)
    if path.suffix == ".json":
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{path} is no JSON: {error}") from error
        if not isinstance(found, dict | list):
            raise ValueError(
                f"{path} holds a {type(found).__name__}; expected Pauli strings with coefficients"
            )
        try:
            H = PauliSum(found)
        except (TypeError, AttributeError, OverflowError) as error:
            raise ValueError(f"{path} holds no Pauli sum: {error}") from error
        if H.n_spins > MAX_SPINS:
            raise ValueError(f"{path} has {H.n_spins} spins; up to {MAX_SPINS} are taken")
        return H
    raise ValueError(f"{path}: expected .npz (a sparse matrix) or .json (Pauli strings)")
