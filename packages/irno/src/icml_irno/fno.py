"""Fourier neural operator (arXiv 2010.08895) in one to three dimensions, for users who have no base yet.

Architecture, names of options and defaults follow ``neuralop.models.FNO``; :meth:`FNO.from_neuralop` copies
such a model's weights. Spectral weights are stored real, [in, out, *modes, 2], and the transforms keep only
the modes that are used (``icml_kernels.truncated_rfft``), so that odd sizes, half precision under autocast,
data-parallel training and compilation work alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from icml_core.randomness import seeded
from icml_kernels import spectral_conv, truncated_irfft, truncated_rfft
from jaxtyping import Float
from torch import Tensor, nn

_CONVOLUTIONS = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}


class FNO(nn.Module):
    """[batch, in, *space] -> [batch, out, *space]: lifting, Fourier layers with an MLP each, projection.

    Layer i: v = conv_i(x) + skip_i(x), GELU, mlp_i(v) + gate_i x, GELU; no GELU in the last layer.

    Args:
        n_modes: modes kept along each axis, negative ones included; their number is that of the axes. Fields
            with fewer use those they have.
        in_channels, out_channels: of the operator.
        hidden_channels: width.
        n_layers: Fourier layers.
        lifting_channel_ratio, projection_channel_ratio: width of the hidden layers of lifting and projection
            over ``hidden_channels``.
        channel_mlp_expansion: width of each layer's MLP over ``hidden_channels``.
        positional_embedding: ``"grid"`` appends coordinates from 0 to 1, which breaks shift equivariance; or
            None.
        seed: of the initial weights.

    Raises:
        ValueError: sizes that make no network, or at a call, a field of another number of channels or axes.
        TypeError: at a call, a complex or integer field.

    Example:
        >>> FNO((8, 8), 1, 1, hidden_channels=8, n_layers=1)(torch.zeros(1, 1, 15, 20)).shape
        torch.Size([1, 1, 15, 20])
    """

    def __init__(
        self,
        n_modes: Sequence[int],
        in_channels: int,
        out_channels: int,
        hidden_channels: int,
        n_layers: int = 4,
        lifting_channel_ratio: float = 2,
        projection_channel_ratio: float = 2,
        channel_mlp_expansion: float = 0.5,
        positional_embedding: str | None = "grid",
        seed: int = 0,
    ) -> None:
        super().__init__()
        modes = tuple(int(m) for m in n_modes)
        if not 1 <= len(modes) <= 3 or min(modes) < 1:
            raise ValueError(f"n_modes={tuple(n_modes)}; expected one to three positive numbers, one an axis")
        if min(in_channels, out_channels, hidden_channels, n_layers) < 1:
            raise ValueError(
                f"in_channels={in_channels}, out_channels={out_channels}, "
                f"hidden_channels={hidden_channels} and n_layers={n_layers} must be positive"
            )
        if positional_embedding not in ("grid", None):
            raise ValueError(f"positional_embedding={positional_embedding!r}; expected 'grid' or None")
        self.n_modes, self.in_channels, self.out_channels = modes, in_channels, out_channels
        self.dims = dims = len(modes)
        self.positional_embedding = positional_embedding
        self.config: dict[str, Any] = {
            "n_modes": list(modes), "in_channels": in_channels, "out_channels": out_channels,
            "hidden_channels": hidden_channels, "n_layers": n_layers,
            "lifting_channel_ratio": lifting_channel_ratio,
            "projection_channel_ratio": projection_channel_ratio,
            "channel_mlp_expansion": channel_mlp_expansion, "positional_embedding": positional_embedding,
        }  # fmt: skip
        width = hidden_channels
        first = in_channels + (dims if positional_embedding == "grid" else 0)
        with seeded(seed):
            self.lifting = pointwise_mlp(first, round(lifting_channel_ratio * width), width, dims)
            self.layers = nn.ModuleList(
                FourierLayer(width, modes, round(channel_mlp_expansion * width), last=i == n_layers - 1)
                for i in range(n_layers)
            )
            self.projection = pointwise_mlp(
                width, round(projection_channel_ratio * width), out_channels, dims
            )

    def forward(self, x: Float[Tensor, "batch in *space"]) -> Float[Tensor, "batch out *space"]:
        """The operator's output on the grid of its input."""
        if not x.is_floating_point():
            raise TypeError(
                f"the field has dtype {x.dtype}; expected a real floating one (split a complex field into "
                "two channels)"
            )
        if x.dim() != 2 + self.dims or x.shape[1] != self.in_channels:
            raise ValueError(
                f"the field has shape {list(x.shape)}; expected [batch, {self.in_channels}, *space] with "
                f"{self.dims} spatial axes"
            )
        if self.positional_embedding == "grid":
            x = torch.cat([x, *_coordinates(x)], 1)
        x = self.lifting(x)
        for layer in self.layers:
            x = layer(x)
        return self.projection(x)

    @classmethod
    def from_neuralop(cls, model: nn.Module) -> FNO:
        """A copy of a dense ``neuralop.models.FNO`` without norm, domain padding or resolution scaling.

        Raises:
            ValueError: its state has weights that this architecture does not.
        """
        return cls.from_neuralop_state(
            dict(model.state_dict()), int(getattr(model, "in_channels", 0)) or None
        )

    @classmethod
    def from_neuralop_state(cls, state: Mapping[str, Any], in_channels: int | None = None) -> FNO:
        """The same from its state dict; ``in_channels`` tells whether coordinates are appended.

        Raises:
            ValueError: as :meth:`from_neuralop`.
        """
        tensors = {k: v for k, v in state.items() if isinstance(v, Tensor)}
        layers = 1 + max(
            (int(k.split(".")[2]) for k in tensors if k.startswith("fno_blocks.convs.")), default=-1
        )
        if layers == 0:
            raise ValueError("no fno_blocks.convs in the state; expected that of neuralop.models.FNO")
        weights = [tensors.pop(_spectral_key(tensors, i)) for i in range(layers)]
        width, dims = weights[0].shape[0], weights[0].dim() - 2
        first = tensors["lifting.fcs.0.weight"].shape[1]
        inner = first - dims if in_channels is None else in_channels
        modes = [*weights[0].shape[2:-1], 2 * (weights[0].shape[-1] - 1)]
        model = cls(
            modes, inner, tensors["projection.fcs.1.weight"].shape[0], width, layers,
            tensors["lifting.fcs.0.weight"].shape[0] / width,
            tensors["projection.fcs.0.weight"].shape[0] / width,
            tensors["fno_blocks.channel_mlp.0.fcs.0.weight"].shape[0] / width,
            "grid" if first > inner else None,
        )  # fmt: skip
        names = {}
        for part in ("lifting", "projection"):
            for i, at in ((0, 0), (1, 2)):
                for kind in ("weight", "bias"):
                    names[f"{part}.{at}.{kind}"] = f"{part}.fcs.{i}.{kind}"
        for i in range(layers):
            names[f"layers.{i}.bias"] = f"fno_blocks.convs.{i}.bias"
            names[f"layers.{i}.skip.weight"] = f"fno_blocks.fno_skips.{i}.conv.weight"
            names[f"layers.{i}.gate"] = f"fno_blocks.channel_mlp_skips.{i}.weight"
            for j, at in ((0, 0), (1, 2)):
                for kind in ("weight", "bias"):
                    names[f"layers.{i}.mlp.{at}.{kind}"] = f"fno_blocks.channel_mlp.{i}.fcs.{j}.{kind}"
        unknown = set(tensors) - set(names.values())
        missing = set(names.values()) - set(tensors)
        if unknown or missing:
            raise ValueError(
                f"this FNO has another architecture: unknown {sorted(unknown)[:5]}, missing "
                f"{sorted(missing)[:5]}"
            )
        own = model.state_dict()
        for name, theirs in names.items():
            own[name] = tensors[theirs].reshape(own[name].shape)
        for i, weight in enumerate(weights):
            own[f"layers.{i}.weight"] = torch.view_as_real(weight).clone()
        model.load_state_dict(own)
        return model.to(weights[0].real.dtype)


