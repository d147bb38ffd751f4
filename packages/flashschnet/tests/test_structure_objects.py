"""Objects of mdtraj, OpenMM and ASE give the molecule that the file itself gives."""

from __future__ import annotations

import gzip

import ase.io
import mdtraj
import numpy as np
import pytest
from ase import Atoms
from icml_flashschnet import example_structure, from_ase, from_mdtraj, from_openmm, read_pdb
from openmm import unit
from openmm.app import PDBFile


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """Ubiquitin, unpacked."""
    path = tmp_path_factory.mktemp("structure") / "1ubi.pdb"
    path.write_bytes(gzip.decompress(example_structure("1ubi").read_bytes()))
    return path


def differences(found, expected, atol):
    """What differs: beads, residues, terms, or positions beyond what the object's precision leaves."""
    alike = {
        "pos": found.pos.shape == expected.pos.shape
        and np.allclose(found.pos, expected.pos, atol=atol, rtol=0),
        "types": np.array_equal(found.types, expected.types),
        "bonds": np.array_equal(found.bonds, expected.bonds),
        "dihedrals": np.array_equal(found.dihedrals, expected.dihedrals),
        "sequence": found.sequence == expected.sequence,
        "numbers": [r.number for r in found.residues] == [r.number for r in expected.residues],
    }
    return [name for name, equal in alike.items() if not equal]


@pytest.mark.parametrize("cg", ["5bead", "ca"])
def test_mdtraj(file, cg):
    assert (
        differences(from_mdtraj(mdtraj.load(str(file)), cg), read_pdb(file, cg=cg), 1e-4) == []
    )  # float32 nm


@pytest.mark.parametrize("cg", ["5bead", "ca", None])
def test_openmm(file, cg):
    loaded = PDBFile(str(file))
    assert differences(from_openmm(loaded.topology, loaded.positions, cg), read_pdb(file, cg=cg), 1e-9) == []
    plain = np.array(loaded.positions.value_in_unit(unit.nanometer))
    assert differences(from_openmm(loaded.topology, plain, cg), read_pdb(file, cg=cg), 1e-9) == []


@pytest.mark.parametrize("cg", ["5bead", "ca"])
def test_ase(file, cg):
    assert differences(from_ase(ase.io.read(file), cg), read_pdb(file, cg=cg), 1e-9) == []


def test_what_an_object_lacks_is_said(file):
    loaded = PDBFile(str(file))
    with pytest.raises(ValueError, match="10 positions for 683 atoms"):
        from_openmm(loaded.topology, loaded.positions[:10])
    with pytest.raises(ValueError, match="lack the arrays atomtypes, residuenames, residuenumbers"):
        from_ase(Atoms("C2", positions=np.zeros((2, 3))))
    with pytest.raises(ValueError, match="no frame 3; the trajectory has 1"):
        from_mdtraj(mdtraj.load(str(file)), frame=3)
    trace = mdtraj.load(str(file))
    trace = trace.atom_slice(trace.topology.select("name CA"))
    with pytest.raises(ValueError, match="MET 1 chain A: no N, C, O"):
        from_mdtraj(trace)
    assert from_mdtraj(trace, "ca").n_beads == 76
