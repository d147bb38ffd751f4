"""Morphologies against closed forms, NEURON's importer, and each other."""

from __future__ import annotations

import itertools
import math
import time

import numpy as np
import pytest
import torch
from icml_hhmea import Cell, IClamp, read_swc, simulate
from icml_hhmea.morphology import Section, discretise, reorder

SHIFT = np.array([30.0, 0, 0, 0])
TREE = """# a comment
1 1 0 0 0 5 -1
2 3 8 0 0 1 1
3 3 40 0 0 0.8 2
4 3 80 10 0 0.5 3
5 3 70 -30 0 0.4 3
6 2 -8 0 0 0.6 1
7 2 -60 0 0 0.5 6
"""
SOMATA = {
    "one point": "1 1 0 0 0 6 -1\n2 3 9 0 0 1 1\n3 3 60 0 0 1 2\n4 2 -9 0 0 1 1\n5 2 -50 0 0 1 4\n",
    "three points": "1 1 0 0 0 6 -1\n2 1 0 -6 0 6 1\n3 1 0 6 0 6 1\n4 3 9 0 0 1 1\n5 3 60 0 0 1 4\n",
    "two points": "1 1 0 0 0 6 -1\n2 1 8 0 0 5 1\n3 3 20 0 0 1 2\n4 3 60 0 0 1 3\n",
    "chain": "1 1 0 0 0 4 -1\n2 1 5 0 0 6 1\n3 1 10 0 0 4 2\n"
    "4 3 20 0 0 1 3\n5 2 5 20 0 1 2\n6 2 5 50 0 1 5\n",
    "branched": "1 1 0 0 0 5 -1\n2 1 6 0 0 4 1\n"
    "3 1 -6 0 0 4 1\n4 1 0 6 0 3 1\n5 3 30 0 0 1 2\n6 3 0 30 0 1 4\n",
}


def write(tmp_path, text, name="cell.swc"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_cone_has_the_area_and_resistance_of_the_closed_form():
    points = np.array([[0, 0, 0, 2.0], [30, 0, 0, 0.2]])
    for count in (1, 3, 7):
        found = discretise([Section(points)], counts=[count])
        assert found.area.sum() == pytest.approx(math.pi * 2.2 * math.hypot(30, 1.8), rel=1e-12)
        halves = found.half_own.sum() + found.half_parent.sum()
        # Half of the first compartment lies before the first node; half of the last behind the last.
        first, last = found.half_own[0], 0.0
        whole = 30 / (math.pi * 2.0 * 0.2)
        edge = points[1, 3] + (2.0 - 0.2) * (1 / (2 * count))
        last = 30 / (2 * count) / (math.pi * 0.2 * edge)
        assert halves + last == pytest.approx(whole, rel=1e-12)
        assert first == pytest.approx(
            30 / (2 * count) / (math.pi * 2.0 * (2.0 - 1.8 / (2 * count))), rel=1e-12
        )


def test_branches_meet_in_a_node_without_area_and_single_ones_do_not():
    line = np.array([[0, 0, 0, 1.0], [30, 0, 0, 1.0]])
    one = discretise([Section(line), Section(line + SHIFT, 0)], max_len=10)
    assert (one.area > 0).all()
    assert one.nodes == 6
    two = discretise([Section(line), *[Section(line + SHIFT, 0)] * 2], max_len=10)
    (joint,) = np.flatnonzero(two.area == 0)
    assert (two.parent == joint).sum() == 2
    assert (two.half_parent[two.parent == joint] == 0).all()
    middle = discretise([Section(line), Section(line, 0, 0.5)], max_len=10)
    child = np.flatnonzero(middle.section == 1)[0]
    assert middle.parent[child] == 1
    assert middle.half_parent[child] == 0


def test_orders_are_topological_and_cycles_are_named():
    rng = np.random.default_rng(0)
    for _ in range(20):
        parents = [-1] + [int(rng.integers(k)) for k in range(1, 9)]
        shuffle = rng.permutation(9)
        place = np.argsort(shuffle)
        mixed = [int(place[parents[old]]) if parents[old] >= 0 else -1 for old in shuffle]
        order = reorder(mixed).tolist()
        seen = set()
        for node in order:
            assert mixed[node] in seen | {-1}
            seen.add(node)
    with pytest.raises(ValueError, match="form a cycle"):
        reorder([1, 2, 0])
    with pytest.raises(ValueError, match="parents must lie in -1 to 1"):
        reorder([-1, 5])


@pytest.mark.parametrize("rule", ["neuron", "graph"])
@pytest.mark.parametrize("layout", SOMATA)
def test_the_order_of_rows_does_not_matter(layout, rule, tmp_path):
    lines = SOMATA[layout].splitlines()
    expected = discretise(read_swc(write(tmp_path, SOMATA[layout]), soma=rule)).fingerprint()
    rng = np.random.default_rng(1)
    orders = list(itertools.permutations(range(len(lines))))
    for k in rng.permutation(len(orders))[:60]:
        text = "\n".join(lines[i] for i in orders[k])
        assert discretise(read_swc(write(tmp_path, text), soma=rule)).fingerprint() == expected


def test_units_and_float_ids_are_read(tmp_path):
    nano = "\n".join(
        " ".join([f"{r[0]}.0", r[1], *(str(1e3 * float(v)) for v in r[2:6]), f"{r[6]}.0"])
        for r in (line.split() for line in TREE.splitlines()[1:])
    )
    a = Cell.from_swc(write(tmp_path, TREE)).double()
    with pytest.warns(UserWarning, match="taken as nanometres"):
        b = Cell.from_swc(write(tmp_path, nano, "n.swc")).double()
    c = Cell.from_swc(write(tmp_path, nano, "n.swc"), units="nm").double()
    runs = [simulate(x, None, IClamp(0, 0.3, 0.5, 1.0), 3.0, 0.025, record=[0, 5]).v for x in (a, b, c)]
    torch.testing.assert_close(runs[1], runs[0], rtol=0, atol=1e-9)
    torch.testing.assert_close(runs[2], runs[0], rtol=0, atol=1e-9)
    text = discretise(read_swc(tmp_path / "cell.swc")).describe()
    assert "soma: 1 sections, 10 µm, 314.159 µm2" in text


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("1 1 0 0 0 5 -1\n2 3 1 0 0 0 1\n", "line 2: the radius 0.0 must be positive"),
        ("1 1 0 0 0 5 -1\n2 3 1 0 0 1 7\n", "point 2 has the parent 7"),
        ("1 1 0 0 0 5 2\n2 3 1 0 0 1 1\n3 3 1 0 0 1 -1\n", "form a cycle"),
        ("1 1 0 0 0 5 -1\n2 3 1 0 0 1 -1\n", "2 points without a parent"),
        ("1 1 0 0 0 5\n", "line 1 has 6 fields"),
        ("1 1 0 0 nan 5 -1\n", "not finite"),
        ("1.5 1 0 0 0 5 -1\n", "whole numbers"),
        ("1 1 0 0 0 x -1\n", "could not convert"),
        ("1 1 0 0 0 5 -1\n1 1 0 0 0 5 -1\n", "stands there twice"),
        ("# nothing\n", "has no points"),
    ],
)
def test_bad_files_are_named_with_their_line(text, match, tmp_path):
    with pytest.raises(ValueError, match=match):
        read_swc(write(tmp_path, text))


