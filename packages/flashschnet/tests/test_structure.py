"""Reading structures: counts and positions against mdtraj, awkward files, and the table of bad input."""

from __future__ import annotations

import gzip
import io
import warnings

import gemmi
import mdtraj
import numpy as np
import pytest
from icml_flashschnet.beads import RESIDUE_TYPES
from icml_flashschnet.structure import Molecule, chain_molecule, example_structure, read_pdb, write_pdb
from icml_flashschnet.topology import excluded_pairs

UBIQUITIN = "MQIFVKTLTGKTITLEVEPSDTIENVKAKIQDKEGIPPDQQRLIFAGKQLEDGRTLSDYNIQKESTLHLVLRLRGG"

GLYCINE_LINES = """\
ATOM      1  N   ALA A  11      11.104   6.134  -6.504  1.00  0.00           N
ATOM      2  CA  ALA A  11      11.639   6.071  -5.147  1.00  0.00           C
ATOM      3  CB  ALA A  11      13.150   6.200  -5.200  1.00  0.00           C
ATOM      4  C   ALA A  11      11.250   4.770  -4.460  1.00  0.00           C
ATOM      5  O   ALA A  11      11.600   3.680  -4.920  1.00  0.00           O
ATOM      6  N   GLY A  12      10.530   4.900  -3.350  1.00  0.00           N
ATOM      7  CA  GLY A  12      10.080   3.740  -2.590  1.00  0.00           C
ATOM      8  C   GLY A  12       9.000   2.950  -3.310  1.00  0.00           C
ATOM      9  O   GLY A  12       8.700   3.200  -4.480  1.00  0.00           O
TER
END
"""


def without(*serials: int) -> io.StringIO:
    """The two residues above without some atoms."""
    lines = [line for line in GLYCINE_LINES.splitlines() if line[6:11].strip() not in map(str, serials)]
    return io.StringIO("\n".join(lines))


