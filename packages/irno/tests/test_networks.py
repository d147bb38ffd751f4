"""U-Net, other correctors, padding, upsampling, FNO: shapes, symmetries, and independent computations."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from icml_irno import FNO, Refiner, make_refiner, spectral_resample
from icml_irno.boundaries import extend, pad, pad_axis, per_axis, upsample
from icml_irno.fno import spectral_convolution
from icml_irno.refiner import DoubleBlock
from torch import nn


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("mode", ["circular", "zeros", "reflect"])
@pytest.mark.parametrize("width", [1, 3, 7])
def test_padding_equals_a_loop(mode, width):
    x = random(1, 1, 4)
    line = x[0, 0].tolist()

    def at(i: int) -> float:
        if mode == "zeros":
            return line[i] if 0 <= i < 4 else 0.0
        if mode == "circular":
            return line[i % 4]
        i = abs(i) % 6
        return line[min(i, 6 - i)]

    expected = [at(i) for i in range(-width, 4 + width)]
    assert pad_axis(x, 0, width, width, mode)[0, 0].tolist() == expected
    assert pad(x, [width], [mode])[0, 0].tolist() == expected


def test_each_axis_is_padded_by_its_own_rule():
    x = random(1, 1, 3, 4)
    found = pad(x, [1, 1], ["circular", "reflect"])
    expected = F.pad(F.pad(x, (0, 0, 1, 1), "circular"), (1, 1, 0, 0), "reflect")
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["unet", "resnet", "convnext", "fno"])
def test_correctors_take_and_give_fields_of_any_dimension(kind, dims):
    options = {"modes": 4} if kind == "fno" else {}
    module = make_refiner(kind, 2, 3, base_channels=4, depth=2, dims=dims, **options).double()
    shape = (9, 6, 5)[:dims]
    found = module(random(2, 5, *shape))
    assert found.shape == (2, 3, *shape)
    assert 0 < float(found.detach().abs().max()) < 3


def test_one_padding_for_both_convolutions_equals_two():
    block = DoubleBlock(3, 4, ("circular", "reflect"), "layer", 2).double()
    x = random(2, 3, 6, 5)
    expected = x
    for convolution, norm in ((block.first, block.first_norm), (block.second, block.second_norm)):
        padded = F.pad(F.pad(expected, (0, 0, 1, 1), "circular"), (1, 1, 0, 0), "reflect")
        expected = F.gelu(norm(convolution(padded)))
    torch.testing.assert_close(block(x), expected)


def test_layer_norm_is_over_channels_at_each_point():
    block = DoubleBlock(1, 5, ("circular",), "layer", 1).double()
    x = block.first_norm(random(2, 5, 7))
    torch.testing.assert_close(x.mean(1), torch.zeros(2, 7, dtype=torch.float64), atol=1e-12, rtol=0)


def test_the_u_net_against_its_layers_written_out():
    net = Refiner(1, 1, base_channels=2, depth=1, dims=2).double()
    xh = random(1, 2, 4, 6)
    skip = net.encoder[0](xh)
    low = net.bottleneck(F.max_pool2d(skip, 2))
    up = F.interpolate(low, scale_factor=2, mode="bilinear", align_corners=True)
    half = F.conv2d(F.pad(up, (1, 1, 1, 1), "circular"), net.halvings[0].weight, net.halvings[0].bias)
    expected = net.output(net.decoder[0](torch.cat([half, skip], 1)))
    torch.testing.assert_close(net(xh), expected)


def test_the_last_layer_starts_small_and_without_bias():
    net = Refiner(1, 2, base_channels=16, depth=1)
    bound = 0.1 * math.sqrt(6 / (16 + 2))
    assert float(net.output.weight.detach().abs().max()) <= bound
    assert float(net.output.weight.detach().abs().max()) > 0.8 * bound
    assert net.output.bias.tolist() == [0.0, 0.0]


def equivariance(net: nn.Module, axis: int, shift: int) -> float:
    xh = random(1, 2, 16, 16)
    moved = net(xh.roll(shift, axis))
    return float((moved - net(xh).roll(shift, axis)).abs().max() / moved.abs().max())


def test_shifts_by_multiples_of_two_to_the_depth_along_the_periodic_axis_only():
    options = {"base_channels": 4, "depth": 2, "padding": ("circular", "reflect")}
    periodic = Refiner(1, 1, upsampling="periodic", **options).double()
    assert equivariance(periodic, 2, 4) < 1e-5
    assert equivariance(periodic, 2, 8) < 1e-5
    assert equivariance(periodic, 3, 4) > 1e-3
    assert equivariance(periodic, 2, 3) > 1e-5
    published = Refiner(1, 1, upsampling="bilinear", **options).double()
    assert equivariance(published, 2, 4) > 1e-3


@pytest.mark.parametrize("modes", [("circular",), ("reflect",)], ids=str)
def test_upsampling_keeps_lines_straight(modes):
    constant = torch.full((1, 1, 6), 2.5)
    torch.testing.assert_close(upsample(constant, modes, True), torch.full((1, 1, 12), 2.5))
    x = random(1, 1, 6)
    assert upsample(x, modes, False).shape == (1, 1, 12)
    if modes == ("reflect",):
        torch.testing.assert_close(upsample(x, modes, True)[..., [0, -1]], x[..., [0, -1]])
    else:
        torch.testing.assert_close(upsample(x, modes, True).mean(), x.mean())


def test_bad_options_of_correctors():
    with pytest.raises(ValueError, match="padding='mirror'"):
        Refiner(1, 1, padding="mirror")
    with pytest.raises(ValueError, match="or 2 of them"):
        per_axis(("circular",), 2)
    with pytest.raises(ValueError, match="norm='instance'"):
        Refiner(1, 1, norm="instance")
    with pytest.raises(ValueError, match="dims=4"):
        Refiner(1, 1, dims=4)
    with pytest.raises(ValueError, match="base_channels=0"):
        Refiner(1, 1, base_channels=0)
    with pytest.raises(ValueError, match="upsampling='cubic'"):
        Refiner(1, 1, upsampling="cubic")
    with pytest.raises(ValueError, match="smaller than 2\\^depth = 16"):
        Refiner(1, 1)(torch.zeros(1, 2, 8, 32))
    with pytest.raises(ValueError, match=r"the refiner got \[1, 3, 16, 16\]; expected \[batch, 2 channels"):
        Refiner(1, 1, base_channels=4)(torch.zeros(1, 3, 16, 16))
    with pytest.raises(ValueError, match="refiner='vit'"):
        make_refiner("vit", 1, 1)
    with pytest.warns(UserWarning, match="mixes the statistics"):
        Refiner(1, 1, base_channels=2, depth=1, norm="batch")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Refiner(1, 1, base_channels=2, depth=1, norm="group")


@pytest.mark.parametrize(
    ("shape", "modes"), [((12,), (6,)), ((8, 10), (4, 6)), ((6, 6, 8), (3, 4, 4))], ids=str
)
def test_spectral_convolution_equals_full_transforms(shape, modes):
    kept = (*modes[:-1], modes[-1] // 2 + 1)
    x, weight = random(2, 3, *shape), random(3, 2, *kept, 2, seed=1)
    axes = tuple(range(2, x.dim()))
    spectrum = torch.fft.rfftn(x, dim=axes, norm="forward")
    if len(axes) > 1:
        spectrum = torch.fft.fftshift(spectrum, dim=axes[:-1])
    at = [slice(None)] * 2
    at += [slice(n // 2 - m // 2, n // 2 - m // 2 + m) for n, m in zip(shape[:-1], modes[:-1], strict=True)]
    at.append(slice(kept[-1]))
    out = torch.zeros(2, 2, *spectrum.shape[2:], dtype=spectrum.dtype)
    out[tuple(at)] = torch.einsum("bi...,io...->bo...", spectrum[tuple(at)], torch.view_as_complex(weight))
    if len(axes) > 1:
        out = torch.fft.ifftshift(out, dim=axes[:-1])
    expected = torch.fft.irfftn(out, s=shape, dim=axes, norm="forward")
    torch.testing.assert_close(spectral_convolution(x, weight), expected)


def test_an_fno_without_coordinates_commutes_with_shifts_and_works_on_coarser_grids():
    net = FNO((6, 6), 1, 2, 8, n_layers=2, positional_embedding=None).double()
    x = random(1, 1, 9, 12)
    torch.testing.assert_close(net(x.roll((2, 5), (2, 3))), net(x).roll((2, 5), (2, 3)))
    assert net(random(1, 1, 4, 3)).shape == (1, 2, 4, 3)


def test_an_fno_sees_no_resolution_in_a_smooth_field():
    net = FNO((4,), 1, 1, 6, n_layers=1).double()
    for layer in net.layers:  # a pointwise non-linearity makes frequencies that a coarse grid folds
        nn.init.zeros_(layer.mlp[2].weight)
    line = [torch.sin(2 * torch.pi * torch.arange(n, dtype=torch.float64) / n)[None, None] for n in (16, 32)]
    layer = net.layers[0]
    coarse, fine = (spectral_convolution(v.expand(1, 6, -1), layer.weight) for v in line)
    torch.testing.assert_close(fine[..., ::2], coarse)


def test_bad_input_of_the_fno():
    with pytest.raises(ValueError, match="n_modes="):
        FNO((), 1, 1, 4)
    with pytest.raises(ValueError, match="hidden_channels=0"):
        FNO((4,), 1, 1, 0)
    with pytest.raises(ValueError, match="positional_embedding='sine'"):
        FNO((4,), 1, 1, 4, positional_embedding="sine")
    net = FNO((4,), 1, 1, 4, n_layers=1)
    with pytest.raises(TypeError, match=r"torch.complex64.*two channels"):
        net(torch.zeros(1, 1, 8, dtype=torch.complex64))
    with pytest.raises(ValueError, match=r"\[1, 2, 8\]; expected \[batch, 1"):
        net(torch.zeros(1, 2, 8))
    with pytest.raises(ValueError, match="no fno_blocks.convs"):
        FNO.from_neuralop_state({})


# The state of neuralop.models.FNO((4, 4), 2, 1, hidden_channels=3, n_layers=2) of neuraloperator 2.0.0.
NEURALOP = {
    "fno_blocks.channel_mlp.0.fcs.0.bias": (2,),
    "fno_blocks.channel_mlp.0.fcs.0.weight": (2, 3, 1),
    "fno_blocks.channel_mlp.0.fcs.1.bias": (3,),
    "fno_blocks.channel_mlp.0.fcs.1.weight": (3, 2, 1),
    "fno_blocks.channel_mlp.1.fcs.0.bias": (2,),
    "fno_blocks.channel_mlp.1.fcs.0.weight": (2, 3, 1),
    "fno_blocks.channel_mlp.1.fcs.1.bias": (3,),
    "fno_blocks.channel_mlp.1.fcs.1.weight": (3, 2, 1),
    "fno_blocks.channel_mlp_skips.0.weight": (1, 3, 1, 1),
    "fno_blocks.channel_mlp_skips.1.weight": (1, 3, 1, 1),
    "fno_blocks.convs.0.bias": (3, 1, 1),
    "fno_blocks.convs.0.weight.tensor": (3, 3, 4, 3),
    "fno_blocks.convs.1.bias": (3, 1, 1),
    "fno_blocks.convs.1.weight.tensor": (3, 3, 4, 3),
    "fno_blocks.fno_skips.0.conv.weight": (3, 3, 1),
    "fno_blocks.fno_skips.1.conv.weight": (3, 3, 1),
    "lifting.fcs.0.bias": (6,),
    "lifting.fcs.0.weight": (6, 4, 1),
    "lifting.fcs.1.bias": (3,),
    "lifting.fcs.1.weight": (3, 6, 1),
    "projection.fcs.0.bias": (6,),
    "projection.fcs.0.weight": (6, 3, 1),
    "projection.fcs.1.bias": (1,),
    "projection.fcs.1.weight": (1, 6, 1),
}
# The first rows of what it gives for waves(1, 2, 8, 6) when every weight is made by waves.
NEURALOP_GIVES = [
    [-3.14682, -3.07293, -2.93357, -3.14544, -3.12769, -2.64437],
    [-3.08065, -3.25846, -3.05821, -3.14955, -3.00346, -2.66057],
    [-3.07691, -3.0817, -3.27463, -3.28231, -2.70101, -3.00627],
]


def waves(*shape: int, phase: float = 0.0) -> torch.Tensor:
    i = torch.arange(math.prod(shape), dtype=torch.float64)
    return torch.sin(0.37 * i * (1 + 0.01 * i) + phase).view(shape)


def test_equals_what_neuralop_gave():
    state = {}
    for number, (name, shape) in enumerate(NEURALOP.items()):
        real, imaginary = (waves(*shape, phase=number + part) for part in (0.0, 0.5))
        state[name] = (torch.complex(real, imaginary) if "convs" in name and "weight" in name else real).to(
            torch.complex64 if "convs" in name and "weight" in name else torch.float32
        )
    with torch.no_grad():
        found = FNO.from_neuralop_state(state, in_channels=2)(waves(1, 2, 8, 6).float())
    assert float(found.std()) > 0.2
    torch.testing.assert_close(found[0, 0, :3], torch.tensor(NEURALOP_GIVES), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"positional_embedding": None}], ids=str)
@pytest.mark.parametrize("modes", [(8,), (8, 6), (4, 4, 6)], ids=str)
def test_equals_neuralop_after_copying_its_weights(modes, options):
    models = pytest.importorskip("neuralop.models")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        theirs = models.FNO(
            n_modes=modes, in_channels=2, out_channels=1, hidden_channels=8, n_layers=2, **options
        )
    ours = FNO.from_neuralop(theirs)
    # Of odd sizes only the last axis: elsewhere neuralop shifts the spectrum back by one frequency too many.
    for shape in ((16, 12, 10)[: len(modes)], (*(10, 14)[: len(modes) - 1], 9)):
        x = random(2, 2, *shape).float()
        torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", ["circular", "reflect"])
def test_resampling_keeps_what_both_grids_hold(mode):
    def field(n: int) -> torch.Tensor:
        x = (torch.arange(n, dtype=torch.float64) + (0.5 if mode == "reflect" else 0.0)) / n
        waves = (2, 4) if mode == "circular" else (1, 3)
        return sum(torch.cos(w * torch.pi * x) / (w + 1) for w in waves)[None, None] + 0.3

    for small, large in ((8, 16), (9, 20), (10, 15), (12, 30)):
        torch.testing.assert_close(spectral_resample(field(small), (large,), (mode,)), field(large))
        torch.testing.assert_close(spectral_resample(field(large), (small,), (mode,)), field(small))


def test_resampling_up_and_down_returns_the_field():
    x = random(2, 3, 9, 11)
    torch.testing.assert_close(spectral_resample(spectral_resample(x, (20, 30)), (9, 11)), x)
    assert spectral_resample(x.half(), (12, 12)).dtype == torch.float16
    with pytest.raises(ValueError, match="expected 2 positive sizes"):
        spectral_resample(x, (4,))
    with pytest.raises(TypeError, match="int64"):
        spectral_resample(x.long(), (4, 4))


def test_a_wall_is_mirrored():
    x = torch.tensor([[[1.0, 2.0, 4.0]]])
    assert extend(x, ("reflect",))[0, 0].tolist() == [1.0, 2.0, 4.0, 4.0, 2.0, 1.0]
    assert extend(x, ("circular",))[0, 0].tolist() == [1.0, 2.0, 4.0]
