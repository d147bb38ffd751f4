"""Canonical trees against networkx' isomorphism, random relabellings, and the definition."""

from __future__ import annotations

import networkx as nx
import pytest
import torch
from icml_kernels import BlockKinds, canonical_trees
from icml_kernels.testing import check_raw_ops, use_route
from networkx.algorithms.isomorphism import categorical_node_match

# A cap, a rod with two equal ends, a rod with two different ends, a star of three, and a ring of four slots
# that turns and flips (its eight symmetries are not all twenty-four).
GROUPS = [
    [[0]],
    [[0, 1], [1, 0]],
    [[0, 1]],
    [[0, 1, 2], [1, 0, 2], [0, 2, 1], [2, 1, 0], [1, 2, 0], [2, 0, 1]],
    [
        [0, 1, 2, 3],
        [1, 2, 3, 0],
        [2, 3, 0, 1],
        [3, 0, 1, 2],
        [3, 2, 1, 0],
        [2, 1, 0, 3],
        [1, 0, 3, 2],
        [0, 3, 2, 1],
    ],
]
SIZES = [1, 2, 2, 3, 4]


def kinds() -> BlockKinds:
    perms = [[*g, *[-1] * (4 - len(g))] for group in GROUPS for g in group]
    ptr = torch.tensor([0, *[len(group) for group in GROUPS]]).cumsum(0)
    return BlockKinds(torch.tensor(SIZES), ptr, torch.tensor(perms))


def random_tree(nodes: int, width: int, generator: torch.Generator) -> torch.Tensor:
    tree = torch.full((4, width), -1, dtype=torch.int64)

    def draw(high: int) -> int:
        return int(torch.randint(high, (), generator=generator))

    kind = [1 + draw(4)]
    tree[0, 0] = kind[0]
    open_slots = [(0, s) for s in range(SIZES[kind[0]])]
    for i in range(1, nodes):
        if not open_slots:
            break
        p, ps = open_slots.pop(draw(len(open_slots)))
        # Keep a slot open while blocks remain.
        kind.append(draw(5) if open_slots else 1 + draw(4))
        s = draw(SIZES[kind[i]])
        tree[:, i] = torch.tensor([kind[i], p, ps, s])
        open_slots += [(i, t) for t in range(SIZES[kind[i]]) if t != s]
    return tree


def as_graph(tree: torch.Tensor, mark: tuple[int, int] = (-1, -1)) -> nx.Graph:
    """Blocks and slots as nodes; the ring's order and the unequal rod's ends as labels and edges."""
    graph = nx.Graph()
    for i, kind in enumerate(k for k in tree[0].tolist() if k >= 0):
        graph.add_node(i, label=f"block {kind}")
        for s in range(SIZES[kind]):
            end = f" end {s}" if kind == 2 else ""
            marked = " marked" if (i, s) == mark else ""
            graph.add_node((i, s), label=f"slot of {kind}{end}{marked}")
            graph.add_edge(i, (i, s))
        if kind == 4:
            graph.add_edges_from(((i, s), (i, (s + 1) % 4)) for s in range(4))
        if i:
            graph.add_edge((i, int(tree[3, i])), (int(tree[1, i]), int(tree[2, i])))
    return graph


def isomorphic(a: nx.Graph, b: nx.Graph) -> bool:
    return nx.is_isomorphic(a, b, node_match=categorical_node_match("label", ""))


