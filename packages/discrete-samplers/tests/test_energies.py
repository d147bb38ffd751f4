"""Energies against enumeration, dimod and closed forms; conversions, labels and what is refused."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import os
import subprocess
import sys

import dimod
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_discrete_samplers import (
    QUBO,
    GrayCoded,
    Ising2D,
    Polynomial,
    Potts2D,
    from_callable,
    from_torchgfn_env,
)
from icml_discrete_samplers.checks import evaluate, require_states
from icml_discrete_samplers.targets import many_well
from oracles import all_states
from scipy.sparse import csr_array


def ising_by_hand(x, L, beta, J, h):
    s = (2 * x - 1).view(-1, L, L).double()
    total = h * s.sum((1, 2))
    for i, j in itertools.product(range(L), range(L)):
        total = total + J * s[:, i, j] * (s[:, (i + 1) % L, j] + s[:, i, (j + 1) % L])
    return beta * total


@pytest.mark.parametrize(("L", "J", "h"), [(2, 1.0, 0.0), (3, 1.0, 0.4), (3, -0.7, 0.0)])
def test_ising_counts_each_bond_once(L, J, h):
    x = all_states(L * L, 2)
    energy = Ising2D(L, 0.6, J, h)
    torch.testing.assert_close(energy.log_density(x), ising_by_hand(x, L, 0.6, J, h))
    torch.testing.assert_close(energy.terms.log_density(x), energy.log_density(x))


def test_potts_counts_equal_neighbours():
    x = all_states(4, 3)
    energy = Potts2D(2, 3, 0.8)
    square = x.view(-1, 2, 2)
    by_hand = sum((square == square.roll(-1, a)).flatten(1).sum(1) for a in (1, 2)) * 0.8
    torch.testing.assert_close(energy.log_density(x), by_hand.double())
    constant = energy.log_density(x) - energy.terms.log_density(x)
    torch.testing.assert_close(constant, torch.zeros(81, dtype=torch.float64))


@pytest.mark.parametrize("form", ["array", "sparse", "dict", "bqm"])
def test_qubo_of_any_form_has_dimods_energies(form):
    """All 2^10 states, the diagonal and the constant included, to 1e-12."""
    rng = np.random.default_rng(3)
    Q = rng.normal(size=(10, 10)) * (rng.random((10, 10)) < 0.6)
    given = {
        "array": Q,
        "sparse": csr_array(Q),
        "dict": {(i, j): Q[i, j] for i in range(10) for j in range(10)},
        "bqm": dimod.BinaryQuadraticModel(Q, "BINARY"),
    }[form]
    energy = QUBO(given, offset=1.25)
    x = all_states(10, 2)
    wanted = np.einsum("ni,ij,nj->n", x.numpy(), Q, x.numpy()) + 1.25
    np.testing.assert_allclose(energy.energy(x), wanted, atol=1e-12)
    np.testing.assert_allclose(energy.log_density(x), -wanted, atol=1e-12)


def test_ising_and_qubo_agree_on_all_states_there_and_back():
    rng = np.random.default_rng(4)
    energy = QUBO(rng.normal(size=(10, 10)), offset=-0.5, beta=1.7)
    x = all_states(10, 2)
    spins = energy.as_ising()
    assert spins.domain == "spin"
    for other in (spins, spins.as_qubo(), spins.as_qubo().as_ising()):
        torch.testing.assert_close(other.energy(x), energy.energy(x), rtol=0, atol=1e-12)
        assert other.beta == 1.7
    bqm = dimod.BinaryQuadraticModel(dict(enumerate(rng.normal(size=10))), {(0, 1): 2.0}, 0.5, "SPIN")
    ours = QUBO(bqm)
    assert ours.domain == "spin"
    samples = 2 * x.numpy() - 1
    np.testing.assert_allclose(ours.energy(x), bqm.energies(samples), atol=1e-12)
    assert set(ours.decode(x).unique().tolist()) == {-1, 1}
    assert set(ours.as_qubo().decode(x).unique().tolist()) == {0, 1}


@pytest.mark.parametrize("domain", ["binary", "spin"])
def test_polynomials_of_any_order_equal_dimods(domain):
    rng = np.random.default_rng(5)
    names = "abcdef"
    terms = {
        tuple(sorted(rng.choice(list(names), size=rng.integers(1, 5), replace=False))): float(rng.normal())
        for _ in range(15)
    }
    terms[()] = 0.75
    ours = Polynomial(terms, domain, variables=list(names))
    theirs = dimod.BinaryPolynomial(terms, "SPIN" if domain == "spin" else "BINARY")
    x = all_states(6, 2)
    values = ours.decode(x).numpy()
    used = sorted(theirs.variables)
    columns = [names.index(v) for v in used]
    np.testing.assert_allclose(ours.energy(x), theirs.energies((values[:, columns], used)), atol=1e-12)
    torch.testing.assert_close(ours.terms.log_density(x), ours.log_density(x) + 0.75, rtol=0, atol=1e-12)
    converted = ours.as_qubo() if domain == "spin" else ours.as_ising()
    torch.testing.assert_close(converted.energy(x), ours.energy(x), rtol=0, atol=1e-12)


def test_a_variable_twice_is_reduced():
    assert Polynomial({("a", "a"): 2.0, ("a",): 1.0}).coefficients == {(0,): 3.0}
    spin = Polynomial({("a", "a", "b"): 2.0}, "spin")
    assert spin.coefficients == {(1,): 2.0}
    assert spin.D == 2
    with pytest.raises(ValueError, match="has a variable twice"):
        Polynomial({("a", "a"): 2.0}, V=3)


def test_three_symbols_count_as_their_values():
    energy = Polynomial({("a", "b"): 1.0}, V=3)
    x = all_states(2, 3)
    torch.testing.assert_close(energy.energy(x), (x[:, 0] * x[:, 1]).double())
    spin = Polynomial({("a",): 1.0}, "spin", V=3)
    assert spin.energy(torch.arange(3)[:, None]).tolist() == [-1.0, 0.0, 1.0]


PROBLEM = """
from icml_discrete_samplers import Polynomial, mcmc
p = Polynomial({{frozenset(k): v for k, v in {terms}}})
x = mcmc.run(p, 5, "hamming_ball", 50, 50, seed=3, diagnose=False).x
print(p.fingerprint, [sorted(d.items()) for d in p.labelled(x)])
"""


def test_shuffled_terms_and_another_hash_seed_give_the_same_samples():
    terms = [(("u", "v"), 1.0), (("v", "w", "x"), -2.0), (("x",), 0.5), (("u", "x"), 0.25)]
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(PROBLEM.format(terms=terms), {})
    other = "77" if os.environ.get("PYTHONHASHSEED") != "77" else "78"
    there = subprocess.run(
        [sys.executable, "-c", PROBLEM.format(terms=terms[::-1])],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONHASHSEED": other},
    )
    assert there.returncode == 0, there.stderr
    assert here.getvalue() == there.stdout != ""


def test_fingerprints_tell_problems_apart():
    base = {("a", "b"): 1.0, ("a",): 2.0}
    first = Polynomial(base).fingerprint
    assert Polynomial(dict(reversed(base.items()))).fingerprint == first
    others = [
        Polynomial(base | {("a",): 2.0 + 1e-15}),
        Polynomial(base, "spin"),
        Polynomial(base, beta=2.0),
        Polynomial({("a", "c"): 1.0, ("a",): 2.0}),
        Polynomial(base | {(): 1.0}),
    ]
    assert first not in {o.fingerprint for o in others}


def test_samples_come_back_by_label_and_as_a_sampleset():
    energy = QUBO({("x", "x"): -1.0, ("x", "y"): 2.0})
    x = torch.tensor([[1, 0], [1, 1]])
    assert energy.labelled(x) == [{"x": 1, "y": 0}, {"x": 1, "y": 1}]
    found = energy.sampleset(x)
    assert found.first.sample == {"x": 1, "y": 0}
    assert found.first.energy == -1.0
    assert found.info["fingerprint"] == energy.fingerprint


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 10), st.integers(1, 3), st.integers(0, 10**6))
def test_gray_code_goes_there_and_back_and_neighbours_differ_by_one_bit(bits, d, seed):
    energy = GrayCoded(lambda u: u.sum(1), [(-1.0, 2.0)] * d, bits)
    g = torch.Generator().manual_seed(seed)
    cells = torch.randint(0, 2**bits, (20, d), generator=g)
    x = energy.encode_cells(cells)
    assert torch.equal(energy.cells(x), cells)
    assert torch.equal(energy.encode(energy.decode(x)), x)
    inside = cells[:, 0] < 2**bits - 1
    step = torch.zeros_like(cells)
    step[:, 0] = inside.long()
    changed = (energy.encode_cells(cells + step) != x).sum(1)
    assert torch.equal(changed, inside.long())


def test_gray_coded_density_has_the_continuous_z():
    energy = GrayCoded(lambda u: -0.5 * (u**2).sum(1), [(-8.0, 8.0)] * 2, 6)
    total = energy.log_density(all_states(12, 2)).logsumexp(0)
    assert float(total) == pytest.approx(math.log(2 * math.pi), abs=1e-9)


def test_many_well_is_its_formula():
    u = torch.tensor([[1.0, 1.0], [math.sqrt(2), 0.0]], dtype=torch.float64)
    a = math.sqrt(2)
    first = -(a**4 - 6 * a**2 - 0.5 * a)
    second = -(1 - 6 - 0.5 + 0.5)
    assert many_well(u).tolist() == pytest.approx([first, second])
    with pytest.raises(ValueError, match="pairs of coordinates"):
        many_well(torch.zeros(1, 3))


def test_callables_of_torch_numpy_and_modules():
    x = all_states(3, 2)
    expected = x.sum(1).double()
    for energy in (
        from_callable(lambda s: s.sum(1).double(), 3, 2),
        from_callable(lambda s: s.sum(1), 3, 2, numpy=True),
    ):
        torch.testing.assert_close(evaluate(energy, x), expected)

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.ones(3))

        def forward(self, s):
            return s.float() @ self.w

    found = evaluate(from_callable(Net(), 3, 2), x)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad


def test_torchgfn_environments_give_their_rewards():
    pytest.importorskip("gfn")
    from gfn.gym import DiscreteEBM, HyperGrid

    grid = from_torchgfn_env(HyperGrid(2, 4, validate_modes=False))
    assert (grid.D, grid.V) == (2, 4)
    env = HyperGrid(2, 4, validate_modes=False)
    x = all_states(2, 4)
    torch.testing.assert_close(
        evaluate(grid, x), env.reward(env.states_from_tensor(x)).log().double(), rtol=1e-5, atol=1e-6
    )
    assert from_torchgfn_env(DiscreteEBM(3)).V == 2
    with pytest.raises(TypeError, match="no torchgfn environment"):
        from_torchgfn_env(object())


def test_bad_states_are_named_with_their_place():
    x = torch.zeros(2, 9, dtype=torch.int64)
    x[1, 7] = 3
    with pytest.raises(ValueError, match=r"symbol 3 at site 7 outside 0\.\.2"):
        require_states(x, 9, 3)
    with pytest.raises(ValueError, match=r"shape \[2, 3\]; expected \[n, 4\]"):
        require_states(torch.zeros(2, 3, dtype=torch.int64), 4, 2)
    with pytest.raises(TypeError, match="dtype torch.float32"):
        require_states(torch.zeros(2, 3), 3, 2)
    with pytest.raises(TypeError, match="is a list"):
        require_states([[0, 1]], 2, 2)


def test_bad_energies_are_named():
    x = torch.zeros(3, 2, dtype=torch.int64)

    def energy(f):
        return from_callable(f, 2, 2)

    with pytest.raises(TypeError, match=r"shape \[3, 1\] for states \[3, 2\]; expected \[3\]"):
        evaluate(energy(lambda s: s.sum(1, keepdim=True)), x)
    with pytest.raises(TypeError, match="gave a ndarray"):
        evaluate(energy(lambda s: s.numpy().sum(1)), x)
    with pytest.raises(TypeError, match="on meta for states on cpu"):
        evaluate(energy(lambda s: torch.zeros(3, device="meta")), x)
    for wrong in (math.nan, math.inf):
        with pytest.raises(FloatingPointError, match="for sample 1, x ="):
            evaluate(energy(lambda s, w=wrong: torch.tensor([0.0, w, 0.0])), x)
    assert evaluate(energy(lambda s: torch.full((3,), -math.inf)), x).tolist() == [-math.inf] * 3


def test_bad_problems_are_named():
    with pytest.raises(ValueError, match="V=1"):
        from_callable(lambda s: s, 3, 1)
    with pytest.raises(ValueError, match="D=0"):
        from_callable(lambda s: s, 0, 2)
    with pytest.raises(ValueError, match="neither 'binary' nor 'spin'"):
        Polynomial({("a",): 1.0}, "ternary")
    with pytest.raises(ValueError, match="must be a finite number"):
        Polynomial({("a",): math.nan})
    with pytest.raises(ValueError, match="square matrix"):
        QUBO(np.zeros((2, 3)))
    with pytest.raises(ValueError, match="pair of labels"):
        QUBO({("a", "b", "c"): 1.0})
    with pytest.raises(TypeError, match="Q is a int"):
        QUBO(3)
    with pytest.raises(ValueError, match="sides of 2 or more"):
        Ising2D(1, 0.5)
    with pytest.raises(ValueError, match="finite"):
        Ising2D(3, math.nan)
    with pytest.raises(ValueError, match="empty or not finite"):
        GrayCoded(lambda u: u.sum(1), [(1.0, 1.0)], 3)
    with pytest.raises(ValueError, match="only problems of two symbols"):
        Polynomial({("a",): 1.0}, V=3).as_ising()


def test_repeated_terms_add_up_the_same_in_any_order():
    """Six orders of one product, whose plain sums differ in the last bit."""
    numbers = dict(zip(itertools.permutations("abc"), [0.1, 0.2, 0.3, 1e16, -1e16, 0.7], strict=True))
    problems = [Polynomial(dict(order)) for order in itertools.permutations(numbers.items())]
    assert len({p.fingerprint for p in problems}) == 1
    assert problems[0].coefficients[0, 1, 2] == math.fsum(numbers.values())
