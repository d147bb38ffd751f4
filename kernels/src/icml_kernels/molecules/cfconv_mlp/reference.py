"""The continuous-filter convolution with its filter network in plain torch: the definition.

Per pair: z = r (gaussian) or exp(alpha (r - origin)) (expnorm), e_k = exp(-widths_k (z - centers_k)^2),
C = (cos(pi r / cutoff) + 1) / 2, f = W2 act(W1 (C e) + b1) + b2, W = C f; each C where its switch is on,
and W = 0 from the cutoff on.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from icml_kernels.molecules.neighbors import pair_rows

LOG_2 = math.log(2.0)


def envelope(r: Tensor, cutoff: float) -> tuple[Tensor, Tensor]:
    """C(r) = (cos(pi r / cutoff) + 1) / 2 below the cutoff, else 0; and C'(r)."""
    phase = r * (math.pi / cutoff)
    beyond = r >= cutoff
    c = torch.where(beyond, 0, 0.5 * (torch.cos(phase) + 1))
    return c, torch.where(beyond, 0, torch.sin(phase) * (-0.5 * math.pi / cutoff))


def gaussian(offset: Tensor, widths: Tensor) -> Tensor:
    """exp(-widths offset^2), but never less than a negligible 1e-28 (1e-230 in float64).

    Subnormal numbers make exponentials forty times slower on CPUs, and the product of matrices that
    follows ten times.
    """
    exponent = -widths * offset**2
    return torch.exp(exponent.clamp_min(0.75 * math.log(torch.finfo(exponent.dtype).tiny)))


def activate(a: Tensor, activation: str) -> Tensor:
    """tanh, or ssp = softplus - log 2."""
    return torch.tanh(a) if activation == "tanh" else torch.nn.functional.softplus(a) - LOG_2


def activation_slope(a: Tensor, q: Tensor, activation: str) -> Tensor:
    """Derivative of the activation where its value is q."""
    return 1 - q * q if activation == "tanh" else torch.sigmoid(a)


