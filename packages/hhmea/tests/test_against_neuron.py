"""The simulator against NEURON: the same tree, the same channels, the same order of operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_hhmea import Cell, ElectrodeArray, ExtracellularPattern, IClamp, Waveform, simulate
from icml_hhmea.morphology import discretise
from icml_hhmea.swc import read_swc

neuron = pytest.importorskip("neuron")
DT, TIME = 0.025, 10.0


@pytest.fixture
def h():
    from neuron import h

    h.load_file("stdrun.hoc")
    h.celsius = 6.3
    h.dt = DT
    h.steps_per_ms = 1 / DT
    h.secondorder = 0
    h.cvode_active(0)
    yield h
    for section in list(h.allsec()):
        h.delete_section(sec=section)


def branched(h) -> list:
    """A soma, a cable that divides in two, and a branch in the middle of the soma."""
    shapes = {
        "soma": (30, 25, 3),
        "trunk": (120, 3, 7),
        "left": (90, 1.5, 5),
        "right": (150, 1.0, 5),
        "side": (60, 2, 3),
    }
    sections = []
    for name, (length, diameter, segments) in shapes.items():
        s = h.Section(name=name)
        s.L, s.diam, s.nseg, s.Ra, s.cm = length, diameter, segments, 80.0, 1.0
        s.insert("hh")
        h.usetable_hh = 0
        sections.append(s)
    soma, trunk, left, right, side = sections
    trunk.connect(soma(1))
    left.connect(trunk(1))
    right.connect(trunk(1))
    side.connect(soma(0.5))
    return sections


def run_neuron(h, sections, stimulus) -> np.ndarray:
    vectors = [h.Vector().record(segment._ref_v) for s in sections for segment in s]
    h.finitialize(-65)
    while h.t < TIME - DT / 2:
        stimulus(h)
        h.fadvance()
    return np.stack([np.asarray(v.to_python()) for v in vectors])


def test_voltages_of_a_branched_cell_are_neurons_to_1e_8_mv(h):
    sections = branched(h)
    clamp = h.IClamp(sections[0](0.5))
    clamp.delay, clamp.dur, clamp.amp = 1.0, 2.0, 1.2
    expected = run_neuron(h, sections, lambda h: None)
    cell = Cell.from_neuron(sections[3]).double()
    nodes = np.flatnonzero(cell.morphology.area > 0)
    order = np.argsort(cell.morphology.section[nodes], kind="stable")
    # Sections are in breadth-first order from the root; NEURON's list is in the order of creation.
    names = ["soma", "trunk", "side", "left", "right"]
    middle = int(np.flatnonzero((cell.morphology.section == 0) & (cell.morphology.area > 0))[1])
    found = (
        simulate(cell, None, IClamp(middle, 1.2, 1.0, 2.0), TIME, DT, record=nodes[order].tolist())
        .v[0]
        .T.detach()
        .numpy()
    )
    first = {s.name(): sum(x.nseg for x in sections[:k]) for k, s in enumerate(sections)}
    size = {s.name(): s.nseg for s in sections}
    rows = np.concatenate([np.arange(first[n], first[n] + size[n]) for n in _order(cell, names)])
    assert expected.max() > 20
    assert np.abs(found - expected[rows]).max() < 1e-8


def _order(cell, names) -> list[str]:
    """Names of the sections in the order of the cell's numbers."""
    regions = [
        cell.regions[int(cell.region[np.flatnonzero(cell.morphology.section == k)[-1]])] for k in range(5)
    ]
    assert sorted(regions) == sorted(names)
    return regions


def test_an_outside_field_acts_as_neurons_extracellular_mechanism(h):
    """e_extracellular of every segment, driven in the middle of each step, gives the same voltages."""
    sections = branched(h)
    for s in sections:
        s.insert("extracellular")
        for segment in s:
            segment.xraxial[0] = segment.xraxial[1] = 1e9
            segment.xg[0] = segment.xg[1] = 1e9
            segment.xc[0] = segment.xc[1] = 0
    cell = Cell.from_neuron(sections[0]).double()
    theta = cell.theta()
    array = ElectrodeArray(torch.tensor([[60.0, 20.0, 15.0]]), source="point", images=False)
    matrix = array.matrix(cell.segments(theta), 0.3)[0, 0].detach()
    wave = Waveform.biphasic(phase=1.0, delay=1.0)
    amplitude = -25.0
    samples = wave.samples(round(TIME / DT), DT).numpy()
    names = [s.name() for s in sections]
    order = _order(cell, names)
    nodes = [np.flatnonzero((cell.morphology.section == k) & (cell.morphology.area > 0)) for k in range(5)]
    place = {name: nodes[k] for k, name in enumerate(order)}

    def stimulus(h) -> None:
        step = round(h.t / DT)
        for s in sections:
            for segment, node in zip(s, place[s.name()], strict=True):
                segment.e_extracellular = 1e3 * float(matrix[node]) * amplitude * samples[step]

    expected = run_neuron(h, sections, stimulus)
    stim = ExtracellularPattern(torch.tensor([amplitude]), wave)
    cell.sigma = lambda theta: theta.new_full((len(theta),), 0.3)
    rows = np.concatenate([place[s.name()] for s in sections]).tolist()
    found = simulate(cell, None, stim, TIME, DT, record=rows, electrodes=array).v[0].T.detach().numpy()
    joints = np.flatnonzero(cell.morphology.area == 0)
    assert len(joints) == 1
    assert np.abs(expected - expected[:, :1]).max() > 5
    assert np.abs(found - expected).max() < 1e-4


def test_areas_and_resistances_of_a_file_are_neurons(h, tmp_path):
    """Two points of 2.0 and 0.2 µm, and a tree with a soma of one point."""
    h.load_file("import3d.hoc")
    text = "1 1 0 0 0 5 -1\n2 3 5 0 0 1 1\n3 3 40 0 0 0.8 2\n4 3 80 10 0 0.5 3\n5 3 70 -30 0 0.4 3\n"
    path = tmp_path / "cell.swc"
    path.write_text(text)
    reader = h.Import3d_SWC_read()
    reader.input(str(path))
    h.Import3d_GUI(reader, 0).instantiate(None)
    theirs = sorted((round(s.L, 9), sum(seg.area() for seg in s)) for s in h.allsec())
    ours = discretise(read_swc(path), counts=[1] * 4)
    mine = sorted(
        (
            round(
                float(
                    np.linalg.norm(ours.end[ours.section == k] - ours.start[ours.section == k], axis=1).max()
                ),
                9,
            ),
            float(ours.area[ours.section == k].sum()),
        )
        for k in range(4)
    )
    for (length, area), (other_length, other_area) in zip(mine, theirs, strict=True):
        assert length == pytest.approx(other_length, abs=1e-5)
        assert area == pytest.approx(other_area, rel=1e-7)


def test_the_cone_of_a_two_point_section_is_neurons(h):
    s = h.Section(name="cone")
    s.pt3dadd(0, 0, 0, 4.0)
    s.pt3dadd(30, 0, 0, 0.4)
    for count in (1, 3, 5):
        s.nseg = count
        cell = Cell.from_neuron(s, conductances={})
        area = [segment.area() for segment in s]
        np.testing.assert_allclose(cell.morphology.area, area, rtol=1e-9)
        ri = [segment.ri() for segment in s][1:]
        half = cell.morphology.half_own[1:] + cell.morphology.half_parent[1:]
        np.testing.assert_allclose(0.01 * s.Ra * half, ri, rtol=1e-9)
