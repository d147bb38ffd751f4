"""Wavefunctions against NumPy, their derivatives against autograd, their precision against its bounds."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from icml_mpvmc import RBM, AmplitudePhase, LogPsi, ResCNN, as_spins, complex_rbm, log_derivatives
from icml_mpvmc.hamiltonian import enumerate_spins
from icml_mpvmc.lowered import LogDensity
from icml_mpvmc.netket_files import read_parameters
from icml_mpvmc.networks import load_wavefunction, machine_of_netket, network, save_wavefunction
from scipy.ndimage import convolve
from scipy.special import erf


def spins(rows, n, seed=0):
    g = torch.Generator().manual_seed(seed)
    return (2 * torch.randint(0, 2, (rows, n), generator=g) - 1).to(torch.int8)


def test_rbm_is_log_cosh_summed():
    model, x = RBM(6, 2, std=0.7, seed=1), spins(9, 6)
    w, b, a = (p.detach().numpy() for p in (model.weight, model.hidden_bias, model.visible_bias))
    s = x.double().numpy()
    expected = np.log(np.cosh(b + s @ w)).sum(1) + s @ a
    np.testing.assert_allclose(model(x).detach().numpy(), expected, rtol=1e-12)
    big = RBM(3, 1, std=500.0)(spins(4, 3))
    assert bool(big.isfinite().all())
    assert isinstance(model, LogPsi)


def test_rescnn_is_the_network_of_the_paper():
    """Against scipy.ndimage's periodic correlation and the formulas of GELU and LayerNorm."""
    model, x = ResCNN((4, 5), filters=3, blocks=2, seed=2), spins(2, 20)
    with torch.no_grad():
        for k, p in enumerate(model.parameters()):
            p += 0.1 * torch.randn(p.shape, generator=torch.Generator().manual_seed(k), dtype=p.dtype)

    def conv(field, layer):
        w, b = (p.detach().numpy() for p in (layer.weight, layer.bias))
        return np.stack(
            [
                b[f] + sum(convolve(field[c], w[f, c, ::-1, ::-1], mode="wrap") for c in range(len(field)))
                for f in range(len(w))
            ]
        )

    def norm(field, layer):
        w, b = (p.detach().numpy()[:, None, None] for p in (layer.weight, layer.bias))
        return (field - field.mean(0)) / np.sqrt(field.var(0) + 1e-6) * w + b

    def gelu(u):
        return 0.5 * u * (1 + np.tanh(np.sqrt(2 / np.pi) * (u + 0.044715 * u**3)))

    assert np.abs(gelu(1.0) - 0.5 * (1 + erf(1 / np.sqrt(2)))) < 1e-3
    for row, value in zip(x.double().numpy(), model(x).tolist(), strict=True):
        field = conv(row.reshape(1, 4, 5), model.embed)
        for block in model.blocks:
            inner = conv(gelu(norm(field, block.norm)), block.first)
            field = field + conv(gelu(inner), block.second)
        assert value == pytest.approx(norm(field, model.norm).sum(), rel=1e-10)


def test_a_chain_of_the_network_is_invariant_under_translations():
    model, x = ResCNN((7,), filters=4, blocks=1, seed=3), spins(3, 7)
    with torch.no_grad():
        model.norm.weight += torch.linspace(-1, 1, 4)
    torch.testing.assert_close(model(x), model(x.roll(2, 1)))
    with pytest.raises(ValueError, match="kernel=2"):
        ResCNN((4,), kernel=2)


@pytest.mark.parametrize(
    "make", [lambda: RBM(5, 2, std=0.4), lambda: ResCNN((5,), 3, 1), lambda: complex_rbm(5, 1, std=0.4)]
)
def test_log_derivatives_are_those_of_autograd(make):
    model, x = make(), spins(6, 5)
    found = log_derivatives(model, x, chunk=4)
    for row, derivative in zip(x, found, strict=True):
        value = model(row[None])[0]
        parts = [value.real, *([value.imag] if value.is_complex() else [])]
        rows = [
            torch.cat(
                [
                    g.flatten()
                    for g in torch.autograd.grad(
                        p, list(model.parameters()), materialize_grads=True, retain_graph=True
                    )
                ]
            )
            for p in parts
        ]
        expected = torch.complex(*rows) if len(rows) == 2 else rows[0]
        torch.testing.assert_close(derivative, expected)


def test_models_without_a_visible_bias():
    model = RBM(4, 1, visible_bias=False, std=0.5)
    assert log_derivatives(model, spins(3, 4)).shape == (3, 20)
    assert bool((model.visible == 0).all())


@pytest.mark.parametrize("device", ["cpu"])
def test_precisions_are_what_they_are_called(device):
    """σ over all states: float32 below 1e-5, bf16 a few thousandth, and sums in float32 help."""
    model = RBM(10, 2, std=0.3, seed=4).to(device)
    x = enumerate_spins(10).to(device)
    exact = LogDensity(model)(x)
    sigma = {
        (d, u): float((LogDensity(model, d, upcast=u)(x).double() - exact).std())
        for d in ("f32", "bf16", "f16") for u in (True, False)
    }  # fmt: skip
    assert sigma["f32", True] < 1e-5
    assert 1e-3 < sigma["bf16", True] < 0.5 * sigma["bf16", False] < 0.5
    assert sigma["f16", True] < 0.3 * sigma["bf16", True]
    assert LogDensity(model, "bf16")(x).dtype == torch.float32