def envelopes(
    r: Tensor, cutoff: float, basis_envelope: bool, filter_envelope: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Factors of the basis and of the filter, each before its derivative, as [distances, 1]."""
    c, dc = (t[:, None] for t in envelope(r, cutoff))
    zero = torch.zeros_like(c)
    inside = (~(r >= cutoff)).to(r.dtype)[:, None]
    of_basis = (c, dc) if basis_envelope else (torch.ones_like(c), zero)
    return *of_basis, *((c, dc) if filter_envelope else (inside, zero))


def argument(r: Tensor, basis: str, alpha: float, origin: float) -> tuple[Tensor, Tensor]:
    """z of the basis and z', [distances, 1] each."""
    if basis == "expnorm":
        z = torch.exp(alpha * (r - origin))[:, None]
        return z, alpha * z
    return r[:, None], torch.ones_like(r)[:, None]


def filters(
    r: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
) -> Tensor:
    """W(r), [distances, filters]."""
    cb, _, cf, _ = envelopes(r, cutoff, basis_envelope, filter_envelope)
    z, _ = argument(r, basis, alpha, origin)
    hidden = activate((gaussian(z - centers, widths) * cb) @ w1.T + b1, activation)
    return (hidden @ w2.T + b2) * cf


def network_backward(
    by_filter: Tensor,
    r: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
    by_weights: bool,
) -> tuple[Tensor, Tensor, tuple[Tensor, ...]]:
    """W, and the gradients by r and by the six weights for a given gradient by W.

    The tuple of the weights' gradients is empty unless ``by_weights``.
    """
    cb, dcb, cf, dcf = envelopes(r, cutoff, basis_envelope, filter_envelope)
    z, dz = argument(r, basis, alpha, origin)
    offset = z - centers
    gaussians = gaussian(offset, widths)
    e = gaussians * cb
    a = e @ w1.T + b1
    q = activate(a, activation)
    f = q @ w2.T + b2
    by_f = by_filter * cf
    by_a = (by_f @ w2) * activation_slope(a, q, activation)
    by_e = by_a @ w1
    de = gaussians * dcb - 2 * dz * offset * widths * e
    gr = (by_e * de).sum(1) + (by_filter * f * dcf).sum(1)
    if not by_weights:
        return f * cf, gr, ()
    by_exponent = by_e * e
    gcenters = (2 * widths * offset * by_exponent).sum(0)
    gwidths = -(offset**2 * by_exponent).sum(0)
    return f * cf, gr, (by_a.T @ e, by_a.sum(0), by_f.T @ q, by_f.sum(0), gcenters, gwidths)


def filter_derivatives(
    r: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """W(r), W'(r) and W''(r), [distances, filters] each, by the chain rule through the network."""
    cb, dcb, cf, dcf = envelopes(r, cutoff, basis_envelope, filter_envelope)
    curved = ((0.5 - envelope(r, cutoff)[0]) * (math.pi / cutoff) ** 2)[:, None]
    ddc = torch.where((r >= cutoff)[:, None], 0, curved)
    ddcb, ddcf = ddc * float(basis_envelope), ddc * float(filter_envelope)
    z, dz = argument(r, basis, alpha, origin)
    ddz = alpha * dz if basis == "expnorm" else torch.zeros_like(dz)
    offset = z - centers
    gaussians = gaussian(offset, widths)
    slope = -2 * widths * offset * dz
    curvature = slope**2 - 2 * widths * (dz**2 + offset * ddz)
    e = gaussians * cb
    de = gaussians * (slope * cb + dcb)
    dde = gaussians * (curvature * cb + 2 * slope * dcb + ddcb)
    a, da, dda = e @ w1.T + b1, de @ w1.T, dde @ w1.T
    q = activate(a, activation)
    dq = activation_slope(a, q, activation)
    ddq = -2 * q * dq if activation == "tanh" else dq * (1 - dq)
    f = q @ w2.T + b2
    df = (dq * da) @ w2.T
    ddf = (ddq * da**2 + dq * dda) @ w2.T
    return f * cf, df * cf + f * dcf, ddf * cf + 2 * df * dcf + f * ddcf


def tangent(x_t: Tensor, r_t: Tensor, x: Tensor, r: Tensor, *rest: Any) -> Tensor:
    """Directional derivative of ``forward`` by x and r."""
    ptr, idx, _, _, _, *network = rest
    i, j, r = _ends(r, ptr, idx, network[6])
    w, dw, _ = filter_derivatives(r, *network)
    return _convolve(w, x_t, i, j) + _convolve(dw * r_t[:, None], x, i, j)


def backward_tangent(
    g_t: Tensor, x_t: Tensor, r_t: Tensor, g: Tensor, x: Tensor, r: Tensor, *rest: Any
) -> tuple[Tensor, Tensor]:
    """Directional derivative of the first two results of ``backward`` by g, x and r."""
    ptr, idx, _, _, _, *network = rest
    i, j, r = _ends(r, ptr, idx, network[6])
    w, dw, ddw = filter_derivatives(r, *network)
    r_t = r_t[:, None]
    products_t = g_t[i] * x[j] + g[i] * x_t[j] + g_t[j] * x[i] + g[j] * x_t[i]
    gr_t = (products_t * dw + (g[i] * x[j] + g[j] * x[i]) * ddw * r_t).sum(1)
    return _convolve(w, g_t, i, j) + _convolve(dw * r_t, g, i, j), gr_t


def _convolve(w: Tensor, v: Tensor, i: Tensor, j: Tensor) -> Tensor:
    return torch.zeros_like(v).index_add(0, j, w * v[i]).index_add(0, i, w * v[j])


def _ends(r: Tensor, ptr: Tensor, idx: Tensor, cutoff: float) -> tuple[Tensor, Tensor, Tensor]:
    """Both atoms of every pair, and its distance; spare places are moved to the cutoff, where W = 0."""
    i, valid = pair_rows(ptr, idx)
    return i, torch.where(valid, idx, 0).long(), torch.where(valid, r, cutoff)


def forward(
    x: Tensor,
    r: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
) -> Tensor:
    """out_i = sum over the partners j of x_j W(r_ij)."""
    i, j, r = _ends(r, ptr, idx, cutoff)
    options = (cutoff, basis, alpha, origin, activation, basis_envelope, filter_envelope)
    return _convolve(filters(r, w1, b1, w2, b2, centers, widths, *options), x, i, j)


def backward(
    g: Tensor,
    x: Tensor,
    r: Tensor,
    ptr: Tensor,
    idx: Tensor,
    ptr_t: Tensor,
    idx_t: Tensor,
    pair_t: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    cutoff: float,
    basis: str,
    alpha: float,
    origin: float,
    activation: str,
    basis_envelope: bool,
    filter_envelope: bool,
    by_weights: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients by x, r, w1, b1, w2, b2, centers and widths; the last six are zeros unless asked for."""
    i, j, r = _ends(r, ptr, idx, cutoff)
    weights = (w1, b1, w2, b2, centers, widths)
    options = (cutoff, basis, alpha, origin, activation, basis_envelope, filter_envelope)
    by_filter = g[i] * x[j] + g[j] * x[i]
    w, gr, by = network_backward(by_filter, r, *weights, *options, by_weights)
    return _convolve(w, g, i, j), gr, *(by or (torch.zeros_like(t) for t in weights))