@pytest.fixture(scope="module")
def ubiquitin_in_mdtraj(tmp_path_factory) -> mdtraj.Trajectory:
    path = tmp_path_factory.mktemp("pdb") / "1ubi.pdb"
    path.write_bytes(gzip.decompress(example_structure("1ubi").read_bytes()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return mdtraj.load_pdb(str(path))


def test_five_beads_are_the_atoms_that_mdtraj_selects(ubiquitin_in_mdtraj):
    molecule = read_pdb(example_structure("1ubi"), cg="5bead")
    topology = ubiquitin_in_mdtraj.topology
    wanted = {"N", "CA", "CB", "C", "O"}
    per_residue = [
        {a.name: a.index for a in residue.atoms if a.name in wanted}
        for residue in topology.residues if residue.is_protein
    ]  # fmt: skip
    order = [atoms[name] for atoms in per_residue for name in ("N", "CA", "CB", "C", "O") if name in atoms]
    assert molecule.n_beads == len(order) == 76 * 5 - UBIQUITIN.count("G")
    np.testing.assert_allclose(molecule.pos, 10.0 * ubiquitin_in_mdtraj.xyz[0, order], atol=2e-5)
    assert molecule.sequence == UBIQUITIN
    assert list(molecule.names) == [topology.atom(i).name for i in order]


def test_types_follow_the_embedding_of_the_published_models():
    molecule = read_pdb(example_structure("1ubi"))
    letters = "ACDEFGHIKLMNPQRSTVWY"
    for name, kind, label, residue in zip(
        molecule.names, molecule.types, molecule.labels, molecule.residue_of, strict=True
    ):
        letter = UBIQUITIN[residue]
        carries = name == "CB" or (name == "CA" and letter == "G")
        assert kind == (letters.index(letter) + 1 if carries else {"N": 21, "CA": 22, "C": 23, "O": 24}[name])
        assert label.startswith(name)
    assert RESIDUE_TYPES["ALA"] == 1
    assert RESIDUE_TYPES["TYR"] == 20
    by_element = {"N": 14.0, "C": 12.0, "O": 16.0}
    assert [by_element[n[0]] for n in molecule.names] == molecule.masses.tolist()


def test_backbone_topology_has_the_terms_of_a_chain_of_76_residues():
    molecule = read_pdb(example_structure("1ubi"))
    kinds = molecule.topology.dihedral_kinds
    side_chains = 76 - UBIQUITIN.count("G")
    assert len(molecule.bonds) == 76 * 3 + side_chains + 75
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "phi": 75, "psi": 75, "omega": 75, "carbonyl": 75, "chirality": side_chains,
    }  # fmt: skip
    degree = np.bincount(molecule.bonds.ravel(), minlength=molecule.n_beads)
    assert len(molecule.angles) == (degree * (degree - 1) // 2).sum()
    lengths = np.linalg.norm(molecule.pos[molecule.bonds[:, 0]] - molecule.pos[molecule.bonds[:, 1]], axis=1)
    assert lengths.min() > 1.1
    assert lengths.max() < 1.7


def test_dihedral_angles_are_those_of_mdtraj(ubiquitin_in_mdtraj):
    from icml_flashschnet.geometry import dihedral_angles

    molecule = read_pdb(example_structure("1ubi"))
    measured = dihedral_angles(molecule.pos, molecule.dihedrals)
    kinds = np.array(molecule.topology.dihedral_kinds)
    for kind, compute in (
        ("phi", mdtraj.compute_phi),
        ("psi", mdtraj.compute_psi),
        ("omega", mdtraj.compute_omega),
    ):
        expected = compute(ubiquitin_in_mdtraj)[1][0]
        difference = np.angle(np.exp(1j * (measured[kinds == kind] - expected)))
        assert np.abs(difference).max() < 1e-4
    assert len(set(np.sign(measured[kinds == "chirality"]))) == 1  # all L


def test_ca_map_and_all_atoms():
    trace = read_pdb(example_structure("1ubi"), cg="ca")
    assert (trace.n_beads, len(trace.bonds), len(trace.angles), len(trace.dihedrals)) == (76, 75, 74, 73)
    atoms = read_pdb(example_structure("1ubi"), cg=None)
    structure = gemmi.read_structure(str(example_structure("1ubi")))
    structure.remove_ligands_and_waters()
    assert atoms.n_beads == structure[0].count_atom_sites()
    rings = sum(UBIQUITIN.count(letter) for letter in "FYHP")  # no tryptophan, whose two rings share a bond
    assert len(atoms.bonds) == atoms.n_beads - 1 + rings


def test_crambin_has_its_disulphide_bonds_and_its_likeliest_conformers():
    atoms = read_pdb(example_structure("1ejg"), cg=None)
    sulphurs = {i for i, label in enumerate(atoms.labels) if label == "S"}
    bridges = {
        tuple(sorted(int(atoms.residue_of[i]) + 1 for i in bond))
        for bond in atoms.bonds.tolist() if set(bond) <= sulphurs
    }  # fmt: skip
    assert bridges == {(3, 40), (4, 32), (16, 26)}  # as the file's SSBOND records say
    assert any("PRO 22" in note and "SER" in note for note in atoms.notes)


def test_of_alternative_locations_the_likeliest_is_taken():
    first = GLYCINE_LINES.replace(
        "CB  ALA A  11      13.150   6.200  -5.200  1.00", "CB AALA A  11      13.150   6.200  -5.200  0.40"
    )
    other = "ATOM     33  CB BALA A  11      13.100   6.000  -4.800  0.60  0.00           C\n"
    lines = first.splitlines(keepends=True)
    for text in ("".join([*lines[:3], other, *lines[3:]]), "".join([*lines[:2], other, *lines[2:]])):
        molecule = read_pdb(io.StringIO(text))
        assert molecule.pos[2].tolist() == [13.1, 6.0, -4.8]


def test_insertion_codes_are_kept_and_hetero_atoms_skipped():
    text = GLYCINE_LINES.replace("GLY A  12 ", "GLY A  11A")
    water = "HETATM   40  O   HOH A 101      20.000  20.000  20.000  1.00  0.00           O\n"
    ligand = "HETATM   41  C1  GOL A 102      25.000  20.000  20.000  1.00  0.00           C\n"
    molecule = read_pdb(io.StringIO(text.replace("TER\n", "TER\n" + water + ligand)))
    assert [(r.number, r.insertion) for r in molecule.residues] == [(11, ""), (11, "A")]
    assert molecule.n_beads == 9
    assert any("GOL" in note for note in molecule.notes)


def test_no_bond_is_laid_across_a_break_of_the_chain():
    whole = read_pdb(io.StringIO(GLYCINE_LINES))
    torn = read_pdb(
        io.StringIO(GLYCINE_LINES.replace("  -3.350", "   3.350").replace("  -2.590", "   4.590"))
    )
    assert len(whole.bonds) == 8
    assert len(torn.bonds) == 7
    assert "phi" in whole.topology.dihedral_kinds
    assert "phi" not in torn.topology.dihedral_kinds


def test_missing_cb_is_placed_and_reported():
    with pytest.warns(UserWarning, match="residue ALA 11 chain A: no CB, placed by ideal geometry"):
        molecule = read_pdb(without(3))
    whole = read_pdb(example_structure("1ubi"))
    assert molecule.n_beads == 9
    assert 1.45 < np.linalg.norm(molecule.pos[2] - molecule.pos[1]) < 1.6
    from icml_flashschnet.structure import _ideal_cb

    error = [
        np.linalg.norm(_ideal_cb(*(whole.pos[b] for b in (n, ca, c))) - whole.pos[cb])
        for cb, n, c, ca in whole.dihedrals[np.array(whole.topology.dihedral_kinds) == "chirality"]
    ]
    assert np.median(error) < 0.1


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        (lambda: without(9), {}, ValueError, "residue GLY 12 chain A: no O"),
        (lambda: without(2, 4), {}, ValueError, "residue ALA 11 chain A: no CA, C"),
        (lambda: io.StringIO("hello\nworld\n"), {}, ValueError, "no atoms"),
        (lambda: io.StringIO("data_x\nloop_\n_atom_site.id\n"), {}, ValueError, "structure"),
        (lambda: io.BytesIO(b"\x1f\x8bbroken"), {}, ValueError, "gzip"),
        (lambda: io.StringIO(GLYCINE_LINES), {"chain": "B"}, ValueError, "no chain 'B'; it has 'A'"),
        (lambda: io.StringIO(GLYCINE_LINES), {"model": 3}, ValueError, "no model 3; it has 1"),
        (lambda: io.StringIO(GLYCINE_LINES), {"cg": "martini"}, ValueError, "cg must be"),
        (lambda: "no/such/file.pdb", {}, FileNotFoundError, "no structure file"),
        (lambda: io.StringIO(GLYCINE_LINES.replace("ALA", "UNL").replace("GLY", "UNL")), {},
         ValueError, "no amino acids"),
    ],
)  # fmt: skip
def test_bad_input_is_named(source, options, error, message):
    with pytest.raises(error, match=message):
        read_pdb(source(), **options)


