"""Fields by seed: Kuramoto-Sivashinsky, Kolmogorov flow, Gray-Scott, and super-resolution of these."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

KS_LENGTH, KS_POINTS, KS_STEP, KS_BURN_IN = 64.0, 128, 0.1, 400


def kuramoto_sivashinsky(
    samples: int,
    seed: int,
    *,
    steps: Sequence[int] = (0, 60),
    length: float = KS_LENGTH,
    points: int = KS_POINTS,
    dt: float = KS_STEP,
    burn_in: int = KS_BURN_IN,
) -> Float[Tensor, "samples times points"]:
    """u_t = -u u_x - u_xx - u_xxxx on a periodic line, in float64.

    Fourier in space, ETDRK4 in time (Kassam and Trefethen 2005; coefficients by contour means of 32 points),
    with 2/3 of the modes kept in the product. Starts from random waves of the longest lengths, and runs to
    the attractor first.

    Args:
        samples: trajectories.
        seed: of the starts.
        steps: times after the burn-in, in steps of dt, rising.
        length: of the domain.
        points: of the grid.
        dt: time step.
        burn_in: steps that are thrown away.

    Raises:
        ValueError: times that do not rise from 0 on, or sizes that are not positive.
    """
    if samples < 1 or points < 8 or list(steps) != sorted(set(steps)) or min(steps) < 0:
        raise ValueError(f"samples={samples}, points={points} and steps={list(steps)}; expected rising times")
    rng = np.random.default_rng(seed)
    x = 2 * np.pi * np.arange(points) / points
    amplitude, phase = rng.normal(size=(samples, 6, 1)), rng.uniform(0, 2 * np.pi, size=(samples, 6, 1))
    u = (amplitude * np.cos(np.arange(1, 7)[:, None] * x + phase)).sum(1)
    k = 2 * np.pi * np.fft.rfftfreq(points, length / points)
    linear = k**2 - k**4
    g = -0.5j * k * (np.arange(len(k)) < points // 3)
    e, e2, q, f1, f2, f3 = _etdrk4(linear, dt)
    v = np.fft.rfft(u)

    def nonlinear(v: np.ndarray) -> np.ndarray:
        return g * np.fft.rfft(np.fft.irfft(v, points) ** 2)

    kept = []
    wanted = {burn_in + s for s in steps}
    for step in range(burn_in + max(steps) + 1):
        if step in wanted:
            kept.append(np.fft.irfft(v, points))
        nv = nonlinear(v)
        a = e2 * v + q * nv
        na = nonlinear(a)
        b = e2 * v + q * na
        nb = nonlinear(b)
        nc = nonlinear(e2 * a + q * (2 * nb - nv))
        v = e * v + nv * f1 + 2 * (na + nb) * f2 + nc * f3
    return torch.from_numpy(np.stack(kept, 1))


def _etdrk4(linear: np.ndarray, dt: float) -> tuple[np.ndarray, ...]:
    roots = np.exp(1j * np.pi * (np.arange(1, 33) - 0.5) / 32)
    z = dt * linear[:, None] + roots
    q = dt * np.mean((np.exp(z / 2) - 1) / z, 1).real
    f1 = dt * np.mean((-4 - z + np.exp(z) * (4 - 3 * z + z**2)) / z**3, 1).real
    f2 = dt * np.mean((2 + z + np.exp(z) * (z - 2)) / z**3, 1).real
    f3 = dt * np.mean((-4 - 3 * z - z**2 + np.exp(z) * (4 - z)) / z**3, 1).real
    return np.exp(dt * linear), np.exp(dt * linear / 2), q, f1, f2, f3


def kolmogorov_flow(
    samples: int,
    seed: int,
    *,
    points: int = 64,
    viscosity: float = 1e-3,
    drag: float = 0.1,
    dt: float = 0.01,
    burn_in: int = 500,
    steps: Sequence[int] = (0, 100),
) -> Float[Tensor, "samples times points points"]:
    """Vorticity of forced two-dimensional turbulence on [0, 2 pi)^2, in float64.

    w_t + u . grad w = nu lap w - drag w + 0.5 sin(4 (x + y)); pseudo-spectral with 2/3 dealiasing, Heun's
    method with an integrating factor for the linear part.

    Raises:
        ValueError: times that do not rise from 0 on, or sizes that are not positive.
    """
    if samples < 1 or points < 8 or list(steps) != sorted(set(steps)) or min(steps) < 0:
        raise ValueError(f"samples={samples}, points={points} and steps={list(steps)}; expected rising times")
    generator = torch.Generator().manual_seed(seed)
    kx = torch.fft.fftfreq(points, 1 / points, dtype=torch.float64)[:, None]
    ky = torch.fft.rfftfreq(points, 1 / points, dtype=torch.float64)[None, :]
    square = kx**2 + ky**2
    inverse = torch.where(square > 0, 1 / square.clamp_min(1), 0.0)
    dealias = ((kx.abs() < points / 3) & (ky < points / 3)).double()
    grid = 2 * math.pi * torch.arange(points, dtype=torch.float64) / points
    force = torch.fft.rfft2(0.5 * torch.sin(4 * (grid[:, None] + grid[None, :])))
    decay = torch.exp(-(viscosity * square + drag) * dt)
    start = torch.randn(samples, points, points, generator=generator, dtype=torch.float64)
    w = torch.fft.rfft2(start) * torch.exp(-0.5 * (square.sqrt() - 4) ** 2) * (square > 0) * dealias
    w = w * 3 / torch.fft.irfft2(w, s=(points, points)).flatten(1).std(1).view(-1, 1, 1).clamp_min(1e-12)

    def tendency(w: Tensor) -> Tensor:
        psi = w * inverse
        fields = torch.stack([1j * ky * psi, -1j * kx * psi, 1j * kx * w, 1j * ky * w])
        u, v, wx, wy = torch.fft.irfft2(fields, s=(points, points))
        return -torch.fft.rfft2(u * wx + v * wy) * dealias + force

    kept = []
    wanted = {burn_in + s for s in steps}
    for step in range(burn_in + max(steps) + 1):
        if step in wanted:
            kept.append(torch.fft.irfft2(w, s=(points, points)))
        first = tendency(w)
        moved = decay * (w + dt * first)
        w = decay * (w + 0.5 * dt * first) + 0.5 * dt * tendency(moved)
    return torch.stack(kept, 1)


def gray_scott(
    samples: int,
    seed: int,
    *,
    points: int = 64,
    feed: float = 0.037,
    kill: float = 0.06,
    burn_in: int = 1000,
    steps: Sequence[int] = (0, 100),
) -> Float[Tensor, "samples times 2 points points"]:
    """Concentrations of the two species of the Gray-Scott reaction on a periodic plane, in float64.

    a_t = 0.16 lap a - a b^2 + feed (1 - a), b_t = 0.08 lap b + a b^2 - (feed + kill) b; cells of size 1,
    Euler steps of 1, from random squares.

    Raises:
        ValueError: times that do not rise from 0 on, or sizes that are not positive.
    """
    if samples < 1 or points < 8 or list(steps) != sorted(set(steps)) or min(steps) < 0:
        raise ValueError(f"samples={samples}, points={points} and steps={list(steps)}; expected rising times")
    rng = np.random.default_rng(seed)
    a, b = np.ones((samples, points, points)), np.zeros((samples, points, points))
    side = max(3, points // 10)
    for i in range(samples):
        for _ in range(12):
            x, y = rng.integers(0, points - side, 2)
            a[i, x : x + side, y : y + side], b[i, x : x + side, y : y + side] = 0.5, 0.25
    a += 0.01 * rng.normal(size=a.shape)

    def laplacian(f: np.ndarray) -> np.ndarray:
        near = sum(np.roll(f, s, axis) for axis in (1, 2) for s in (1, -1))
        return np.asarray(near - 4 * f)

    kept = []
    wanted = {burn_in + s for s in steps}
    for step in range(burn_in + max(steps) + 1):
        if step in wanted:
            kept.append(np.stack([a, b], 1))
        reaction = a * b * b
        a, b = (
            a + 0.16 * laplacian(a) - reaction + feed * (1 - a),
            b + 0.08 * laplacian(b) + reaction - (feed + kill) * b,
        )
    return torch.from_numpy(np.stack(kept, 1))


def super_resolution(
    fields: Float[Tensor, "samples channels *space"], factor: int = 4
) -> tuple[Float[Tensor, "samples channels *coarse"], Float[Tensor, "samples channels *space"]]:
    """Pairs of a field's means over blocks and the field: what ERA5 super-resolution asks of a base.

    Raises:
        ValueError: a factor that does not divide the sizes.
    """
    if factor < 2 or any(n % factor for n in fields.shape[2:]):
        raise ValueError(f"factor={factor} must be 2 or more and divide the sizes {list(fields.shape[2:])}")
    pool = {
        1: torch.nn.functional.avg_pool1d,
        2: torch.nn.functional.avg_pool2d,
        3: torch.nn.functional.avg_pool3d,
    }
    return pool[fields.dim() - 2](fields, factor), fields


class BicubicBase(torch.nn.Module):
    """A base without weights: brings a plane (bicubic) or line (linear) to ``factor`` times its size."""

    def __init__(self, factor: int = 4) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Float[Tensor, "batch channels *coarse"]) -> Float[Tensor, "batch channels *space"]:
        """The interpolated field."""
        mode = {1: "linear", 2: "bicubic", 3: "trilinear"}[x.dim() - 2]
        return torch.nn.functional.interpolate(x, scale_factor=self.factor, mode=mode, align_corners=False)
