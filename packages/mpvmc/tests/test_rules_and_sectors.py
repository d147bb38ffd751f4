"""Proposals that must reach every state and no other, and sums that Hamiltonians and samplers share."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from icml_core import Run
from icml_mpvmc import RBM, VMC, GroundState, Metropolis, Sector, exact
from icml_mpvmc.hamiltonian import conserves, enumerate_spins, state_numbers
from icml_mpvmc.hamiltonians import TFIM, Heisenberg, PauliSum, from_molecule, from_netket, from_scipy
from icml_mpvmc.jobs import ground_state, sample
from icml_mpvmc.rules import Rule


def deviation(x, states, p):
    """Counts of independent states against probabilities: χ² less its mean, over its standard deviation."""
    place = {k: i for i, k in enumerate(state_numbers(states).tolist())}
    counts = np.bincount([place[k] for k in state_numbers(x).tolist()], minlength=len(p))
    expected = len(x) * p.numpy()
    return (((counts - expected) ** 2 / expected).sum() - len(p) + 1) / math.sqrt(2 * len(p))


def one_flip(x, generator, in_place=False, weights=None):
    """Flip a spin of each row; drawn by ``weights`` of spin and value, with log q(x|x')/q(x'|x)."""
    new = x if in_place else x.clone()
    rows = torch.arange(len(x))
    if weights is None:
        site = torch.randint(0, x.shape[1], (len(x),), generator=generator)
        new[rows, site] *= -1
        return new
    before = torch.where(x > 0, weights[0], weights[1])
    site = torch.multinomial(before, 1, generator=generator)[:, 0]
    new = x.clone()
    new[rows, site] *= -1
    after = torch.where(new > 0, weights[0], weights[1])
    forth = before[rows, site] / before.sum(1)
    back = after[rows, site] / after.sum(1)
    return new, torch.log(back / forth)


@pytest.mark.parametrize("kind", ["copy", "in place", "asymmetric"])
def test_functions_sample_all_states_by_their_probability(kind):
    """Also where they flip what they are given, and where x' is proposed more often from x than x from x'."""
    model = RBM(4, 1, std=0.3, seed=1)
    weights = torch.tensor([[1.0, 2.0, 3.0, 4.0], [4.0, 1.0, 0.5, 2.0]])
    rules = {
        "copy": one_flip,
        "in place": lambda x, g: one_flip(x, g, in_place=True),
        "asymmetric": lambda x, g: one_flip(x, g, weights=weights),
    }
    sampler = Metropolis(model, 4, rules[kind], 4000, "f64", sweep=40, seed=2)
    states, p = exact.distribution(model, 4)
    assert abs(deviation(sampler.sample(4000, discard=1).x, states, p)) < 5
    if kind == "asymmetric":  # without its correction the same proposal is biased
        biased = Metropolis(model, 4, lambda x, g: rules[kind](x, g)[0], 4000, "f64", sweep=40, seed=2)
        assert abs(deviation(biased.sample(4000, discard=1).x, states, p)) > 20


def test_two_flips_reach_both_parities():
    model = RBM(4, 1, std=0.2, seed=3)
    with torch.no_grad():
        model.visible_bias += 0.2
    sampler = Metropolis(model, 4, "flip:2", 4000, "f64", sweep=40, seed=1)
    sampler.x = torch.ones(4000, 4, dtype=torch.int8)  # all of one parity
    states, p = exact.distribution(model, 4)
    assert abs(deviation(sampler.sample(4000, discard=2).x, states, p)) < 5


def test_exchanges_reach_all_states_of_their_sectors():
    with pytest.raises(ValueError, match="keeps the magnetisation that a chain starts with; give total_sz"):
        Metropolis(RBM(4), 4, "exchange")
    sectors = (Sector((0, 1), 0), Sector((2, 3), 0))
    model = RBM(4, 2, std=0.5, seed=2)
    sampler = Metropolis(model, 4, "exchange:2", 3000, "f64", sectors=sectors, sweep=30)
    sampler.x = torch.tensor([[1, -1, 1, -1]], dtype=torch.int8).expand(3000, 4)
    states, p = exact.distribution(model, 4, sectors)
    assert abs(deviation(sampler.sample(3000, discard=2).x, states, p)) < 5
    partly = Metropolis(model, 4, "exchange", 3000, "f64", sectors=sectors[:1], sweep=30)
    states, p = exact.distribution(model, 4, sectors[:1])  # spins 2 and 3 are free
    assert abs(deviation(partly.sample(3000, discard=2).x, states, p)) < 5
    with pytest.raises(ValueError, match="do not connect the spins"):
        Rule("exchange", 4, (Sector((0, 1, 2, 3), 0),), np.array([[0, 1], [2, 3]]))
    with pytest.raises(ValueError, match=r"the pair \(1, 2\) lies in no sector"):
        Rule("exchange", 4, sectors, np.array([[0, 1], [1, 2], [2, 3]]))


def test_functions_are_probed_on_many_draws():
    """One draw for all rows: a rule that leaves the sector once in ten draws is found."""

    def seldom(x, generator):
        new = x.clone()
        if float(torch.rand(1, generator=generator)) < 0.1:
            new[:, 0] *= -1
        return new

    with pytest.raises(ValueError, match="leaves the sector in"):
        Metropolis(RBM(6), 6, seldom, 4, "f64", total_sz=0)

    def later(x, generator):
        return x if len(x) == 20 else x[:, :3]  # not what it was when it was tried

    with pytest.raises(ValueError, match="the rule gives"):
        Metropolis(RBM(6), 6, later, 4, "f64").sample(4)


def test_declared_sums_are_conserved():
    with pytest.raises(ValueError, match="does not conserve"):
        PauliSum([("ZZ", [[0, 1]], 1.0), ("X", [[0], [1]], 1.0)], sectors=[Sector((0, 1), 0)])
    with pytest.raises(ValueError, match="does not conserve"):
        PauliSum([("XX", [[0, 1]], 1.0)], 3, sectors=[Sector((0, 1, 2), 1)])
    with pytest.raises(ValueError, match="does not conserve"):
        from_scipy(TFIM(4).to_sparse(), sectors=[Sector((0, 1, 2, 3), 0)])
    assert conserves(Heisenberg(6), Heisenberg(6).sectors)
    assert not conserves(TFIM(6), Heisenberg(6).sectors)


def test_samplers_keep_what_the_hamiltonian_keeps():
    model = RBM(4, 1)
    both = (Sector((0, 1), 0), Sector((2, 3), 0))
    H = PauliSum([("XX", [[0, 1], [2, 3]], 1.0), ("YY", [[0, 1], [2, 3]], 1.0)], sectors=both)
    one = Metropolis(model, 4, "exchange", 1, "f64", total_sz=0, start=torch.tensor([[1, -1, 1, -1]]))
    with pytest.raises(ValueError, match="conserves total_sz"):
        VMC(H, model, one, n_samples=4)  # the start lies in both sectors, later states do not
    with pytest.raises(ValueError, match="that the Hamiltonian does not conserve"):
        VMC(TFIM(4), model, one, n_samples=4)
    VMC(Heisenberg(4, total_sz=None), model, one, n_samples=4).run(
        1
    )  # a sector of one that has none declared
    VMC(H, model, Metropolis.for_hamiltonian(H, model, n_chains=4, dtype="f64"), n_samples=8).run(1)


def test_constrained_spaces_ask_for_their_magnetisation():
    class Space:
        size, local_states, constrained = 4, [-1.0, 1.0], True
        _total_sz = 0

    class Operator:
        hilbert, is_hermitian, dtype, max_conn_size = Space(), True, float, 1

        def get_conn_padded(self, x):
            return x[:, None, :], np.ones((len(x), 1))

    with pytest.raises(ValueError, match="constrained; say total_sz .the space says 0."):
        from_netket(Operator())
    with pytest.raises(ValueError, match="total_sz=1, and the operator's space has total_sz=0"):
        from_netket(Operator(), total_sz=1)
    assert from_netket(Operator(), total_sz=0).sectors == (Sector((0, 1, 2, 3), 0),)


@pytest.mark.parametrize("J", [1.0, -1.0])
@pytest.mark.parametrize("shape", [6, (2, 4)])
def test_ground_states_have_one_sign(J, shape):
    """So that a positive wavefunction can hold them, whatever the sign of the coupling."""
    psi = exact.ground_state_vector(Heisenberg(shape, J=J))[1]
    assert abs(psi.sum()) == pytest.approx(np.abs(psi).sum())


def test_a_molecule_by_the_solver():
    """H2 at 0.74 Å: full configuration interaction gives -1.137284 Hartree; single exchanges would stick."""
    pytest.importorskip("pyscf")
    H = from_molecule("H 0 0 0; H 0 0 0.74")
    solver = GroundState("complex_rbm", n_iter=80, n_samples=1000, n_chains=250, lr=0.1, dtype="f64", seed=3)
    result = solver.solve(H)
    assert exact.energy(result.model, H)[0] == pytest.approx(-1.137284, abs=1e-3)
    assert abs(result.energy - -1.137284) < 1e-3 + 5 * result.error
    with pytest.raises(ValueError, match="use rule='exchange'"):
        GroundState("complex_rbm", rule="flip").solve(H)


def test_wavefunctions_remember_their_sector(tmp_path):
    run = Run(tmp_path / "run", seed=1, device="cpu", quiet=True)
    options = {"iterations": 2, "samples": 100, "chains": 50, "dtype": "f32", "picture": False}
    ground_state(run=run, lattice="heisenberg", shape="6", **options)
    drawn = Run(tmp_path / "draw", seed=1, device="cpu", quiet=True)
    options = {"wavefunction": run.file("wavefunction.safetensors"), "n": 200, "chains": 50, "dtype": "f32"}
    found = sample(run=drawn, **options)
    with np.load(drawn.file("samples.npz")) as arrays:
        assert (arrays["x"].sum(1) == 0).all()
        assert len(np.unique(arrays["x"], axis=0)) == len(enumerate_spins(6, Heisenberg(6).sectors))
    assert 0 < found["largest_bias"] < found["hidden_bias"]
    with pytest.raises(ValueError, match="use rule='exchange'"):
        sample(run=drawn, rule="flip", **options)
    with pytest.raises(ValueError, match="other conserved sums"):
        sample(run=drawn, total_sz=1, **options)
