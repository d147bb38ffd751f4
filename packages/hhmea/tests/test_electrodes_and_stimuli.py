"""Fields of electrodes against LFPykit and closed forms; pulses, charges and amplitudes."""

from __future__ import annotations

import math

import lfpykit
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_hhmea import RGC, ChargeLimit, ElectrodeArray, ExtracellularPattern, IClamp, Waveform, simulate
from icml_hhmea.electrodes import Segments
from icml_hhmea.evaluation import scores
from icml_hhmea.simulation import activating


def random_segments(n: int, seed: int) -> Segments:
    rng = np.random.default_rng(seed)
    start = rng.uniform(-80, 80, (1, n, 3))
    end = start + rng.normal(size=(1, n, 3)) * 15
    radius = rng.uniform(0.3, 3, (1, n))
    return Segments(*(torch.as_tensor(a) for a in (start, end, radius)))


@pytest.mark.parametrize("seed", range(4))
def test_line_sources_are_lfpykits(seed):
    segments = random_segments(40, seed)
    rng = np.random.default_rng(100 + seed)
    places = rng.uniform(-100, 100, (30, 3))
    a, b, r = (t[0].numpy() for t in (segments.start, segments.end, segments.radius))
    geometry = lfpykit.CellGeometry(*(np.stack([a[:, k], b[:, k]], 1) for k in range(3)), d=2 * r)
    theirs = lfpykit.LineSourcePotential(geometry, *places.T, sigma=0.3).get_transformation_matrix()
    with _quiet():
        ours = ElectrodeArray(torch.as_tensor(places), images=False).matrix(segments, 0.3)[0].numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_anisotropic_media_are_lfpykits():
    segments = random_segments(10, 3)
    places = np.random.default_rng(9).uniform(-200, 200, (8, 3))
    a, b, r = (t[0].numpy() for t in (segments.start, segments.end, segments.radius))
    geometry = lfpykit.CellGeometry(*(np.stack([a[:, k], b[:, k]], 1) for k in range(3)), d=2 * r)
    sigma = [0.3, 0.3, 0.45]
    electrode = lfpykit.RecExtElectrode(
        geometry, sigma=sigma, x=places[:, 0], y=places[:, 1], z=places[:, 2], method="linesource"
    )
    ours = ElectrodeArray(torch.as_tensor(places), images=False, anisotropy=(1.0, 1.0, 1.5)).matrix(
        segments, 0.3
    )
    np.testing.assert_allclose(ours[0].numpy(), electrode.get_transformation_matrix(), rtol=1e-6)


def test_far_away_all_sources_are_a_point_and_the_plane_doubles_it():
    segments = random_segments(6, 1)
    middle = ((segments.start + segments.end) / 2)[0]
    place = torch.tensor([[3000.0, 2000.0, 0.0]])
    distance = (place.double() - middle).norm(dim=1)
    for source in ("line", "point", "disc"):
        found = ElectrodeArray(place, source=source).matrix(segments, 0.1)[0, 0]
        torch.testing.assert_close(found, 1 / (2 * math.pi * 0.1 * distance), rtol=1e-3, atol=0)


def test_an_electrode_inside_a_compartment_is_clamped_with_a_warning():
    segments = Segments(
        torch.tensor([[[0.0, 0, 0]]]).double(),
        torch.tensor([[[10.0, 0, 0]]]).double(),
        torch.tensor([[2.0]]).double(),
    )
    inside, surface = (
        ElectrodeArray(torch.tensor([[5.0, 0.5, 0]])),
        ElectrodeArray(torch.tensor([[5.0, 2.0, 0]])),
    )
    with pytest.warns(UserWarning, match="1 pairs of an electrode and a compartment"):
        found = inside.matrix(segments, 0.1)
    torch.testing.assert_close(found, surface.matrix(segments, 0.1))


def test_hexagons_have_equal_neighbours():
    array = ElectrodeArray.hexagon(4, 30.0)
    assert len(array) == 61
    distance = torch.cdist(array.xyz, array.xyz) + 1e9 * torch.eye(61).double()
    torch.testing.assert_close(distance.min(1).values, torch.full((61,), 30.0).double())


def test_stimulation_and_recording_are_reciprocal():
    """One matrix for both: the potential at an electrode from a current in a compartment equals the potential
    there from that current at the electrode, bit for bit."""
    cell, array = RGC(axon_length=60.0).double(), ElectrodeArray.hexagon(1)
    theta = cell.bounds.center()[None]
    matrix = array.matrix(cell.segments(theta), cell.sigma(theta))[0]
    subset = array.subset([2, 5]).matrix(cell.segments(theta), cell.sigma(theta))[0]
    assert torch.equal(subset, matrix[[2, 5]])
    current = torch.zeros(cell.nodes, 1).double()
    current[7] = 0.5
    assert torch.equal((matrix @ current)[3, 0], matrix[3, 7] * 0.5)