def shuffled(tree: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The same tree from another root, nodes renumbered, each block turned by a symmetry of its own."""
    kind = [k for k in tree[0].tolist() if k >= 0]
    turns = [GROUPS[k][int(torch.randint(len(GROUPS[k]), (), generator=generator))] for k in kind]
    ends: list[dict[int, tuple[int, int]]] = [{} for _ in kind]
    for i in range(1, len(kind)):
        p, ps, s = (int(v) for v in tree[1:, i])
        ends[p][turns[p][ps]] = (i, turns[i][s])
        ends[i][turns[i][s]] = (p, turns[p][ps])
    root = int(torch.randint(len(kind), (), generator=generator))
    out = torch.full_like(tree, -1)
    waiting, count = [(root, -1, -1, -1)], 0
    while waiting:
        at = int(torch.randint(len(waiting), (), generator=generator))
        v, up, up_slot, slot = waiting.pop(at)
        out[:, count] = torch.tensor([kind[v], up, up_slot, slot])
        waiting += [(w, count, s, t) for s, (w, t) in ends[v].items() if s != slot]
        count += 1
    return out


def trees(count: int, width: int, seed: int, *, most: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(1, (most or width) + 1, (count,), generator=generator).tolist()
    return torch.stack([random_tree(size, width, generator) for size in sizes])


def test_relabelled_trees_have_one_form_and_the_map_leads_there():
    generator = torch.Generator().manual_seed(1)
    given = trees(300, 9, 0)
    form = canonical_trees(given, kinds())
    other = canonical_trees(torch.stack([shuffled(t, generator) for t in given]), kinds())
    assert torch.equal(form.trees, other.trees)
    for tree, canonical, order, slot_map in zip(given, form.trees, form.order, form.slot_map, strict=True):
        for i in range(1, int((tree[0] >= 0).sum())):
            p, ps, s = (int(v) for v in tree[1:, i])
            one, two = int(order[i]), int(order[p])
            joined = {(one, int(slot_map[i, s])), (two, int(slot_map[p, ps]))}
            low = max(one, two)
            assert joined == {(low, int(canonical[3, low])), (int(canonical[1, low]), int(canonical[2, low]))}
    assert torch.equal(canonical_trees(form.trees, kinds()).trees, form.trees)


@pytest.mark.parametrize("seed", range(3))
def test_forms_are_equal_exactly_where_networkx_finds_an_isomorphism(seed):
    given = trees(60, 5, seed, most=5)
    form = canonical_trees(given, kinds()).trees
    graphs = [as_graph(t) for t in given]
    found = 0
    for a in range(len(given)):
        for b in range(a):
            same = isomorphic(graphs[a], graphs[b])
            found += same
            assert torch.equal(form[a], form[b]) == same
    assert found > 0


def test_marked_slots_are_equal_exactly_where_an_isomorphism_maps_them():
    pairs = 0
    for tree in trees(25, 6, 4):
        taken = {(int(tree[1, i]), int(tree[2, i])) for i in range(1, 6) if tree[0, i] >= 0}
        taken |= {(i, int(tree[3, i])) for i in range(1, 6) if tree[0, i] >= 0}
        slots = [(i, s) for i in range(6) if tree[0, i] >= 0 for s in range(SIZES[int(tree[0, i])])]
        slots = [m for m in slots if m not in taken]
        if len(slots) < 2:
            continue
        form = canonical_trees(tree[None].repeat(len(slots), 1, 1), kinds(), torch.tensor(slots))
        rows = torch.cat([form.trees.flatten(1), form.marks], dim=1)
        for a in range(len(slots)):
            for b in range(a):
                same = isomorphic(as_graph(tree, slots[a]), as_graph(tree, slots[b]))
                pairs += same
                assert torch.equal(rows[a], rows[b]) == same
    assert pairs > 3


@pytest.mark.parametrize("shares", [1, 3])
def test_numba_equals_the_definition(monkeypatch, shares):
    monkeypatch.setattr("icml_kernels.flows.canonical_trees.cpu.threads", lambda: shares)
    monkeypatch.setattr("icml_kernels.flows.canonical_trees.cpu.ALONE", 0)
    given = trees(80, 12, 5)
    marks = torch.full((80, 2), -1)
    marks[::2] = 0
    found = canonical_trees(given, kinds(), marks)
    with use_route("reference"):
        expected = canonical_trees(given, kinds(), marks)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_unchecked_trees_have_the_same_form():
    given = trees(30, 6, 2)
    one, other = canonical_trees(given, kinds()), canonical_trees(given, kinds(), check=False)
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("route", ["auto", "reference"])
def test_no_tree_and_no_block(route):
    with use_route(route):
        assert canonical_trees(torch.zeros(0, 4, 3, dtype=torch.int64), kinds()).trees.shape == (0, 4, 3)
        empty = torch.full((1, 4, 3), -1)
        assert torch.equal(canonical_trees(empty, kinds()).trees, empty)


def test_raw_operators_are_well_formed():
    assert check_raw_ops(canonical_trees, (trees(3, 4, 0), kinds()), order=0) == {"icml::canonical_trees"}


def test_bad_arguments_are_named():
    tree = trees(1, 4, 7)
    with pytest.raises(TypeError, match=r"trees has dtype torch.int32"):
        canonical_trees(tree.int(), kinds())
    with pytest.raises(ValueError, match="kind 9; there are 5 kinds"):
        canonical_trees(torch.full((1, 4, 1), 9), kinds())
    wrong = torch.tensor([[[1, 1], [-1, 1], [-1, 0], [-1, 0]]])
    with pytest.raises(ValueError, match="tree 0, node 1: parent 1"):
        canonical_trees(wrong, kinds())
    wrong[0, 1, 1], wrong[0, 2, 1] = 0, 2
    with pytest.raises(ValueError, match="its slot 2"):
        canonical_trees(wrong, kinds())
