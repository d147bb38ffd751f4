"""The network against a scalar transcription of its formulas, finite differences and its symmetries."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from icml_flashschnet.cgschnet_baseline import CGSchNetBaseline, directed_edges
from icml_flashschnet.compact_chain import compact_chain
from icml_flashschnet.compression import compress
from icml_flashschnet.potential import SumPotential
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig

SMALL = SchNetConfig(n_types=4, hidden=10, filters=12, n_rbf=8, r_cut=5.0, layers=2, out=(9, 5))
KERNELS = ("torch", "auto")


def network(config=SMALL, *, seed=1, kernel="torch", dtype=torch.float64):
    """A network whose biases are not zero, so that their part in the formulas is seen."""
    model = FlashSchNet(config, seed=seed, kernel=kernel).to(dtype)
    generator = torch.Generator().manual_seed(seed + 100)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def beads(n=14, seed=0, size=5.0, n_types=4):
    generator = torch.Generator().manual_seed(seed)
    pos = torch.rand(n, 3, generator=generator, dtype=torch.float64) * size
    return pos, torch.randint(0, n_types, (n,), generator=generator)


def autograd_forces(model, pos, types, **options):
    pos = pos.clone().requires_grad_()
    energy = model(pos, types, **options)
    return energy.detach(), -torch.autograd.grad(energy.sum(), pos)[0]


def scalar_energy(model, pos, types):
    """The formulas of the reference network, one pair and one channel at a time."""
    config = model.config
    weight = {name: value.numpy() for name, value in model.state_dict().items()}
    x = pos.numpy()
    n = len(x)

    def act(v):
        return np.tanh(v) if config.activation == "tanh" else np.log1p(np.exp(v)) - math.log(2)

    def filters(layer, r):
        cut = 0.5 * (math.cos(math.pi * r / config.r_cut) + 1)
        if config.rbf == "gauss":
            mu = np.linspace(0, config.r_cut, config.n_rbf)
            rbf = np.exp(-0.5 / (mu[1] - mu[0]) ** 2 * (r - mu) ** 2)
        else:
            start = math.exp(-config.r_cut)
            mu = np.linspace(start, 1, config.n_rbf)
            beta = (2 / config.n_rbf * (1 - start)) ** -2
            rbf = np.exp(-beta * (math.exp(-5 * r / config.r_cut) - mu) ** 2)
        if config.rbf_cutoff:
            rbf = rbf * cut
        p = f"interactions.{layer}.filter"
        w = weight[f"{p}.outer.weight"] @ act(weight[f"{p}.inner.weight"] @ rbf + weight[f"{p}.inner.bias"])
        return w * cut if config.filter_cutoff else w

    h = weight["embedding.weight"][types.numpy()]
    for layer in range(config.layers):
        p = f"interactions.{layer}"
        new = h.copy()
        for i in range(n):
            m = np.zeros(config.filters)
            for j in range(n):
                r = float(np.sqrt(((x[i] - x[j]) ** 2).sum()))
                if j != i and r < config.r_cut:
                    m += (weight[f"{p}.project.weight"] @ h[j]) * filters(layer, r)
            a = act(weight[f"{p}.mix.weight"] @ m + weight[f"{p}.mix.bias"])
            new[i] += weight[f"{p}.update.weight"] @ a + weight[f"{p}.update.bias"]
        h = new
    total = 0.0
    for i in range(n):
        v = h[i]
        for k in range(len(config.out)):
            v = act(weight[f"readout.{k}.weight"] @ v + weight[f"readout.{k}.bias"])
        total += (weight[f"readout.{len(config.out)}.weight"] @ v).item()
    return total


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"rbf": "expnorm"},
        {"activation": "ssp"},
        {"rbf_cutoff": False},
        {"filter_cutoff": False},
        {"out": ()},
        {"hidden": 7, "filters": 5, "layers": 1},
    ],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_energy_is_that_of_the_formulas(changes, kernel):
    model = network(SchNetConfig(**{**SMALL.__dict__, **changes}), kernel=kernel)
    pos, types = beads(9)
    expected = scalar_energy(model, pos, types)
    assert model(pos, types).item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    assert model.energy_forces(pos, types)[0].item() == pytest.approx(expected, rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tabulated", [False, True])
@pytest.mark.parametrize("rbf", ["gauss", "expnorm"])
def test_forces_are_minus_the_energy_gradient(kernel, tabulated, rbf):
    """Central differences of the very energy that the forces belong to, also through a coarse table."""
    model = network(SchNetConfig(**{**SMALL.__dict__, "rbf": rbf}), kernel=kernel)
    if tabulated:
        model, _ = compress(model, tol=1e-2)
    pos, types = beads()
    _, forces = model.energy_forces(pos, types)
    generator = torch.Generator().manual_seed(5)
    step = 1e-5
    for _ in range(10):
        direction = torch.randn(pos.shape, generator=generator, dtype=torch.float64)
        up = model.energy_forces(pos + step * direction, types)[0]
        down = model.energy_forces(pos - step * direction, types)[0]
        slope = ((up - down) / (2 * step)).item()
        assert -float((forces * direction).sum()) == pytest.approx(slope, rel=2e-7, abs=2e-8)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tabulated", [False, True])
def test_fused_forces_are_those_of_autograd(kernel, tabulated):
    model = network(kernel=kernel)
    if tabulated:
        model, _ = compress(model)
    pos, types = beads(20)
    energy, forces = model.energy_forces(pos, types, n_replicas=2)
    by_graph, forces_by_graph = autograd_forces(model, pos, types, n_replicas=2)
    torch.testing.assert_close(energy, by_graph, rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(forces, forces_by_graph, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("width", [8, 96, 128, 200, 256])
def test_every_filter_width_gives_every_gradient(width):
    """Kernels that cover one block of features only would leave the rest of a wide network without."""
    config = SchNetConfig(**{**SMALL.__dict__, "filters": width})
    exact, fast = network(config), network(config, kernel="auto")
    table, _ = compress(fast)
    pos, types = beads(10)
    expected = autograd_forces(exact, pos, types)
    for model, tolerance in ((fast, 1e-11), (table, 1e-4)):
        for got in (model.energy_forces(pos, types), autograd_forces(model, pos, types)):
            for a, b in zip(got, expected, strict=True):
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kernel", KERNELS)
def test_single_precision_agrees_with_double(kernel):
    config = SchNetConfig(n_types=25, hidden=64, filters=64, n_rbf=32, layers=3)
    pos, types = compact_chain(60, n_replicas=2)
    energy, forces = network(config).energy_forces(pos, types, n_replicas=2)
    single = network(config, kernel=kernel, dtype=torch.float32)
    got_energy, got_forces = single.energy_forces(pos.float(), types, n_replicas=2)
    assert got_energy.dtype == torch.float64
    assert got_forces.dtype == torch.float32
    scale = forces.abs().max()
    assert (got_forces - forces).abs().max() / scale < 1e-5
    assert ((got_energy - energy).abs() / energy.abs()).max() < 1e-5


def test_the_baseline_is_the_same_model():
    model = network()
    pos, types = beads(20)
    edges = directed_edges(model.neighbours(pos, n_replicas=2))
    energy, forces = CGSchNetBaseline(model).energy_forces(pos, types, edges, n_replicas=2)
    expected = model.energy_forces(pos, types, n_replicas=2)
    torch.testing.assert_close(energy, expected[0], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(forces, expected[1], rtol=1e-10, atol=1e-12)


def test_directed_edges_hold_each_pair_twice_sorted_by_destination():
    model = network()
    pos, _ = beads(12)
    source, destination = directed_edges(model.neighbours(pos))
    found = list(zip(destination.tolist(), source.tolist(), strict=True))
    distance = torch.cdist(pos, pos)
    wanted = [(i, j) for i in range(12) for j in range(12) if i != j and distance[i, j] < SMALL.r_cut]
    assert found == wanted


@settings(max_examples=15, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), n=st.integers(2, 12))
def test_energy_is_invariant_and_forces_turn_along(seed, n):
    model = network(kernel="auto")
    pos, types = beads(n, seed=seed, size=4.0)
    generator = torch.Generator().manual_seed(seed)
    turn, _ = torch.linalg.qr(torch.randn(3, 3, generator=generator, dtype=torch.float64))
    order = torch.randperm(n, generator=generator)
    energy, forces = model.energy_forces(pos, types)
    moved, moved_forces = model.energy_forces((pos @ turn.T + 3.0)[order], types[order])
    torch.testing.assert_close(moved, energy, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(moved_forces, (forces @ turn.T)[order], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(forces.sum(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-11)


@pytest.mark.parametrize("kernel", KERNELS)
def test_replicas_of_any_size_are_as_if_alone(kernel):
    model = network(kernel=kernel)
    sizes = [5, 1, 9, 3]
    parts = [beads(n, seed=n) for n in sizes]
    pos, types = torch.cat([p for p, _ in parts]), torch.cat([t for _, t in parts])
    batch = torch.repeat_interleave(torch.arange(4), torch.tensor(sizes))
    alone = [model.energy_forces(*part) for part in parts]
    energy, forces = model.energy_forces(pos, types, batch)
    torch.testing.assert_close(energy, torch.cat([e for e, _ in alone]), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(forces, torch.cat([f for _, f in alone]), rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(model(pos, types, batch), energy, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tabulated", [False, True])
def test_isolated_beads_empty_lists_and_single_beads(kernel, tabulated):
    """A bead without neighbours has the energy of its type, and no force."""
    model = network(kernel=kernel)
    if tabulated:
        model, _ = compress(model)
    single = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    energies = [model.energy_forces(single, torch.tensor([t]))[0].item() for t in (0, 1, 2)]
    assert len({round(e, 6) for e in energies}) == 3
    pos = torch.tensor([[0.0, 0, 0], [1.5, 0, 0], [50.0, 0, 0]], dtype=torch.float64)
    types = torch.tensor([0, 1, 2])
    energy, forces = model.energy_forces(pos, types)
    pair = model.energy_forces(pos[:2], types[:2])
    assert energy.item() == pytest.approx(pair[0].item() + energies[2], rel=1e-12)
    assert not forces[2].any()
    apart = model.energy_forces(pos * 100, types)
    assert apart[0].item() == pytest.approx(sum(energies), rel=1e-12)
    assert not apart[1].any()
    assert autograd_forces(model, pos * 100, types)[0].item() == pytest.approx(sum(energies), rel=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("tabulated", [False, True])
def test_a_pair_at_exactly_the_cutoff_does_not_interact(kernel, tabulated):
    model = network(kernel=kernel)
    if tabulated:
        model, _ = compress(model)
    types = torch.tensor([0, 1])
    pos = torch.tensor([[0.0, 0, 0], [SMALL.r_cut, 0, 0]], dtype=torch.float64)
    wider = model.neighbours(pos, skin=1.0)
    assert wider.ij()[0].numel() >= 1
    apart = model.energy_forces(pos * 2, types)[0]
    energy, forces = model.energy_forces(pos, types, nlist=wider)
    torch.testing.assert_close(energy, apart, rtol=1e-13, atol=1e-13)
    assert not forces.any()


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_list_with_skin_gives_the_same(kernel):
    model = network(kernel=kernel)
    pos, types = beads(16, size=8.0)
    wide = model.neighbours(pos, n_replicas=2, skin=2.0)
    torch.testing.assert_close(
        model.energy_forces(pos, types, n_replicas=2, nlist=wide),
        model.energy_forces(pos, types, n_replicas=2),
        rtol=1e-12,
        atol=1e-12,
    )


@pytest.mark.parametrize("kernel", KERNELS)
def test_gradients_and_second_derivatives(kernel):
    """What force matching needs: the gradient of a function of the forces with respect to every weight."""
    config = SchNetConfig(n_types=3, hidden=4, filters=5, n_rbf=4, r_cut=4.0, layers=2, out=(3,))
    model = network(config, kernel=kernel)
    pos, types = beads(5, size=3.0, n_types=3)
    assert torch.autograd.gradcheck(lambda x: model(x, types), pos.requires_grad_())
    assert torch.autograd.gradgradcheck(lambda x: model(x, types), pos)

    def loss():
        (gradient,) = torch.autograd.grad(model(pos, types).sum(), pos, create_graph=True)
        return gradient.square().sum()

    parameters = dict(model.named_parameters())
    gradients = torch.autograd.grad(loss(), parameters.values(), allow_unused=True)
    generator = torch.Generator().manual_seed(2)
    _, forces = model.trainable_forces(pos.detach(), types)
    written_out = torch.autograd.grad(forces.square().sum(), parameters.values(), allow_unused=True)
    for a, b in zip(gradients, written_out, strict=True):
        # The last bias shifts the energy alone: no force depends on it, whatever way it is found.
        a, b = (torch.zeros(1, dtype=torch.float64) if g is None else g for g in (a, b))
        torch.testing.assert_close(*torch.broadcast_tensors(a, b), rtol=1e-9, atol=1e-11)
    for (name, parameter), gradient in zip(parameters.items(), gradients, strict=True):
        direction = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        values = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter += sign * 1e-6 * direction
            values.append(loss().item())
            with torch.no_grad():
                parameter -= sign * 1e-6 * direction
        slope = (values[0] - values[1]) / 2e-6
        got = 0.0 if gradient is None else float((gradient * direction).sum())
        assert got == pytest.approx(slope, rel=1e-5, abs=1e-7), name


def test_a_sum_adds_energies_and_forces_of_its_terms():
    first, second = network(), network(seed=7)
    total = SumPotential(first, second)
    pos, types = beads(16)
    nlist = total.neighbours(pos, n_replicas=2, skin=0.5)
    energy, forces = total.energy_forces(pos, types, n_replicas=2, nlist=nlist)
    parts = [m.energy_forces(pos, types, n_replicas=2) for m in (first, second)]
    torch.testing.assert_close(energy, parts[0][0] + parts[1][0], rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(forces, parts[0][1] + parts[1][1], rtol=1e-12, atol=1e-13)
    by_graph = autograd_forces(total, pos, types, n_replicas=2)
    torch.testing.assert_close(by_graph, (energy, forces), rtol=1e-11, atol=1e-12)
    with pytest.raises(ValueError, match="one entry a term"):
        total.energy_forces(pos, types, n_replicas=2, nlist=nlist[0])
    with pytest.raises(ValueError, match="at least one term"):
        SumPotential()


def test_weights_come_from_the_seed_alone():
    state = torch.random.get_rng_state()
    first, again, other = FlashSchNet(SMALL, seed=3), FlashSchNet(SMALL, seed=3), FlashSchNet(SMALL, seed=4)
    assert torch.equal(torch.random.get_rng_state(), state)
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        if name.endswith("bias"):
            assert not value.any()
        else:
            assert not torch.equal(value, other.state_dict()[name])
    bound = math.sqrt(6 / (SMALL.hidden + SMALL.filters))
    weight = first.interactions[0].project.weight
    assert weight.abs().max() <= bound
    assert weight.abs().max() > 0.8 * bound


def test_the_replica_types_may_be_given_once():
    model = network()
    pos, types = beads(10)
    torch.testing.assert_close(
        model.energy_forces(pos, types[:5], n_replicas=2),
        model.energy_forces(pos, types[:5].repeat(2), n_replicas=2),
    )


def at(pos, bead, place):
    """The same positions with one bead elsewhere."""
    pos = pos.clone()
    pos[bead] = place
    return pos


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda p, t: (p, t + 30), ValueError, r"type 3\d >= n_types 4"),
        (lambda p, t: (p, t - 9), ValueError, "type -9 < 0"),
        (lambda p, t: (p[:, :2], t), ValueError, r"\[beads, 3\].*\[6, 2\]"),
        (lambda p, t: (p, t[:-1]), ValueError, "6 beads, types"),
        (lambda p, t: (p.float(), t), TypeError, r"pos is torch.float32, the model torch.float64"),
        (lambda p, t: (p, t.int()), TypeError, "types must be int64"),
        (lambda p, t: (at(p, 2, float("nan")), t), ValueError, "bead 2 is not finite"),
        (lambda p, t: (at(p, 3, float("inf")), t), ValueError, "bead 3 is not finite"),
        (lambda p, t: (at(p, 4, p[1]), t), ValueError, "beads 1 and 4 are"),
        (lambda p, t: (p[:0], t[:0]), ValueError, "no beads"),
    ],
)
def test_bad_input_is_named(change, error, message):
    model = network()
    pos, types = change(*beads(6))
    for call in (model, model.energy_forces):
        with pytest.raises(error, match=message):
            call(pos, types)


def test_bad_batches_are_named():
    model = network()
    pos, types = beads(6)
    with pytest.raises(ValueError, match="6 beads cannot be divided into n_replicas=4"):
        model(pos, types, n_replicas=4)
    with pytest.raises(ValueError, match="ascend"):
        model(pos, types, torch.tensor([0, 0, 1, 1, 0, 0]))
    with pytest.raises(ValueError, match="not both"):
        model(pos, types, torch.zeros(6, dtype=torch.int64), n_replicas=1)
    with pytest.raises(ValueError, match="batch must be int64 of length 6"):
        model(pos, types, torch.zeros(5, dtype=torch.int64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hidden": 0}, "hidden must be an integer >= 1, got 0"),
        ({"n_rbf": 1}, "n_rbf must be an integer >= 2"),
        ({"layers": 2.5}, "layers must be an integer"),
        ({"r_cut": float("nan")}, "r_cut must be a positive distance, got nan"),
        ({"rbf": "bessel"}, "rbf must be 'gauss' or 'expnorm', got 'bessel'"),
        ({"activation": "relu"}, "activation must be 'tanh' or 'ssp'"),
        ({"out": (8, 0)}, "out must be an integer >= 1"),
    ],
)
def test_impossible_configurations_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        SchNetConfig(**options)
