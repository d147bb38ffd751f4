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


def same(found, expected, atol):
    """Beads, residues and terms agree; positions within what the object's precision leaves."""
    np.testing.assert_allclose(found.pos, expected.pos, atol=atol)
    np.testing.assert_array_equal(found.types, expected.types)
    np.testing.assert_array_equal(found.bonds, expected.bonds)
    np.testing.assert_array_equal(found.dihedrals, expected.dihedrals)
    assert found.sequence == expected.sequence
    assert [r.number for r in found.residues] == [r.number for r in expected.residues]


@pytest.mark.parametrize("cg", ["5bead", "ca"])
def test_mdtraj(file, cg):
    same(from_mdtraj(mdtraj.load(str(file)), cg), read_pdb(file, cg=cg), 1e-4)  # float32 nm


@pytest.mark.parametrize("cg", ["5bead", "ca", None])
def test_openmm(file, cg):
    loaded = PDBFile(str(file))
    same(from_openmm(loaded.topology, loaded.positions, cg), read_pdb(file, cg=cg), 1e-9)
    plain = np.array(loaded.positions.value_in_unit(unit.nanometer))
    same(from_openmm(loaded.topology, plain, cg), read_pdb(file, cg=cg), 1e-9)


@pytest.mark.parametrize("cg", ["5bead", "ca"])
def test_ase(file, cg):
    same(from_ase(ase.io.read(file), cg), read_pdb(file, cg=cg), 1e-9)


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
