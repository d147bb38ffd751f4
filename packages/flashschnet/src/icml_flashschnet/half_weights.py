"""Weights in 16 bits, channel by channel, and activations rounded to 16 bits (W16A16).

A row of a weight matrix makes one output channel c. It is stored as float16 of ``W_c / 2^e_c`` with
``e_c = ceil(log2 max|W_c|)``: the largest entry of every channel lies in (1/2, 1], whatever its scale, and
the power of two is exact. Rounding may be compensated: with the matrix ``H = 2 X X^T`` of the inputs X that a
layer sees, the error of each column is passed on to the columns not yet rounded, as GPTQ does
(arXiv 2210.17323).

Products are taken in the model's own precision, of weights and inputs that have been rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Float16, Int8
from torch import Tensor, nn
from torch.nn import functional

from icml_flashschnet.activation import rounded
from icml_flashschnet.schnet import FlashSchNet

Rounding = Literal["nearest", "compensated"]
DAMPING = 0.01
"""Added to the diagonal of H, as a share of its mean."""
LARGEST = 65504.0
"""Largest float16."""


@dataclass(frozen=True)
class HalfReport:
    """What 16 bits cost, on frames that the rounding has not seen.

    Attributes:
        rms_error: root mean square error of the forces over their root mean square.
        max_error: largest error of a force component over the largest one.
        bytes_before: size of the rounded layers' weights in the model's precision.
        bytes_after: their size now, exponents included.
    """

    rms_error: float
    max_error: float
    bytes_before: int
    bytes_after: int


@dataclass(frozen=True)
class HalfChannels:
    """A matrix in 16 bits: ``mantissa[c] * 2^exponent[c]``."""

    mantissa: Float16[Tensor, "channels inputs"]
    exponent: Int8[Tensor, " channels"]

    def value(self, dtype: torch.dtype) -> Float[Tensor, "channels inputs"]:
        """The matrix that this stands for, exactly."""
        return torch.ldexp(self.mantissa.to(dtype), self.exponent[:, None].to(torch.int32))


def half_channels(
    weight: Float[Tensor, "channels inputs"], hessian: Float[Tensor, "inputs inputs"] | None = None
) -> HalfChannels:
    """Round a matrix, each channel at its own scale.

    Args:
        weight: the matrix.
        hessian: ``H`` of the inputs, to pass errors on; each entry to the nearest float16 without it.

    Raises:
        ValueError: a weight that is not finite.
    """
    if not bool(torch.isfinite(weight).all()):
        raise ValueError("weights must be finite to be rounded")
    rest = weight.detach().double().clone()
    largest = rest.abs().amax(1)
    exponent = torch.where(largest > 0, torch.ceil(torch.log2(largest.clamp_min(1e-300))), 0).clamp(-126, 127)
    scale = torch.exp2(exponent)[:, None]
    if hessian is None:
        return HalfChannels((rest / scale).half(), exponent.to(torch.int8))
    h = hessian.double()
    h = h + DAMPING * h.diagonal().mean().clamp_min(1e-300) * torch.eye(
        len(h), dtype=h.dtype, device=h.device
    )
    factor = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    mantissa = torch.empty_like(rest, dtype=torch.float16)
    for k in range(rest.shape[1]):
        mantissa[:, k] = (rest[:, k] / scale[:, 0]).half()
        error = (rest[:, k] - mantissa[:, k].double() * scale[:, 0]) / factor[k, k]
        rest[:, k + 1 :] -= error[:, None] * factor[k, k + 1 :]
    return HalfChannels(mantissa, exponent.to(torch.int8))


class HalfLinear(nn.Module):
    """A linear layer whose weight is kept in 16 bits.

    Args:
        channels: the weight.
        bias: as it is.
        dtype: of the products.
    """

    def __init__(self, channels: HalfChannels, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("mantissa", channels.mantissa)
        self.register_buffer("exponent", channels.exponent)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        # Products want it in full; it is derived, and no checkpoint holds it.
        self.register_buffer("weight", channels.value(dtype), persistent=False)

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch channels"]:
        """The layer at the inputs rounded to float16."""
        return functional.linear(rounded(x), self.weight, self.bias)


def to_half(
    model: FlashSchNet,
    calibration: tuple[Float[Tensor, "frames beads 3"], Tensor],
    *,
    rounding: Rounding = "nearest",
    max_force_rmse: float = 0.01,
) -> HalfReport:
    """Round all linear layers of beads of a network, in place, and measure what it costs in forces.

    Args:
        model: the network; filters that are not tables are left as they are.
        calibration: positions (Å) of at least two frames, and the bead types; the first half of the frames
            gives the inputs of the layers, the second half measures the errors.
        rounding: "nearest", or "compensated" for what the first half shows.
        max_force_rmse: largest root mean square error of the forces, over their root mean square.

    Raises:
        ValueError: fewer than two frames, activations beyond float16, or a larger error than allowed (the
            model is then as it was).
    """
    pos, types = calibration
    if pos.ndim != 3 or len(pos) < 2:
        raise ValueError(f"calibration takes positions of two frames or more, got shape {list(pos.shape)}")
    if rounding not in ("nearest", "compensated"):
        raise ValueError(f"rounding must be 'nearest' or 'compensated', got {rounding!r}")
    pos = pos.to(model.embedding.weight)
    seen, unseen = pos[: len(pos) // 2], pos[len(pos) // 2 :]
    expected = _forces(model, unseen, types)
    layers = _linear_layers(model)
    hessians = _input_products(model, [layer for _, _, layer in layers], seen, types)
    before = after = 0
    for (owner, name, layer), hessian in zip(layers, hessians, strict=True):
        channels = half_channels(layer.weight, hessian if rounding == "compensated" else None)
        before += layer.weight.numel() * layer.weight.element_size()
        after += 2 * channels.mantissa.numel() + channels.exponent.numel()
        _put(owner, name, HalfLinear(channels, layer.bias, layer.weight.dtype))
    model.half_activations = True
    error = _forces(model, unseen, types) - expected
    report = HalfReport(
        float(error.square().mean().sqrt() / expected.square().mean().sqrt()),
        float(error.abs().max() / expected.abs().max()),
        before,
        after,
    )
    if not report.rms_error <= max_force_rmse:
        for owner, name, layer in layers:
            _put(owner, name, layer)
        model.half_activations = False
        raise ValueError(
            f"16-bit weights change forces by {report.rms_error:.2g} of their root mean square, more than "
            f"max_force_rmse={max_force_rmse:g}; allow more, or keep weights='fp32'"
        )
    return report


def _linear_layers(model: FlashSchNet) -> list[tuple[nn.Module, str, nn.Linear]]:
    found: list[tuple[nn.Module, str, nn.Linear]] = []
    for layer in model.interactions:
        found += [(layer, name, getattr(layer, name)) for name in ("project", "mix", "update")]
    found += [(model.readout, str(number), layer) for number, layer in enumerate(model.readout)]
    if any(not isinstance(layer, nn.Linear) for _, _, layer in found):
        raise ValueError("the weights are in 16 bits already")
    return found


def _put(owner: nn.Module, name: str, layer: nn.Module) -> None:
    owner._modules[name] = layer


@torch.no_grad()
def _forces(model: FlashSchNet, pos: Tensor, types: Tensor) -> Tensor:
    flat = pos.reshape(-1, 3)
    return model.energy_forces(flat, types.to(pos.device), n_replicas=len(pos))[1].double()


@torch.no_grad()
def _input_products(
    model: FlashSchNet, layers: Sequence[nn.Linear], pos: Tensor, types: Tensor
) -> list[Float[Tensor, "inputs inputs"]]:
    """``2 X X^T`` of the inputs X of every layer.

    Raises:
        ValueError: an input beyond the range of float16.
    """
    products = [torch.zeros(n, n, dtype=torch.float64) for n in (layer.in_features for layer in layers)]

    def watch(place: int):
        def hook(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0].double().cpu()
            if float(x.abs().max()) > LARGEST:
                raise ValueError(
                    f"activations reach {float(x.abs().max()):.3g}, beyond float16 ({LARGEST:g})"
                )
            products[place] += 2 * x.T @ x

        return hook

    hooks = [layer.register_forward_pre_hook(watch(place)) for place, layer in enumerate(layers)]
    try:
        model(pos.reshape(-1, 3), types.to(pos.device), n_replicas=len(pos))
    finally:
        for handle in hooks:
            handle.remove()
    return [product.to(model.embedding.weight.device) for product in products]
