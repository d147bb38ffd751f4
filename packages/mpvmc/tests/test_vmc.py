"""Local energies, gradients, solvers and whole runs against exact answers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_mpvmc import (
    RBM,
    VMC,
    AmplitudePhase,
    EnumeratedSampler,
    GroundState,
    Metropolis,
    ResCNN,
    complex_rbm,
    exact,
    local_energies,
    log_derivatives,
    measure,
    reconfigure,
)
from icml_mpvmc.hamiltonian import enumerate_spins
from icml_mpvmc.hamiltonians import TFIM, Heisenberg, PauliSum, from_molecule, from_scipy
from icml_mpvmc.policy import next_precision, safety_check
from icml_mpvmc.reconfiguration import (
    centred_rows,
    gradient,
    reconfigure_machine,
    smooth_pseudo_inverse,
    solve_shifted,
)

COMPLEX = PauliSum([("XYI", 0.7), ("IZZ", 1.0), ("YIX", -0.3), ("XII", 0.5), ("IYZ", 0.4)])


def small(H, kind="rbm", seed=1):
    if kind == "rbm":
        return RBM(H.n_spins, 2, std=0.4, seed=seed)
    if kind == "complex":
        return complex_rbm(H.n_spins, 1, std=0.4, seed=seed)
    return ResCNN((H.n_spins,), 3, 1, seed=seed)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("kind", ["rbm", "complex", "cnn"])
@pytest.mark.parametrize(
    "H",
    [TFIM(5), Heisenberg(4), COMPLEX, from_scipy(TFIM((2, 2)).to_sparse())],
    ids=["tfim", "heisenberg", "complex", "scipy"],
)
def test_local_energies_are_rows_of_the_matrix(H, kind, compiled):
    model = small(H, kind)
    x = enumerate_spins(H.n_spins, H.sectors)
    psi = torch.exp(model(x.double())).detach().numpy()
    expected = (H.to_sparse(x) @ psi) / psi
    for chunk in (1, 7, 10_000):
        found = local_energies(model, H, x, chunk=chunk, compiled=compiled, max_bytes=2000).numpy()
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)


def test_no_pass_is_larger_than_the_chunk_and_zeros_are_not_evaluated():
    seen = []

    class Spy(RBM):
        def forward(self, x):
            seen.append(len(x))
            return super().forward(x)

    model, H = Spy(12, 1), Heisenberg(12)
    x = torch.tensor([[1, -1] * 6, [1] * 6 + [-1] * 6], dtype=torch.int8)
    local_energies(model, H, x, chunk=5)
    assert max(seen) <= 5
    assert sum(seen) == 2 + 12 + 2  # connected: every bond of the first, two of the second


def test_memory_does_not_grow_with_the_samples():
    from icml_kernels.memory import peak_bytes

    H, model = TFIM(6), RBM(6, 1, std=0.2)
    sampler = Metropolis.for_hamiltonian(H, model, n_chains=500, dtype="f32")
    few, many = (peak_bytes(lambda n=n: measure(model, H, sampler, n, batch=1000)) for n in (2000, 16_000))
    assert many <= 1.1 * few


def test_measured_energy_is_the_exact_one():
    H, model = TFIM(8), RBM(8, 1, std=0.3, seed=3)
    sampler = Metropolis.for_hamiltonian(H, model, n_chains=500, dtype="bf16", correction="reweight")
    found = measure(model, H, sampler, 40_000, discard=20)
    mean, variance = exact.energy(model, H)
    assert abs(found.mean - mean) < 4 * found.error
    assert found.variance == pytest.approx(variance, rel=0.1)
    assert found.error < 0.05


@pytest.mark.parametrize("kind", ["rbm", "complex", "cnn"])
@pytest.mark.parametrize("H", [TFIM(4), Heisenberg(4)], ids=["tfim", "heisenberg"])
def test_gradient_is_that_of_the_exact_energy(H, kind):
    """All states weighted by |ψ|² in place of samples; the energy differentiated by autograd."""
    model = small(H, kind)
    x = enumerate_spins(H.n_spins, H.sectors)
    matrix = torch.from_numpy(H.to_sparse(x).toarray())
    psi = torch.exp(model(x.double()))
    matrix = matrix.to(psi.dtype)
    energy = (psi.conj() @ (matrix @ psi)).real / (psi.conj() @ psi).real
    expected = torch.cat([g.flatten() for g in torch.autograd.grad(energy, list(model.parameters()))])
    weights = (psi.abs() ** 2 / (psi.abs() ** 2).sum()).detach()
    A, r = centred_rows(log_derivatives(model, x), local_energies(model, H, x), weights)
    torch.testing.assert_close(gradient(A, r), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(("rows", "parameters"), [(50, 12), (12, 50)])
def test_all_solvers_give_one_step(rows, parameters):
    g = torch.Generator().manual_seed(0)
    A = torch.randn(rows, parameters, generator=g, dtype=torch.float64) / math.sqrt(rows)
    r = torch.randn(rows, generator=g, dtype=torch.float64)
    expected = torch.linalg.solve(A.T @ A + 0.01 * torch.eye(parameters, dtype=torch.float64), 2 * A.T @ r)
    for method in ("auto", "dense", "gram", "cg"):
        step = reconfigure(A, r, 0.01, method)
        torch.testing.assert_close(step.direction, expected, rtol=1e-6, atol=1e-8)
        assert step.events == []
    assert reconfigure(A, r, 0.01).method == ("gram" if rows < parameters else "dense")
    if rows > parameters:
        smooth = reconfigure(A, r, 0.01, "pinv").direction
        torch.testing.assert_close(smooth, torch.linalg.solve(A.T @ A, 2 * A.T @ r), rtol=1e-5, atol=1e-7)
    with pytest.raises(ValueError, match="method='x'"):
        reconfigure(A, r, 0.01, "x")
    with pytest.raises(ValueError, match="shift=0"):
        reconfigure(A, r, 0.0)


def test_matrices_that_rounding_made_indefinite_end_no_run():
    g = torch.Generator().manual_seed(1)
    A = torch.randn(40, 8, generator=g, dtype=torch.float64).bfloat16().double()
    vectors = torch.linalg.qr(torch.randn(8, 8, generator=g, dtype=torch.float64))[0]
    values = torch.linspace(1, 8, 8, dtype=torch.float64)
    for planted, raised in ((-5e-3, True), (-10.0, False)):
        values[0] = planted
        S = vectors @ torch.diag(values) @ vectors.T
        step = solve_shifted(S, A.sum(0), 1e-3)
        assert bool(step.direction.isfinite().all())
        assert step.events
        if raised:
            assert step.shift == pytest.approx(1e-2)
            expected = torch.linalg.solve(S + 1e-2 * torch.eye(8, dtype=S.dtype), A.sum(0))
        else:
            assert step.method == "cut"
            kept = vectors[:, 1:]
            expected = kept @ ((kept.T @ A.sum(0)) / values[1:])
        torch.testing.assert_close(step.direction, expected)
    bad = solve_shifted(S * float("nan"), A.sum(0), 1e-3)
    assert bool((bad.direction == 0).all())
    assert "not finite" in bad.events[0]
    assert bool((smooth_pseudo_inverse(torch.zeros(3, 3), torch.ones(3)) == 0).all())


@pytest.mark.parametrize("solver", ["sr", "adam"])
@pytest.mark.parametrize("parameter", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["rbm", "complex"])
@pytest.mark.parametrize("H", [TFIM(3), COMPLEX], ids=["real", "complex"])
@pytest.mark.parametrize("chunk", [7, 10_000])
def test_every_combination_of_dtypes_gives_the_energy_of_float64(solver, parameter, kind, H, chunk):
    energies = []
    for dtype in (parameter, torch.float64):
        model = (
            RBM(3, 2, std=0.3, seed=2, dtype=dtype)
            if kind == "rbm"
            else complex_rbm(3, 1, std=0.3, seed=2, dtype=dtype)
        )
        sampler = Metropolis(model, 3, n_chains=16, dtype="f32", seed=1)
        vmc = VMC(H, model, sampler, solver=solver, n_samples=64, chunk=chunk, lr=0.01)
        vmc.run(2)
        assert next(model.parameters()).dtype == dtype
        energies.append(vmc.history.energy)
    np.testing.assert_allclose(energies[0], energies[1], atol=1e-5)


def test_chunks_change_nothing_that_is_reported():
    H = TFIM(6)
    rows = []
    for chunk in (1, 7, 8, 10_000):
        model = small(H, "cnn")
        sampler = Metropolis.for_hamiltonian(H, model, n_chains=8, dtype="f32", seed=3)
        vmc = VMC(H, model, sampler, n_samples=64, chunk=chunk, lr=0.01)
        vmc.run(2)
        rows.append([getattr(vmc.history, n) for n in ("energy", "err", "r_hat", "tau")])
    for other in rows[1:]:
        np.testing.assert_allclose(other, rows[0], rtol=1e-9)


def build(dtype="bf16", n_chains=16, solver="sr", correction=None):
    H, model = TFIM(6), RBM(6, 1, std=0.2, seed=4)
    sampler = Metropolis.for_hamiltonian(
        H, model, n_chains=n_chains, dtype=dtype, seed=5, correction=correction
    )
    return VMC(H, model, sampler, lr=0.05, solver=solver, n_samples=10 * n_chains)


@pytest.mark.parametrize(("solver", "correction"), [("sr", None), ("adam", "reweight"), ("sr", "delayed")])
def test_twenty_iterations_are_ten_and_ten_bit_for_bit(tmp_path, solver, correction):
    whole = build(solver=solver, correction=correction)
    whole.run(20)
    first = build(solver=solver, correction=correction)
    first.run(10)
    first.save(tmp_path / "half.safetensors")
    second = build(solver=solver, correction=correction)
    second.load(tmp_path / "half.safetensors")
    second.run(10)
    assert second.history.energy == whole.history.energy
    for mine, theirs in zip(second.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)
    samples = whole.sampler.sample(160)
    assert torch.equal(second.sampler.sample(160).x, samples.x)
    other = build(n_chains=20, solver=solver, correction=correction)
    with pytest.warns(UserWarning, match="16 chains were stored and 20 are wanted"):
        other.load(tmp_path / "half.safetensors")
    with pytest.raises(ValueError, match="another training"):
        build(solver="adam" if solver == "sr" else "sr").load(tmp_path / "half.safetensors")
    with pytest.raises(FileNotFoundError):
        second.load(tmp_path / "none.safetensors")


def test_a_run_comes_close_to_the_free_fermions():
    result = GroundState(n_iter=120, n_samples=1000, n_chains=250, lr=0.1, dtype="bf16", seed=1).solve(
        TFIM(8)
    )
    truth = exact.tfim_chain_energy(8)
    assert abs(result.energy - truth) < 5 * result.error + 2e-3 * abs(truth)
    assert exact.energy(result.model, TFIM(8))[0] == pytest.approx(truth, rel=2e-3)
    result.verify(TFIM(8))
    assert result.energy_per_spin == pytest.approx(result.energy / 8)
    with pytest.raises(ValueError, match="spins, not 6"):
        result.verify(TFIM(6))


def test_a_heisenberg_chain_in_its_sector():
    H = Heisenberg(8)
    result = GroundState(n_iter=120, n_samples=1000, n_chains=250, lr=0.05, dtype="f32", seed=2).solve(H)
    assert exact.energy(result.model, H)[0] == pytest.approx(exact.ground_energy(H), rel=5e-3)


def test_a_molecule_by_independent_samples():
    """H2 at 0.74 Å: full configuration interaction gives -1.137284 Hartree; single chains would stick."""
    pytest.importorskip("pyscf")
    H = from_molecule("H 0 0 0; H 0 0 0.74")
    model = complex_rbm(4, 2, std=0.1, seed=3)
    sampler = EnumeratedSampler(model, 4, sectors=H.sectors)
    for _ in range(150):
        samples = sampler.sample(400)
        A, r = centred_rows(log_derivatives(model, samples.x), local_energies(model, H, samples.x))
        step = reconfigure(A, r, 1e-2).direction
        with torch.no_grad():
            for p, d in zip(
                model.parameters(), step.split([p.numel() for p in model.parameters()]), strict=True
            ):
                p -= 0.2 * d.reshape(p.shape)
    assert exact.energy(model, H)[0] == pytest.approx(-1.137284, abs=1e-3)


def test_the_rule_compares_the_largest_bias_with_the_error():
    g = torch.Generator().manual_seed(0)
    terms = torch.randn(1000, 3, generator=g, dtype=torch.float64)
    noise = torch.randn(1000, generator=g, dtype=torch.float64)
    quiet, loud = safety_check(1e-4 * noise, terms), safety_check(noise, terms)
    assert quiet.accepted
    assert not loud.accepted
    f = terms - terms.mean(0)
    ratio = float((f.abs().amax(0) / (f.std(0) / math.sqrt(1000))).max()) / (3 * math.sqrt(2))
    assert quiet.ratio == pytest.approx(quiet.sigma * ratio)
    assert safety_check(0.5 * noise, terms, corrected=True).accepted
    assert not safety_check(2 * noise, terms, corrected=True).accepted
    assert next_precision("bf16", ("bf16", "f32", "f64")) == "f32"
    assert next_precision("f64", ("bf16", "f32", "f64")) is None


def test_precision_is_escalated_where_the_bias_would_show():
    """Large weights in bf16 with many samples: the bound passes 3√2 errors, and the run goes on in f32."""
    H, model = TFIM(6), RBM(6, 2, std=0.5, seed=1)
    sampler = Metropolis.for_hamiltonian(H, model, n_chains=1000, dtype="auto", seed=2)
    started = sampler.dtype
    vmc = VMC(H, model, sampler, lr=1e-6, n_samples=10_000)
    vmc.run(2)
    if started == "bf16":
        assert vmc.history.dtype == ["bf16", "f32"]
        assert "goes from bf16 to f32" in vmc.history.events[0]
    fixed = build("bf16")
    fixed.run(2)
    assert fixed.history.dtype == ["bf16", "bf16"]
    calm = VMC(
        H,
        model,
        Metropolis.for_hamiltonian(H, model, n_chains=1000, dtype="auto", correction="reweight"),
        n_samples=10_000,
        lr=1e-6,
    )
    calm.run(2)
    assert calm.history.dtype == [started, started]
    assert calm.history.bound == [0.0, 0.0]


def test_bad_trainings_are_named():
    H, model = TFIM(6), RBM(6)
    sampler = Metropolis(model, 6, n_chains=4, dtype="f32")
    for change, message in (
        ({"solver": "lbfgs"}, "solver='lbfgs'"),
        ({"lr": -1.0}, "lr=-1.0"),
        ({"n_samples": 6}, "no multiple of n_chains=4"),
        ({"eloc_dtype": "f8"}, "unknown dtype"),
    ):
        with pytest.raises(ValueError, match=message):
            VMC(H, model, sampler, **{"n_samples": 8, **change})
    with pytest.raises(ValueError, match="sampler has 6 spins"):
        VMC(TFIM(4), model, sampler)
    with pytest.raises(ValueError, match="conserves total_sz"):
        VMC(Heisenberg(6), model, sampler, n_samples=8)
    with pytest.raises(ValueError, match="not Hermitian"):
        VMC(PauliSum([("X" + "I" * 5, 1j)], hermitian=False), model, sampler)
    with pytest.raises(ValueError, match="chunk=0"):
        local_energies(model, H, sampler.x, chunk=0)
    with pytest.raises(ValueError, match="resume=True"):
        VMC(H, model, sampler, n_samples=8).fit(1, resume=True)
    assert isinstance(complex_rbm(2), AmplitudePhase)


@pytest.mark.parametrize("visible", [True, False])
def test_the_gram_matrix_of_a_machine_needs_no_rows(visible):
    H, model = TFIM(6), RBM(6, 2, std=0.4, visible_bias=visible, seed=3)
    x = Metropolis(model, 6, n_chains=30, dtype="f32").sample(60).x
    weights = torch.softmax(torch.linspace(0, 1, 60, dtype=torch.float64), 0)
    e = local_energies(model, H, x)
    A, r = centred_rows(log_derivatives(model, x), e, weights)
    step, g = reconfigure_machine(model, x, e, weights, 1e-2)
    torch.testing.assert_close(g, gradient(A, r), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(
        step.direction, reconfigure(A, r, 1e-2, "dense").direction, rtol=1e-7, atol=1e-9
    )