def test_incomplete_residues_can_be_left_out():
    with pytest.warns(UserWarning, match="GLY 12 chain A is incomplete"):
        assert read_pdb(without(9), incomplete="skip").sequence == "A"


def test_a_molecule_refuses_impossible_beads():
    good = read_pdb(io.StringIO(GLYCINE_LINES))
    rest = {
        f: getattr(good, f)
        for f in ("names", "labels", "residues", "residue_of", "topology", "representation")
    }
    with pytest.raises(ValueError, match="masses must be 9 positive"):
        Molecule(pos=good.pos, types=good.types, masses=good.masses - 12.0, **rest)
    pos = good.pos.copy()
    pos[4, 1] = np.nan
    with pytest.raises(ValueError, match="bead 4 is not finite"):
        Molecule(pos=pos, types=good.types, masses=good.masses, **rest)


def test_written_topology_reads_back_with_the_same_beads_and_bonds(tmp_path):
    molecule = read_pdb(example_structure("1ubi"))
    write_pdb(molecule, tmp_path / "cg.pdb", molecule.pos + 1.0)
    again = read_pdb(tmp_path / "cg.pdb")
    np.testing.assert_allclose(again.pos, molecule.pos + 1.0, atol=1e-3)
    assert (again.types == molecule.types).all()
    assert (again.bonds == molecule.bonds).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        viewed = mdtraj.load_pdb(str(tmp_path / "cg.pdb"))
    assert viewed.n_atoms == molecule.n_beads
    assert viewed.topology.n_bonds >= len(molecule.bonds)


def test_mmcif_gives_what_pdb_gives(tmp_path):
    structure = gemmi.read_structure(str(example_structure("1ubi")))
    structure.setup_entities()
    (tmp_path / "1ubi.cif").write_text(structure.make_mmcif_document().as_string())
    from_cif, from_pdb = read_pdb(tmp_path / "1ubi.cif"), read_pdb(example_structure("1ubi"))
    np.testing.assert_allclose(from_cif.pos, from_pdb.pos, atol=1e-3)
    assert [str(r) for r in from_cif.residues] == [str(r) for r in from_pdb.residues]


def test_chain_molecule_is_the_molecule_of_the_file():
    molecule = read_pdb(example_structure("1ubi"))
    built = chain_molecule(UBIQUITIN, molecule.pos)
    assert (built.types == molecule.types).all()
    assert (built.bonds == molecule.bonds).all()
    assert built.topology.dihedral_kinds == molecule.topology.dihedral_kinds
    with pytest.raises(ValueError, match="'B' is none of the twenty"):
        chain_molecule("AB", molecule.pos[:10])
    with pytest.raises(ValueError, match="has 10 beads"):
        chain_molecule("AC", molecule.pos[:9])


def test_excluded_pairs_are_those_within_three_bonds():
    chain = np.array([[i, i + 1] for i in range(6)])
    expected = {(i, j) for i in range(7) for j in range(i + 1, 7) if j - i < 4}
    assert {tuple(p) for p in excluded_pairs(chain, 7, 4).tolist()} == expected
    assert len(excluded_pairs(chain, 7, 1)) == 0
    with pytest.raises(ValueError, match="exclusion depth"):
        excluded_pairs(chain, 7, -1)
