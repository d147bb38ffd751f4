"""Wavefunctions whose precision can be chosen: the restricted Boltzmann machine, and amplitude with phase.

``upcast_sums`` keeps additions of biases, log cosh and the sum over units in float32 whatever the precision
of the products: most of what a low precision costs is lost in these sums.
"""

from __future__ import annotations

import math
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Complex, Float, Num, Shaped
from torch import Tensor, nn

LOG_2 = math.log(2.0)


@runtime_checkable
class LogPsi(Protocol):
    """What can be sampled: log ψ of spins ±1, real or complex; any ``torch.nn.Module`` that computes it."""

    def __call__(self, x: Shaped[Tensor, "rows spins"]) -> Num[Tensor, " rows"]: ...


def log_cosh(u: Float[Tensor, " *any"]) -> Float[Tensor, " *any"]:
    """log cosh u = |u| + log(1 + exp(-2|u|)) - log 2, which does not overflow."""
    size = u.abs()
    return size + torch.log1p(torch.exp(-2.0 * size)) - LOG_2


def is_low(dtype: torch.dtype) -> bool:
    """Whether a precision has less than 24 bits."""
    return dtype in (torch.bfloat16, torch.float16)


def product(x: Tensor, weight: Tensor, wide: bool) -> Tensor:
    """x @ weight; of low precision, in float32 where it is ``wide``.

    The sums inside are float32 either way. On a GPU they are returned as such; on a CPU they are rounded
    once.
    """
    if not (wide and is_low(weight.dtype)):
        return x @ weight
    if x.is_cuda and not torch.is_grad_enabled():
        return torch.mm(x, weight, out_dtype=torch.float32)
    return (x @ weight).float()


class RBM(nn.Module):
    """log ψ(x) = Σ_j log cosh(b + x W)_j + a·x, a positive wavefunction.

    Args:
        n_spins: how many spins x has.
        alpha: hidden units per spin.
        visible_bias: whether there is a.
        std: standard deviation of the first weights and biases.
        upcast_sums: keep sums in float32 in low precision.
        seed: of the first parameters.
        dtype: of the parameters.

    Raises:
        ValueError: sizes that are not positive.

    Example:
        >>> RBM(4, alpha=2)(torch.ones(3, 4)).shape
        torch.Size([3])
    """

    def __init__(
        self,
        n_spins: int,
        alpha: float = 1,
        *,
        visible_bias: bool = True,
        std: float = 0.01,
        upcast_sums: bool = True,
        seed: int = 0,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        super().__init__()
        hidden = round(alpha * n_spins)
        if n_spins < 1 or hidden < 1:
            raise ValueError(
                f"n_spins={n_spins}, alpha={alpha}; expected at least one spin and one hidden unit"
            )
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> nn.Parameter:
            return nn.Parameter(
                (std * torch.randn(*shape, generator=generator, dtype=torch.float64)).to(dtype)
            )

        self.upcast_sums = upcast_sums
        self.weight = normal(n_spins, hidden)
        self.hidden_bias = normal(hidden)
        self.visible_bias = normal(n_spins) if visible_bias else None

    @property
    def visible(self) -> Float[Tensor, " spins"]:
        """The bias a, zeros where there is none."""
        return self.weight.new_zeros(self.weight.shape[0]) if self.visible_bias is None else self.visible_bias

    def forward(self, x: Shaped[Tensor, "rows spins"]) -> Float[Tensor, " rows"]:
        """log ψ; in float32 where the parameters are of low precision and sums are upcast."""
        w = self.weight
        x = _spins(x, w.shape[0]).to(w.dtype)
        wide = self.upcast_sums and is_low(w.dtype)
        kind = torch.float32 if wide else w.dtype
        out = log_cosh(product(x, w, wide) + self.hidden_bias.to(kind)).sum(-1)
        if self.visible_bias is not None:
            out = out + (x.to(kind) * self.visible_bias.to(kind)).sum(-1)
        return out

    def log_derivatives(self, x: Shaped[Tensor, "rows spins"]) -> Float[Tensor, "rows parameters"]:
        """∂ log ψ / ∂ (W, b, a) in closed form: x tanh θ, tanh θ, x."""
        with torch.no_grad():
            x = _spins(x, self.weight.shape[0]).to(self.weight.dtype)
            slope = torch.tanh(x @ self.weight + self.hidden_bias)
            parts = [(x[:, :, None] * slope[:, None, :]).flatten(1), slope]
            return torch.cat([*parts, *([] if self.visible_bias is None else [x])], 1)


class AmplitudePhase(nn.Module):
    """log ψ(x) = A(x) + i Φ(x): two real networks, of which sampling needs the first alone.

    Args:
        amplitude: gives A, real.
        phase: gives Φ in radians, real.
    """

    def __init__(self, amplitude: nn.Module, phase: nn.Module) -> None:
        super().__init__()
        self.amplitude, self.phase = amplitude, phase

    def forward(self, x: Shaped[Tensor, "rows spins"]) -> Complex[Tensor, " rows"]:
        """log ψ."""
        real, imaginary = self.amplitude(x), self.phase(x)
        if is_low(real.dtype):
            real, imaginary = real.float(), imaginary.float()
        return torch.complex(real, imaginary)


def complex_rbm(
    n_spins: int, alpha: float = 1, *, std: float = 0.01, seed: int = 0, dtype: torch.dtype = torch.float64
) -> AmplitudePhase:
    """A restricted Boltzmann machine for the log-amplitude and one for the phase."""
    first, second = (RBM(n_spins, alpha, std=std, seed=2 * seed + k, dtype=dtype) for k in range(2))
    return AmplitudePhase(first, second)


def amplitude_of(model: nn.Module) -> nn.Module:
    """The part of a model that |ψ| depends on."""
    return model.amplitude if isinstance(model, AmplitudePhase) else model


def _spins(x: Tensor, n_spins: int) -> Tensor:
    if x.dim() != 2 or x.shape[1] != n_spins:
        raise ValueError(f"x has shape {list(x.shape)}; expected [rows, {n_spins}]")
    return x