def test_bad_sections_are_named(tmp_path):
    line = np.array([[0, 0, 0, 1.0], [30, 0, 0, 1.0]])
    with pytest.raises(ValueError, match="does not stand before it"):
        discretise([Section(line, 1), Section(line)])
    with pytest.raises(ValueError, match="radii must be positive"):
        discretise([Section(line * [1, 1, 1, -1])])
    with pytest.raises(ValueError, match="has length 0"):
        discretise([Section(line * [0, 1, 1, 1])])
    with pytest.raises(ValueError, match="at least one section"):
        discretise([])
    with pytest.raises(ValueError, match="must be positive"):
        discretise([Section(line)], max_len=0)
    with pytest.raises(FileNotFoundError):
        read_swc(tmp_path / "none.swc")
    with pytest.raises(ValueError, match="units='cm'"):
        read_swc(tmp_path / "none.swc", units="cm")
    morphology = discretise([Section(line)])
    with pytest.raises(ValueError, match="unknown region 'soma'"):
        Cell(morphology, conductances={"na": {"soma": 1.0}})
    with pytest.raises(ValueError, match="no channel 'ka'"):
        Cell(morphology, conductances={"ka": 1.0})
    with pytest.raises(ValueError, match="unknown parameter 'na.soma'"):
        Cell(morphology, free={"na.soma": (1.0, 2.0)})


@pytest.mark.parametrize("seed", range(12))
def test_cells_of_random_files_are_one_tree(seed, tmp_path):
    """Also where points coincide, at the root too, and types change: one root, and no link is lost."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(3, 30))
    rows, places = [], []
    for k in range(n):
        parent = -1 if k == 0 else int(rng.integers(max(0, k - 4), k))
        same = k > 0 and rng.random() < 0.3
        place = places[parent] if same else rng.normal(size=3) * 30
        places.append(place)
        kind = 2 + int(rng.integers(2))
        rows.append(f"{k + 1} {kind} {place[0]} {place[1]} {place[2]} 1.0 {parent + 1 if k else -1}")
    links = [np.linalg.norm(places[k] - places[int(r.split()[-1]) - 1]) for k, r in enumerate(rows) if k]
    (tmp_path / "a.swc").write_text("\n".join(rows))
    if sum(links) == 0:
        return
    sections = read_swc(tmp_path / "a.swc", units="um")
    assert [s.parent for s in sections].count(-1) == 1
    assert sum(s.length for s in sections) == pytest.approx(sum(links), rel=1e-9)
    assert (discretise(sections, max_len=50.0).parent == -1).sum() == 1


def test_a_root_whose_first_child_coincides_with_it_stays_one_cell(tmp_path):
    text = "1 2 0 0 0 1 -1\n2 2 0 0 0 1 1\n3 2 10 0 0 1 2\n4 2 -10 0 0 1 2\n5 2 0 10 0 1 1\n"
    (tmp_path / "a.swc").write_text(text)
    assert [s.parent for s in read_swc(tmp_path / "a.swc", units="um")].count(-1) == 1
    pair = [Section(np.array([[0, 0, 0, 1.0], [5, 0, 0, 1.0]]))] * 2
    with pytest.raises(ValueError, match="only the first may have none"):
        discretise(pair)


def test_long_chains_are_ordered_in_linear_time():
    n = 200_000
    begin = time.perf_counter()
    order = reorder([*range(1, n), -1])
    assert order[0] == n - 1
    assert time.perf_counter() - begin < 5
    with pytest.raises(ValueError, match="own ancestor"):
        reorder([1, 2, 1])
