"""Molecules as trees of blocks, against RDKit's canonical SMILES and counts by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_leakgfn import FragmentEnv, NotExpressible, exact_flow
from icml_leakgfn.blocks import BlockLibrary, block_from_smiles, brics_fragments, read_blocks
from icml_leakgfn.rollout import even_policy, rollout
from rdkit import Chem


def drawn(env, n, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return rollout(env, even_policy, n, generator=generator, **options)


def test_symmetries_of_blocks():
    assert len(block_from_smiles("*c1ccc(*)cc1").symmetries) == 2
    assert len(block_from_smiles("*C(=O)N*").symmetries) == 1
    assert len(block_from_smiles("*c1cc(*)cc(*)c1").symmetries) == 6
    assert len(block_from_smiles("*C1C(*)C(*)C1*").symmetries) == 8  # the ring turns and flips
    assert len(block_from_smiles("c1ccccc1", [0, 3]).symmetries) == 2
    # The two nitrogens of pyrazole differ by a hydrogen, though a search for substructures takes them as one.
    assert len(block_from_smiles("*c1cc(*)[nH]n1").symmetries) == 1
    assert block_from_smiles("c1cc[nH]c1", [3]).smiles == "*n1cccc1"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("c1ccccc1", "has no attachment point"),
        ("*C1CC", "is no SMILES that RDKit takes"),
        ("*=C", "must hang on one single bond"),
        (("C", [5]), "attachment atom 5 does not exist; it has atoms 0 to 0"),
        (("C(F)(F)(F)F", [0]), "attachment atom 0 has too few hydrogens"),
        (("*C", [0]), "both"),
        ("*", "no atom besides|must hang"),
    ],
)
def test_invalid_blocks_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        BlockLibrary([given])


def test_the_same_block_twice_is_refused():
    with pytest.raises(ValueError, match="blocks 0 and 1 are the same"):
        BlockLibrary(["*CO", "OC*"])


def test_states_are_equal_where_molecules_are():
    """Blocks without common pieces and no open slot: one tree for each molecule, by canonical SMILES."""
    env = FragmentEnv(["*c1ccc(*)cc1", "*C(=O)S*", "*N(*)*", "*F"], 6, stop="closed")
    flows = exact_flow(env, lambda mol: 1.0)
    rows = flows.graph.states[flows.objects]
    assert len(rows) > 50
    assert len(set(env.key(rows))) == len(set(env.label(rows))) == len(rows)


def test_symmetric_attachments_are_one_edge_with_all_parents():
    env = FragmentEnv(["*c1ccc(*)cc1", "*F"], 3, 2)
    benzene, _ = env.step(env.reset(1), [0])
    mask = env.mask(benzene)[0, :-1]
    assert mask.sum() == 2  # one of the two equal slots, two arms
    fluoro, _ = env.step(benzene, [1])
    parents, actions, index = env.parents(fluoro)
    assert sorted(env.label(parents)) == ["F", "c1ccccc1"]
    assert index.tolist() == [0, 0]
    for parent, action in zip(parents, actions, strict=True):
        np.testing.assert_array_equal(env.step(parent[None], [action])[0], fluoro)


@pytest.mark.parametrize("stop", ["capped", "closed"])
def test_what_cannot_be_finished_is_never_called_reachable_and_the_rest_never_refused(stop):
    env = FragmentEnv(["*c1ccc(*)cc1", "*N(*)*", "*C"], 4, 2, stop=stop)
    flows = exact_flow(env, lambda mol: 1.0)
    graph = flows.graph
    able = env.may_finish(graph.states, 4 - graph.length)[graph.parent, graph.action]
    reached = flows.log_valid[graph.child] > -np.inf
    assert not (reached & ~able).any()
    if stop == "closed":
        np.testing.assert_array_equal(able, reached)
    # Against the true distance to an object, from the last states to the first.
    objects = graph.objects(4)
    distance = np.where(objects, 0.0, np.inf)
    for length in range(3, -1, -1):
        for edge in np.flatnonzero(graph.length[graph.parent] == length):
            parent = graph.parent[edge]
            distance[parent] = min(distance[parent], 1 + distance[graph.child[edge]])
    steps = env.min_steps_to_finish(graph.states)
    assert (steps <= distance).all()
    near = np.isfinite(distance)
    assert set(distance[near].tolist()) >= {0.0, 1.0, 2.0}
    np.testing.assert_array_equal(steps[near], distance[near])


def test_molecules_go_to_smiles_and_back():
    env = FragmentEnv("default105", 4)
    ended = drawn(env, 1000).ends
    smiles = env.label(ended)
    for name in smiles:
        state = env.decompose(name, time_limit=5.0)
        assert env.label(state[None]) == [name]


def test_a_molecule_that_blocks_do_not_make_is_told_with_its_atoms():
    env = FragmentEnv(["*c1ccccc1", "*C", "*O*"], 4)
    assert env.label(env.decompose("COc1ccccc1")[None]) == ["COc1ccccc1"]
    with pytest.raises(NotExpressible, match="the blocks do not make it") as caught:
        env.decompose("BrOc1ccccc1")
    assert caught.value.uncovered == (0,)
    with pytest.raises(ValueError, match="is no SMILES"):
        env.decompose("c1ccc")
    with pytest.raises(NotExpressible):
        env.decompose(Chem.MolFromSmiles(""))


def test_corner_graphs():
    """One block without anything to add, no open slot, a full molecule, a single legal action."""
    env = FragmentEnv(["*C"], 2, 1)
    one, done = env.step(env.reset(1), [0])
    assert done.tolist() == [0]
    assert env.mask(one).sum() == 2
    ethane, done = env.step(one, [0])
    assert done.tolist() == [2]
    assert env.label(ethane) == ["CC"]
    assert not env.mask(ethane)[:, :-1].any()
    parents, actions, index = env.parents(ethane)
    assert env.label(parents) == ["C"]
    assert (actions.tolist(), index.tolist()) == ([0], [0])
    none = env.reset(0)
    assert env.mask(none).shape == (0, env.n_actions)
    assert env.apply(none, np.zeros(0, dtype=int)).shape == none.shape
    assert len(env.parents(none)[0]) == 0
    assert env.label(none) == []
    assert len(env.parents(env.reset(2))[0]) == 0


def test_the_library_has_105_blocks_and_files_are_read(tmp_path):
    assert len(read_blocks("default105")) == 105
    file = tmp_path / "blocks.smi"
    file.write_text("# two blocks\n*c1ccccc1*  # a ring\nCC 0 1\n")
    library = BlockLibrary(file)
    assert library.signature() == [block_from_smiles(s).smiles for s in ("*c1ccccc1*", "*CC*")]
    file.write_text("CC x\n")
    with pytest.raises(ValueError, match="line 1: 'CC x'"):
        BlockLibrary(file)
    with pytest.raises(FileNotFoundError, match="neither 'default105' nor a file"):
        BlockLibrary(tmp_path / "missing")


def test_fragments_are_cut_by_brics_and_counted():
    assert sorted(brics_fragments("COc1ccccc1")) == ["*OC", "*c1ccccc1"]
    assert sorted(brics_fragments("O=C(Nc1ccccc1)c1ccncc1")) == ["*C(*)=O", "*N*", "*c1ccccc1", "*c1ccncc1"]
    env = FragmentEnv.from_smiles(["COc1ccccc1", "CCOc1ccccc1", "CNC(=O)c1ccccc1"], 4, max_blocks=4)
    assert "*c1ccccc1" in env.library.signature()
    with pytest.raises(ValueError, match="n_blocks=99 were asked for"):
        FragmentEnv.from_smiles(["COc1ccccc1"], 99)