def test_membrane_currents_sum_to_what_is_injected():
    cell, array = RGC(axon_length=200.0).double(), ElectrodeArray.hexagon(2)
    found = simulate(cell, None, IClamp("soma", 2.0, 0.1, 0.3), 1.0, 0.01, electrodes=array, currents=True)
    total = found.im[0].sum(1)
    expected = torch.where((found.t > 0.1 + 1e-9) & (found.t < 0.4 + 1e-9), 2.0, 0.0)
    torch.testing.assert_close(total, expected.double(), rtol=0, atol=1e-9)
    pulse = ExtracellularPattern(torch.full((19,), 1.0))
    outside = simulate(cell, None, pulse, 0.5, 0.01, electrodes=array, currents=True)
    assert float(outside.im.sum(2).abs().max()) < 1e-9


def test_a_uniform_potential_does_nothing():
    cell = RGC(axon_length=60.0).double()
    cable = cell.cable(cell.bounds.center()[None])
    drive = activating(cell.parent, cable.axial, torch.full((cell.nodes, 1), 37.0).double())
    assert float(drive.abs().max()) == 0.0


@settings(max_examples=40, deadline=None)
@given(st.floats(0.004, 0.05), st.floats(0.0, 0.3), st.sampled_from(["cathodic", "anodic"]))
def test_charge_does_not_depend_on_the_step(dt, delay, first):
    for wave in (Waveform.triphasic(first, 0.05, delay), Waveform.biphasic(first, 0.1, delay)):
        samples = wave.samples(math.ceil(wave.duration / dt) + 2, dt)
        assert float(samples.sum() * dt) == pytest.approx(0.0, abs=1e-12)
        assert float(samples.abs().sum() * dt) <= sum(abs(h) * d for h, d in wave.phases) + 1e-12
        assert wave.balanced


def test_the_sign_of_an_amplitude_is_that_of_the_largest_phase():
    wave = Waveform.triphasic()
    assert [round(h * 3) for h, _ in wave.phases] == [-2, 3, -1]
    assert Waveform.triphasic("anodic").phases[0][0] > 0
    assert Waveform.biphasic("cathodic").phases[0][0] == -1
    with pytest.raises(ValueError, match="neither 'cathodic' nor 'anodic'"):
        Waveform.triphasic("negative")


def test_units_of_amplitudes():
    like = torch.zeros(1, dtype=torch.float64)
    with pytest.raises(ValueError, match="need thresholds="):
        ExtracellularPattern(torch.ones(3), unit="xth").microamperes(like)
    scaled = ExtracellularPattern(torch.ones(3), unit="xth", thresholds=torch.tensor([1.0, 2.0, 3.0]))
    assert scaled.microamperes(like).tolist() == [[1.0, 2.0, 3.0]]
    with pytest.raises(ValueError, match="amplitudes are in µA, not nA"):
        ExtracellularPattern(torch.tensor([2e3])).microamperes(like)
    with pytest.raises(ValueError, match="neither 'uA' nor 'xth'"):
        ExtracellularPattern(torch.ones(3), unit="mA").microamperes(like)


def test_charge_limits_name_the_electrodes():
    limit, wave = ChargeLimit(uc_per_cm2=50.0, area_um2=100.0), Waveform.triphasic()
    # 50 µC/cm2 on 100 µm2 are 0.05 nC: 1 µA for 50 µs.
    assert limit.largest_ua(wave) == pytest.approx(1.0)
    limit.require(torch.tensor([0.9, -1.0]), wave)
    with pytest.raises(ValueError, match=r"electrodes \[1\] exceed the charge limit of 1 µA"):
        limit.require(torch.tensor([0.9, -1.1]), wave)
    with pytest.raises(ValueError, match="sum exceeds 1.5"):
        ChargeLimit(100.0, 100.0, total_ua=1.5).require(torch.tensor([0.9, -1.0]), wave)


def test_a_matrix_of_ones_own_is_taken():
    cell = RGC(axon_length=60.0)
    array = ElectrodeArray(torch.zeros(2, 3), transfer=torch.rand(2, cell.nodes))
    theta = cell.theta()
    assert torch.equal(array.matrix(cell.segments(theta), 0.1)[0], array.transfer)
    with pytest.raises(ValueError, match="transfer has 3 nodes"):
        ElectrodeArray(torch.zeros(2, 3), transfer=torch.rand(2, 3)).matrix(cell.segments(theta), 0.1)


def test_bad_arrays_and_scores():
    with pytest.raises(ValueError, match="expected"):
        ElectrodeArray(torch.zeros(0, 3))
    with pytest.raises(ValueError, match="must be finite"):
        ElectrodeArray(torch.full((2, 3), torch.nan))
    with pytest.raises(ValueError, match="sigma must be positive"):
        ElectrodeArray.hexagon(1).matrix(random_segments(3, 0), -0.1)
    p, level = torch.tensor([0.9, 0.2, 0.6, 0.1]), torch.tensor([-0.5, 0.5, -0.1, 0.1])
    found = scores(p, level, torch.tensor([1.0, 0.0, 0.0, 0.0]))
    assert found["accuracy"] == 0.75
    assert found["balanced_accuracy"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["accuracy_near_threshold"] == 0.5


def _quiet():
    import contextlib
    import warnings

    @contextlib.contextmanager
    def quiet():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

    return quiet()