def test_one_shape_gives_one_value():
    """δ is quenched: in the sampler's shape a state has one log π̃, wherever it stands in whichever batch."""
    model, x = RBM(32, 2, std=0.3), spins(100, 32)
    low = LogDensity(model, "bf16", rows=64)
    whole = low(x)
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0))
    assert torch.equal(low(x[order]), whole[order])
    assert torch.equal(low(x[3:4]), whole[3:4])
    seen = []
    function = LogDensity(lambda rows: seen.append(len(rows)) or rows.sum(1), "f32", rows=16)
    function(x)
    assert set(seen) == {16}


def test_overflow_says_how_large_the_value_is():
    model = RBM(4, 1)
    with torch.no_grad():
        model.hidden_bias += 2e4
    with pytest.raises(
        FloatingPointError, match=r"log ψ overflows float16: \|value\| up to 8e\+04 .* use bf16"
    ):
        LogDensity(model, "f16", upcast=False)(spins(2, 4))
    assert bool(LogDensity(model, "bf16")(spins(2, 4)).isfinite().all())
    with torch.no_grad():
        model.hidden_bias *= float("nan")
    with pytest.raises(FloatingPointError, match="in float64 too"):
        LogDensity(model, "f32")(spins(2, 4))


def test_constants_of_functions_are_rounded_too():
    shift = torch.tensor([1 / 3], dtype=torch.float64)
    low = LogDensity(lambda x: (x * shift).sum(1), "bf16")
    assert float(low(torch.ones(1, 1, dtype=torch.float64))[0]) == float(shift.bfloat16())


def test_spins_of_other_encodings_and_bad_ones():
    assert as_spins([[0, 1]], encoding="01").tolist() == [[1, -1]]
    with pytest.raises(ValueError, match="encoding='01'"):
        as_spins(torch.tensor([[0, 1]]))
    with pytest.raises(ValueError, match="takes the values 0"):
        as_spins([[1, -1]], encoding="01")
    with pytest.raises(ValueError, match="spins have shape"):
        as_spins([1, -1])
    with pytest.raises(ValueError, match="encoding='x'"):
        as_spins([[1]], encoding="x")
    with pytest.raises(ValueError, match=r"expected \[rows, 4\]"):
        RBM(4)(spins(2, 5))
    with pytest.raises(ValueError, match="n_spins=0"):
        RBM(0)


@pytest.mark.parametrize("name", ["rbm", "complex_rbm", "rescnn"])
def test_files_of_wavefunctions(name, tmp_path):
    model = network(name, (3, 4), alpha=1, filters=4, blocks=1, seed=5)
    file = tmp_path / "w.safetensors"
    save_wavefunction(file, model, {"network": name, "shape": [3, 4], "alpha": 1, "filters": 4, "blocks": 1})
    again, _ = load_wavefunction(file)
    x = spins(3, 12)
    assert torch.equal(again(x), model(x))
    save_wavefunction(file, model, {"network": name, "shape": [10**6, 10**6]})
    with pytest.raises(ValueError, match="not believed"):
        load_wavefunction(file)
    with pytest.raises(ValueError, match="network='x'"):
        network("x", (3,))


def test_parameters_of_netket_machines():
    model = RBM(4, 2, std=0.3)
    given = {
        "Dense": {"kernel": model.weight.detach().numpy(), "bias": model.hidden_bias.detach().numpy()},
        "visible_bias": model.visible_bias.detach().numpy(),
    }
    x = spins(3, 4)
    assert torch.equal(machine_of_netket(given)(x), model(x))
    with pytest.raises(ValueError, match="Dense/kernel"):
        machine_of_netket({"Conv": 1})
    assert isinstance(complex_rbm(3), AmplitudePhase)


def packed(value):
    """A small writer of MessagePack, with Flax's extension for arrays."""
    if isinstance(value, dict):
        return bytes([0x80 + len(value)]) + b"".join(packed(k) + packed(v) for k, v in value.items())
    if isinstance(value, str):
        return bytes([0xA0 + len(value)]) + value.encode()
    if isinstance(value, int):
        return bytes([value])
    if isinstance(value, bytes):
        return b"\xc6" + len(value).to_bytes(4, "big") + value
    if isinstance(value, tuple):
        return bytes([0x90 + len(value)]) + b"".join(map(packed, value))
    inner = packed((value.shape, value.dtype.name, value.tobytes()))
    return b"\xc9" + len(inner).to_bytes(4, "big") + b"\x01" + inner


def test_files_of_netket_are_read_without_it(tmp_path):
    model = RBM(3, 2, std=0.3)
    arrays = [p.detach().numpy() for p in (model.weight, model.hidden_bias, model.visible_bias)]
    tree = {
        "variables": {
            "params": {"Dense": {"kernel": arrays[0], "bias": arrays[1]}, "visible_bias": arrays[2]}
        }
    }
    file = tmp_path / "state.mpack"
    file.write_bytes(packed(tree))
    again = machine_of_netket(read_parameters(file))
    assert torch.equal(again(spins(4, 3)), model(spins(4, 3)))
    for damaged in (packed(tree)[:-9], b"\xdf\xff\xff\xff\xff", b"\xc1", b"\x91" * 100, packed(3)):
        file.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"state.mpack"):
            read_parameters(file)


def test_blocks_without_gradients_give_what_one_pass_gives():
    model, x = ResCNN((4, 3), filters=3, blocks=1, seed=6), spins(700, 12)
    with torch.no_grad():
        model.norm.weight += torch.linspace(-1, 1, 3)
        blocks = model(x)
    torch.testing.assert_close(blocks, model(x).detach(), rtol=1e-12, atol=1e-12)