class FourierLayer(nn.Module):
    """Spectral convolution, linear skip and gated MLP, as a block of ``neuralop.layers.fno_block``."""

    def __init__(self, width: int, modes: tuple[int, ...], mlp_width: int, last: bool) -> None:
        super().__init__()
        dims, self.last = len(modes), last
        kept = (*modes[:-1], modes[-1] // 2 + 1)
        scale = (1 / width) ** 0.5
        # Standard normal complex numbers have variance 1/2 in each part.
        self.weight = nn.Parameter(scale * 0.5**0.5 * torch.randn(width, width, *kept, 2))
        self.bias = nn.Parameter(scale * torch.randn(width, *[1] * dims))
        self.skip = _CONVOLUTIONS[dims](width, width, 1, bias=False)
        self.mlp = pointwise_mlp(width, max(1, mlp_width), width, dims)
        self.gate = nn.Parameter(torch.ones(width, *[1] * dims))

    def forward(self, x: Float[Tensor, "batch width *space"]) -> Float[Tensor, "batch width *space"]:
        """The next layer's features."""
        v = spectral_convolution(x, self.weight) + self.bias + self.skip(x)
        if self.last:
            return self.mlp(v) + self.gate * x
        return F.gelu(self.mlp(F.gelu(v)) + self.gate * x)


def spectral_convolution(
    x: Float[Tensor, "batch in *space"], weight: Float[Tensor, "in out *modes 2"]
) -> Float[Tensor, "batch out *space"]:
    """irfftn of sum_i rfftn(x)[b, i, k] w[i, o, k] over the kept modes.

    It is computed in float32 or more, also under autocast. Of the weights those of the lowest frequencies
    are used where the field has fewer modes.
    """
    shape = tuple(x.shape[2:])
    modes = tuple(weight.shape[2:-1])
    used = tuple(min(m, n) for m, n in zip(modes, (*shape[:-1], shape[-1] // 2 + 1), strict=True))
    for axis, (m, n) in enumerate(zip(modes, used, strict=True)):
        begin = m // 2 - n // 2 if axis < len(modes) - 1 else 0
        weight = weight.narrow(2 + axis, begin, n)
    natural = torch.float64 if x.dtype == torch.float64 else torch.float32
    with torch.autocast(x.device.type, enabled=False):
        kept = truncated_rfft(x.to(natural), used)
        return truncated_irfft(spectral_conv(kept, weight.to(natural)), shape)


def pointwise_mlp(inner: int, hidden: int, outer: int, dims: int) -> nn.Sequential:
    """Two linear layers at each point with a GELU between."""
    convolution = _CONVOLUTIONS[dims]
    return nn.Sequential(convolution(inner, hidden, 1), nn.GELU(), convolution(hidden, outer, 1))


def _coordinates(x: Tensor) -> list[Tensor]:
    found = []
    for axis, n in enumerate(x.shape[2:]):
        line = torch.arange(n, device=x.device, dtype=x.dtype) / n
        line = line.view(1, 1, *(n if a == axis else 1 for a in range(x.dim() - 2)))
        found.append(line.expand(x.shape[0], 1, *x.shape[2:]))
    return found


def _spectral_key(state: Mapping[str, Tensor], layer: int) -> str:
    """Its weight, whose name depends on whether tensorly-torch wraps it."""
    start = f"fno_blocks.convs.{layer}.weight"
    found = [k for k in state if k.startswith(start)]
    if len(found) != 1 or not state[found[0]].is_complex():
        raise ValueError(
            f"{start} is {found or 'missing'}; expected one dense complex weight (factorization=None)"
        )
    return found[0]
