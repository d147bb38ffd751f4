"""Mode products against einsum on complex numbers; truncated transforms against full ones."""

from __future__ import annotations

import pytest
import torch
from icml_kernels import corner_modes, mode_product, spectral_conv, truncated_irfft, truncated_rfft
from icml_kernels.spectral import spectral_conv as module
from icml_kernels.spectral.mode_product.cases import CASES, factors
from icml_kernels.testing import check_compiled, check_derivatives, check_raw_ops, check_route, use_route

SHAPES = [((16,), (5,)), ((9,), (5,)), ((8, 8), (4, 3)), ((10, 7), (3, 4)), ((4, 6, 8), (3, 2, 5))]


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_numba_equals_the_definition(case, dtype):
    check_route(case.bind(mode_product), case.arguments(), dtype=dtype)


@pytest.mark.parametrize("route", ["auto", "reference"])
@pytest.mark.parametrize("conj_a", [False, True])
@pytest.mark.parametrize("conj_b", [False, True])
def test_equals_a_product_of_complex_matrices(route, conj_a, conj_b):
    a, b = factors(3, 4, 2, 6)
    left, right = torch.view_as_complex(a), torch.view_as_complex(b)
    left, right = left.conj() if conj_a else left, right.conj() if conj_b else right
    with use_route(route):
        found = mode_product(a, b, conj_a=conj_a, conj_b=conj_b)
    expected = torch.einsum("pqm,qrm->prm", left, right)
    torch.testing.assert_close(torch.view_as_complex(found), expected)


def test_views_are_read_where_they_lie():
    a, b = factors(3, 4, 2, 6)
    expected = mode_product(a, b)
    turned = mode_product(
        a.transpose(0, 1).contiguous().transpose(0, 1), b.transpose(0, 1).clone().transpose(0, 1)
    )
    torch.testing.assert_close(turned, expected)
    sparse = mode_product(a.repeat(1, 1, 2, 1)[:, :, ::2], b.repeat(1, 1, 2, 1)[:, :, ::2])
    doubled_a, doubled_b = (
        a.repeat(1, 1, 2, 1)[:, :, ::2].contiguous(),
        b.repeat(1, 1, 2, 1)[:, :, ::2].contiguous(),
    )
    torch.testing.assert_close(sparse, mode_product(doubled_a, doubled_b))
    wide = a[:1].expand(3, -1, -1, -1)
    torch.testing.assert_close(mode_product(wide, b), mode_product(wide.contiguous(), b))


def test_raw_operators_are_well_formed():
    assert check_raw_ops(mode_product, factors(2, 3, 2, 4)) == {"icml::mode_product"}


@pytest.mark.parametrize("flags", [(False, False), (True, False), (False, True), (True, True)], ids=str)
def test_derivatives(flags):
    function = lambda a, b: mode_product(a, b, conj_a=flags[0], conj_b=flags[1])  # noqa: E731
    check_derivatives(function, factors(2, 2, 2, 3))


def test_compiled():
    check_compiled(mode_product, factors(2, 3, 2, 4))


