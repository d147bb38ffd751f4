"""Metropolis chains and their random numbers on the CPU: a chain is one stream, threads share chains."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import njit, prange, threads

SHARE = 2**16
"""Proposals times hidden units that are worth a thread: about 0.05 ms."""
LARGEST_LOG = {torch.float32: 80.0, torch.float64: 690.0}
"""Logarithm of the largest product that is kept before its logarithm is taken."""
FACTORS = 1000
"""Numbers between 1 and 2 whose product is a double."""
REFRESH = {torch.float32: 8, torch.float64: 64}
"""Sweeps after which the angles are computed anew: rounding of the products adds up to 1e-6 and 1e-14."""

_MASK = np.uint64(0xFFFFFFFF)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_SHIFT, _ONE = np.uint64(32), np.uint64(1)
_UNIT = 2.0**-32


def draws(
    chain: Tensor, seed: int, step: int, n_steps: int, n_moves: int, stream: int
) -> tuple[Tensor, Tensor]:
    """See ``metropolis_draws.reference.draws``."""
    move = chain.new_empty(n_steps, len(chain))
    log_uniform = torch.empty(n_steps, len(chain), dtype=torch.float64)
    arrays = chain.contiguous().numpy(), move.numpy(), log_uniform.numpy()
    _draws(*arrays, seed, step, n_moves, stream)
    return move, log_uniform


def rbm_chains(
    weight: Tensor,
    hidden_bias: Tensor,
    visible_bias: Tensor,
    x: Tensor,
    moves: Tensor,
    chain: Tensor,
    step: int,
    n_steps: int,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``rbm_metropolis.reference.chains``."""
    weight, hidden_bias = weight.contiguous(), hidden_bias.contiguous()
    new = x.clone(memory_format=torch.contiguous_format)
    log_psi = torch.empty(len(x), dtype=torch.float64)
    accepted = torch.zeros(len(x), dtype=torch.int64)
    n_spins, n_hidden = weight.shape
    chunk = products_at_once(weight, 2 if bool((moves[:, 1] >= 0).any()) else 1)
    refresh = max(64, REFRESH[weight.dtype] * n_spins)
    tables = torch.exp(2.0 * weight).numpy(), torch.exp(-2.0 * weight).numpy()
    tables += (torch.exp(-2.0 * visible_bias.double()).numpy(),)
    numbers = weight.numpy(), hidden_bias.numpy(), visible_bias.contiguous().numpy()
    integers = moves.contiguous().numpy(), chain.contiguous().numpy()
    results = new.numpy(), log_psi.numpy(), accepted.numpy()
    arguments = (*tables, *numbers, *integers, step, n_steps, seed, chunk, refresh, *results)
    work = n_steps * max(1, n_hidden)
    shares = max(1, min(threads(), len(x), len(x) * work // SHARE))
    scratch = torch.empty(shares, 2, n_hidden, dtype=weight.dtype).numpy()
    angles = torch.empty(shares, n_hidden, dtype=torch.float64).numpy()
    if shares == 1:
        _rbm_chains(0, len(x), scratch[0], angles[0], *arguments)
    else:
        _rbm_chains_shares(np.arange(shares + 1) * len(x) // shares, scratch, angles, *arguments)
    return new, log_psi, accepted


def products_at_once(weight: Tensor, sites: int) -> int:
    """How many ratios of hyperbolic cosines, each within exp(±2 |δ|), can be multiplied without overflow."""
    largest = 2.0 * sites * float(weight.abs().amax()) if weight.numel() else 0.0
    return int(max(1.0, min(float(max(1, weight.shape[1])), LARGEST_LOG[weight.dtype] / max(largest, 1e-30))))


@njit(inline="always", fastmath=False)
def _philox(c0, c1, c2, c3, k0, k1):
    """Philox-4x32-10 on 32-bit words kept in uint64."""
    for _ in range(10):
        product0, product1 = c0 * _M0, c2 * _M1
        c0 = (product1 >> _SHIFT) ^ c1 ^ k0
        c2 = (product0 >> _SHIFT) ^ c3 ^ k1
        c1 = product1 & _MASK
        c3 = product0 & _MASK
        k0 = (k0 + _W0) & _MASK
        k1 = (k1 + _W1) & _MASK
    return c0, c1, c2, c3


@njit(fastmath=False)
def _draws(chain, move, log_uniform, seed, first, n_moves, stream):
    key = np.uint64(seed)
    count = np.uint64(n_moves)
    for c in range(len(chain)):
        w0 = w1 = w2 = w3 = np.uint64(0)
        for s in range(move.shape[0]):
            step = np.uint64(first + s)
            if s == 0 or (step & _ONE) == 0:
                pair = step >> _ONE
                w0, w1, w2, w3 = _philox(
                    pair & _MASK,
                    pair >> _SHIFT,
                    np.uint64(chain[c]),
                    np.uint64(stream),
                    key & _MASK,
                    key >> _SHIFT,
                )
            odd = (step & _ONE) == 1
            which = w2 if odd else w0
            decides = w3 if odd else w1
            move[s, c] = np.int64((which * count) >> _SHIFT)
            log_uniform[s, c] = math.log((np.float64(decides) + 0.5) * _UNIT)


@njit(inline="always")
def _exp_minus(y):
    """exp(-y) for 0 <= y <= 690 to 1e-12: a series at y / 4096, squared twelve times; it vectorises."""
    t = y * (-1.0 / 4096.0)
    e = 1.0 + t * (1.0 / 8.0)
    e = 1.0 + t * e * (1.0 / 7.0)
    e = 1.0 + t * e * (1.0 / 6.0)
    e = 1.0 + t * e * (1.0 / 5.0)
    e = 1.0 + t * e * (1.0 / 4.0)
    e = 1.0 + t * e * (1.0 / 3.0)
    e = 1.0 + t * e * (1.0 / 2.0)
    e = 1.0 + t * e
    for _ in range(12):
        e = e * e
    return e


@njit
def _fill(x, weight, hidden_bias, odds, rest):
    """E = exp(2θ) and R = 1 / (1 + E) of one row of spins."""
    one = odds.dtype.type(1.0)
    for j in range(len(odds)):
        odds[j] = hidden_bias[j]
    for i in range(len(x)):
        row = weight[i]
        if x[i] > 0:
            for j in range(len(odds)):
                odds[j] += row[j]
        else:
            for j in range(len(odds)):
                odds[j] -= row[j]
    for j in range(len(odds)):
        small = _exp_minus(min(690.0, 2.0 * abs(np.float64(odds[j]))))
        e = odds.dtype.type(1.0 / small if odds[j] > 0.0 else small)
        odds[j] = e
        rest[j] = one / (one + e)


@njit
def _log_psi(x, weight, hidden_bias, visible_bias, angles):
    """In float64, with one logarithm for many units: each factor 1 + exp(-2|θ|) lies between 1 and 2."""
    for j in range(len(angles)):
        angles[j] = hidden_bias[j]
    for i in range(len(x)):
        row = weight[i]
        if x[i] > 0:
            for j in range(len(angles)):
                angles[j] += row[j]
        else:
            for j in range(len(angles)):
                angles[j] -= row[j]
    total = -math.log(2.0) * len(angles)
    for j in range(len(angles)):
        total += abs(angles[j])
    for low in range(0, len(angles), FACTORS):
        part = angles[low : min(low + FACTORS, len(angles))]
        factors = 1.0
        for j in range(len(part)):
            factors *= 1.0 + _exp_minus(min(690.0, 2.0 * abs(part[j])))
        total += math.log(factors)
    for i in range(len(x)):
        total += x[i] * np.float64(visible_bias[i])
    return total


@njit
def _product(a, b, odds, rest):
    """Π (exp(-δ) + E exp(δ)) R."""
    p = odds.dtype.type(1.0)
    for j in range(len(odds)):
        p *= (a[j] + odds[j] * b[j]) * rest[j]
    return p


@njit
def _product_of_two(a, b, c, d, odds, rest):
    p = odds.dtype.type(1.0)
    for j in range(len(odds)):
        p *= (a[j] * c[j] + odds[j] * (b[j] * d[j])) * rest[j]
    return p


@njit
def _take(b, odds, rest):
    one = odds.dtype.type(1.0)
    for j in range(len(odds)):
        e = odds[j] * b[j] * b[j]
        odds[j] = e
        rest[j] = one / (one + e)


@njit
def _take_two(b, d, odds, rest):
    one = odds.dtype.type(1.0)
    for j in range(len(odds)):
        both = b[j] * d[j]
        e = odds[j] * both * both
        odds[j] = e
        rest[j] = one / (one + e)


@njit
def _rbm_chains(
    begin,
    end,
    scratch,
    angles,
    up,
    down,
    falls,
    weight,
    hidden_bias,
    visible_bias,
    moves,
    chain,
    first_step,
    n_steps,
    seed,
    chunk,
    refresh,
    x,
    log_psi,
    accepted,
):
    odds, rest = scratch[0], scratch[1]
    n_hidden = len(odds)
    count = np.uint64(len(moves))
    key = np.uint64(seed)
    low_key, high_key = key & _MASK, key >> _SHIFT
    for c in range(begin, end):
        spins = x[c]
        number = np.uint64(chain[c])
        w0 = w1 = w2 = w3 = np.uint64(0)
        taken = 0
        for s in range(n_steps):
            if s % refresh == 0:
                _fill(spins, weight, hidden_bias, odds, rest)
            step = np.uint64(first_step + s)
            if s == 0 or (step & _ONE) == 0:
                pair = step >> _ONE
                w0, w1, w2, w3 = _philox(
                    pair & _MASK, pair >> _SHIFT, number, np.uint64(0), low_key, high_key
                )
            odd = (step & _ONE) == 1
            which = w2 if odd else w0
            decides = w3 if odd else w1
            m = np.int64((which * count) >> _SHIFT)
            i, k = moves[m, 0], moves[m, 1]
            a, b = up[i], down[i]
            if spins[i] < 0:
                a, b = down[i], up[i]
            gain = -2.0 * spins[i] * np.float64(visible_bias[i])
            if k < 0 and n_hidden <= chunk:
                # One product: squared it is the ratio of probabilities, without a logarithm.
                ratio = np.float64(_product(a, b, odds, rest)) * (
                    falls[i] if spins[i] > 0 else 1.0 / falls[i]
                )
                if (np.float64(decides) + 0.5) * _UNIT < ratio * ratio:
                    _take(b, odds, rest)
                    spins[i] = -spins[i]
                    taken += 1
            elif k < 0:
                for low in range(0, n_hidden, chunk):
                    high = min(low + chunk, n_hidden)
                    gain += math.log(
                        np.float64(_product(a[low:high], b[low:high], odds[low:high], rest[low:high]))
                    )
                if math.log((np.float64(decides) + 0.5) * _UNIT) < 2.0 * gain:
                    _take(b, odds, rest)
                    spins[i] = -spins[i]
                    taken += 1
            elif spins[i] != spins[k]:
                f, g = up[k], down[k]
                if spins[k] < 0:
                    f, g = down[k], up[k]
                gain -= 2.0 * spins[k] * np.float64(visible_bias[k])
                for low in range(0, n_hidden, chunk):
                    high = min(low + chunk, n_hidden)
                    gain += math.log(
                        np.float64(
                            _product_of_two(
                                a[low:high],
                                b[low:high],
                                f[low:high],
                                g[low:high],
                                odds[low:high],
                                rest[low:high],
                            )
                        )
                    )
                if math.log((np.float64(decides) + 0.5) * _UNIT) < 2.0 * gain:
                    _take_two(b, g, odds, rest)
                    spins[i] = -spins[i]
                    spins[k] = -spins[k]
                    taken += 1
        log_psi[c] = _log_psi(spins, weight, hidden_bias, visible_bias, angles)
        accepted[c] = taken


@njit(parallel=True)
def _rbm_chains_shares(
    bounds,
    scratch,
    angles,
    up,
    down,
    falls,
    weight,
    hidden_bias,
    visible_bias,
    moves,
    chain,
    first_step,
    n_steps,
    seed,
    chunk,
    refresh,
    x,
    log_psi,
    accepted,
):
    for share in prange(len(bounds) - 1):
        _rbm_chains(
            bounds[share],
            bounds[share + 1],
            scratch[share],
            angles[share],
            up,
            down,
            falls,
            weight,
            hidden_bias,
            visible_bias,
            moves,
            chain,
            first_step,
            n_steps,
            seed,
            chunk,
            refresh,
            x,
            log_psi,
            accepted,
        )


def rbm_ratios(
    weight: Tensor, hidden_bias: Tensor, visible_bias: Tensor, x: Tensor, ptr: Tensor, sites: Tensor
) -> Tensor:
    """See ``rbm_log_ratios.reference.ratios``."""
    weight = weight.contiguous()
    n_masks, n_hidden = len(ptr) - 1, weight.shape[1]
    out = torch.empty(len(x), n_masks, dtype=weight.dtype)
    widest = int(torch.diff(ptr).amax()) if n_masks else 0
    chunk = products_at_once(weight, max(1, widest))
    tables = torch.exp(2.0 * weight).numpy(), torch.exp(-2.0 * weight).numpy()
    numbers = weight.numpy(), hidden_bias.contiguous().numpy(), visible_bias.contiguous().numpy()
    integers = x.contiguous().numpy(), ptr.contiguous().numpy(), sites.contiguous().numpy()
    shares = max(1, min(threads(), len(x), len(x) * n_masks * max(1, n_hidden) // SHARE))
    scratch = torch.empty(shares, 4, n_hidden, dtype=weight.dtype).numpy()
    arguments = (*tables, *numbers, *integers, chunk, out.numpy())
    if shares == 1:
        _rbm_ratios(0, len(x), scratch[0], *arguments)
    else:
        _rbm_ratios_shares(np.arange(shares + 1) * len(x) // shares, scratch, *arguments)
    return out


@njit
def _rbm_ratios(begin, end, scratch, up, down, weight, hidden_bias, visible_bias, x, ptr, sites, chunk, out):
    odds, rest, falling, rising = scratch[0], scratch[1], scratch[2], scratch[3]
    n_hidden = len(odds)
    for row in range(begin, end):
        spins = x[row]
        _fill(spins, weight, hidden_bias, odds, rest)
        for m in range(len(ptr) - 1):
            gain = 0.0
            a, b = falling, rising
            for at in range(ptr[m], ptr[m + 1]):
                i = sites[at]
                f, g = up[i], down[i]
                if spins[i] < 0:
                    f, g = down[i], up[i]
                gain -= 2.0 * spins[i] * np.float64(visible_bias[i])
                if ptr[m + 1] - ptr[m] == 1:
                    a, b = f, g
                elif at == ptr[m]:
                    falling[:] = f
                    rising[:] = g
                else:
                    for j in range(len(falling)):
                        falling[j] *= f[j]
                    for j in range(len(rising)):
                        rising[j] *= g[j]
            if ptr[m + 1] > ptr[m]:
                for low in range(0, n_hidden, chunk):
                    high = min(low + chunk, n_hidden)
                    gain += math.log(
                        np.float64(_product(a[low:high], b[low:high], odds[low:high], rest[low:high]))
                    )
            out[row, m] = gain


@njit(parallel=True)
def _rbm_ratios_shares(
    bounds, scratch, up, down, weight, hidden_bias, visible_bias, x, ptr, sites, chunk, out
):
    for share in prange(len(bounds) - 1):
        _rbm_ratios(
            bounds[share],
            bounds[share + 1],
            scratch[share],
            up,
            down,
            weight,
            hidden_bias,
            visible_bias,
            x,
            ptr,
            sites,
            chunk,
            out,
        )
