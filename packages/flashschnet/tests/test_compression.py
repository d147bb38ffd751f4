import dataclasses

import pytest
import torch
from icml_flashschnet.compact_chain import compact_chain
from icml_flashschnet.compression import TableCompressor, compress
from icml_flashschnet.filter_table import FilterTable
from icml_flashschnet.potential import SumPotential
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig

CONFIG = SchNetConfig(n_types=6, hidden=24, filters=16, n_rbf=16, r_cut=12.0, layers=2, out=(8,))


def model(dtype=torch.float64):
    return FlashSchNet(CONFIG, seed=2, kernel="torch").to(dtype)


def test_forces_converge_with_the_tolerance():
    exact = model()
    pos, types = compact_chain(50, n_types=6)
    _, forces = exact.energy_forces(pos, types)
    errors = []
    for tol in (1e-3, 1e-5, 1e-7, 1e-9):
        fast, report = compress(exact, tol=tol)
        assert report.filter_error <= tol
        assert report.slope_error <= 100 * tol
        _, got = fast.energy_forces(pos, types)
        errors.append(float((got - forces).abs().max() / forces.abs().max()))
    assert errors == sorted(errors, reverse=True)
    assert errors[1] < 1e-3
    assert errors[3] < 1e-7


def test_the_report_says_what_was_measured():
    fast, report = compress(model(torch.float32), tol=1e-5)
    assert len(report.layers) == CONFIG.layers
    assert report.table_bytes == sum(t.numel() * t.element_size() for t in fast.buffers())
    for layer, entry in zip(fast.interactions, report.layers, strict=True):
        assert isinstance(layer.filter, FilterTable)
        assert layer.filter.intervals == entry.intervals
        assert layer.filter.table.dtype == torch.float32


def test_each_doubling_was_needed():
    """The grid is the coarsest: half as many intervals miss the tolerance."""
    exact = model()
    fast, report = compress(exact, tol=1e-6)
    for layer, original, entry in zip(fast.interactions, exact.interactions, report.layers, strict=True):
        r = torch.linspace(0, 12 - 1e-6, 20_011, dtype=torch.float64)
        with torch.no_grad():
            values, slopes = original.filter.with_slope(r)
        coarse = FilterTable.of(original.filter, entry.intervals // 2).with_slope(r)
        fine = layer.filter.with_slope(r)
        relative = [
            [float((a - b).abs().max() / b.abs().max()) for a, b in zip(t, (values, slopes), strict=True)]
            for t in (coarse, fine)
        ]
        assert relative[0][0] > 0.95e-6 or relative[0][1] > 0.95e-4
        assert relative[1][0] < 1.05e-6
        assert relative[1][1] < 1.05e-4


def test_the_original_is_left_as_it_is_and_the_copy_wants_no_gradient():
    exact = model()
    before = {name: value.clone() for name, value in exact.state_dict().items()}
    fast, _ = compress(exact)
    assert all(torch.equal(before[name], value) for name, value in exact.state_dict().items())
    assert all(p.requires_grad for p in exact.parameters())
    assert not any(p.requires_grad for p in fast.parameters())


def test_a_sum_is_compressed_where_it_holds_a_network():
    exact = SumPotential(model(), model())
    fast, report = compress(exact)
    assert len(report.layers) == 2 * CONFIG.layers
    pos, types = compact_chain(20, n_types=6)
    energy, forces = fast.energy_forces(pos, types)
    expected = exact.energy_forces(pos, types)
    torch.testing.assert_close(energy, expected[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(forces, expected[1], rtol=1e-3, atol=1e-4)


def test_a_solution_verifies_and_a_spoilt_one_does_not():
    exact = model(torch.float32)
    solution = TableCompressor(tol=1e-6).solve(exact)
    solution.verify(exact)
    solution.model.interactions[1].filter.table[20, 0, 3] += 1e-3
    with pytest.raises(ValueError, match=r"layer 1: filters are off by"):
        solution.verify(exact)
    other = TableCompressor(tol=1e-6).solve(exact)
    with torch.no_grad():
        other.model.readout[0].bias += 1e-3
    with pytest.raises(ValueError, match=r"weight readout.0.bias differs"):
        other.verify(exact)
    loose = TableCompressor(tol=1e-3).solve(exact)
    with pytest.raises(ValueError, match="off by"):
        dataclasses.replace(loose, report=solution.report).verify(exact)


def test_impossible_requests_are_refused():
    exact = model(torch.float32)
    with pytest.raises(ValueError, match=r"no table reaches tol=1e-14.*torch.float32; raise tol"):
        compress(exact, tol=1e-14)
    with pytest.raises(ValueError, match="between 0 and 1, got 0"):
        compress(exact, tol=0)
    with pytest.raises(ValueError, match="filter must be 'table', got 'lowrank'"):
        compress(exact, "lowrank")
    with pytest.raises(ValueError, match="already compressed"):
        compress(compress(exact)[0])
    with pytest.raises(TypeError, match="takes a FlashSchNet, or a sum that holds one; got Linear"):
        compress(torch.nn.Linear(2, 2))