@pytest.mark.parametrize("products", [True, False], ids=["products", "fast"])
@pytest.mark.parametrize(("shape", "modes"), SHAPES, ids=str)
def test_transforms_equal_the_corners_of_full_ones(shape, modes, products, monkeypatch):
    monkeypatch.setattr(module, "_by_products", lambda *_: products)
    x = random(2, 3, *shape)
    axes = tuple(range(2, x.dim()))
    full = torch.fft.rfftn(x, dim=axes, norm="forward")
    kept = truncated_rfft(x, modes)
    assert kept.shape == (2, 3, *modes, 2)
    for place in torch.cartesian_prod(*(torch.arange(m) for m in modes)).view(-1, len(modes)).tolist():
        frequency = [p - m // 2 for p, m in zip(place[:-1], modes[:-1], strict=True)] + place[-1:]
        expected = torch.view_as_real(full[(slice(None), slice(None), *frequency)])
        torch.testing.assert_close(kept[(slice(None), slice(None), *place)], expected)
    pairs = random(2, 3, *modes, 2, seed=1)
    filled = torch.zeros_like(full)
    for place in torch.cartesian_prod(*(torch.arange(m) for m in modes)).view(-1, len(modes)).tolist():
        frequency = [p - m // 2 for p, m in zip(place[:-1], modes[:-1], strict=True)] + place[-1:]
        at = (slice(None), slice(None))
        filled[(*at, *frequency)] = torch.view_as_complex(pairs[(*at, *place)].contiguous())
    expected = torch.fft.irfftn(filled, s=shape, dim=axes, norm="forward")
    torch.testing.assert_close(truncated_irfft(pairs, shape), expected)


def test_a_field_without_high_modes_comes_back():
    space = torch.arange(12, dtype=torch.float64) * 2 * torch.pi / 12
    field = (torch.cos(space)[:, None] + torch.sin(2 * space)[None, :] + 0.5)[None, None]
    torch.testing.assert_close(truncated_irfft(truncated_rfft(field, (3, 3)), (12, 12)), field)


def test_convolution_from_a_full_spectrum_and_from_kept_modes():
    x, weight = random(2, 3, 8, 10), random(3, 4, 4, 3, 2, seed=1)
    full = torch.fft.rfftn(x, dim=(2, 3), norm="forward")
    kept = spectral_conv(truncated_rfft(x, (4, 3)), weight)
    torch.testing.assert_close(spectral_conv(full, weight, corners=(8, 10)), kept)
    modes = torch.view_as_complex(corner_modes(full, (8, 10), (4, 3)).contiguous())
    expected = torch.einsum("bixy,ioxy->boxy", modes, torch.view_as_complex(weight))
    torch.testing.assert_close(torch.view_as_complex(kept), expected)


def test_gradients_of_the_whole_convolution():
    weight = random(2, 2, 2, 2, 2, seed=1)
    x = random(1, 2, 4, 5)

    def convolution(x, weight):
        return truncated_irfft(spectral_conv(truncated_rfft(x, (2, 2)), weight), (4, 5))

    assert torch.autograd.gradcheck(convolution, (x.requires_grad_(), weight.requires_grad_()))


def test_transforms_stay_in_float32_under_autocast():
    x = random(2, 3, 20, 20).float()
    expected = truncated_rfft(x, (5, 4))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = truncated_rfft(x, (5, 4))
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_bad_input():
    a, b = factors(2, 3, 4, 5)
    with pytest.raises(TypeError, match="a is torch.complex128; expected float32 or float64 pairs"):
        mode_product(torch.view_as_complex(a), b)
    with pytest.raises(TypeError, match="convert one"):
        mode_product(a.float(), b)
    with pytest.raises(ValueError, match=r"a has shape \[2, 3, 5\]"):
        mode_product(a[..., 0], b)
    with pytest.raises(ValueError, match="cannot be multiplied"):
        mode_product(a, b[1:])
    with pytest.raises(ValueError, match=r"modes=\(9,\) cannot be kept of fields \(8,\), which have \(5,\)"):
        truncated_rfft(random(1, 1, 8), (9,))
    with pytest.raises(TypeError, match="expected float32 or float64"):
        truncated_rfft(random(1, 1, 8).half(), (2,))
    with pytest.raises(TypeError, match="expected float32 or float64"):
        truncated_irfft(random(1, 1, 2, 2).half(), (8,))
    with pytest.raises(TypeError, match="expected a complex one"):
        corner_modes(random(1, 1, 8), (8,), (2,))
    with pytest.raises(ValueError, match=r"expected \[batch, channels, \*\[5\]\]"):
        corner_modes(random(1, 1, 8).to(torch.complex128), (8,), (2,))
    with pytest.raises(ValueError, match="or a full transform and corners="):
        spectral_conv(random(1, 3, 4, 2), random(3, 2, 5, 2))


def test_matrices_made_in_inference_mode_serve_a_backward_pass():
    x = torch.randn(1, 2, 23, 29, requires_grad=True)  # sizes that no other test has
    weight = torch.randn(2, 2, 5, 3, 2, requires_grad=True)

    def convolved() -> torch.Tensor:
        return truncated_irfft(spectral_conv(truncated_rfft(x, (5, 3)), weight), (23, 29))

    with torch.inference_mode():
        first = convolved()
    second = convolved()
    second.square().sum().backward()
    assert bool(torch.isfinite(x.grad).all())
    assert bool(torch.isfinite(weight.grad).all())
    torch.testing.assert_close(first.clone(), second.detach())
