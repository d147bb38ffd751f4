"""exp and log inside compiled loops, in a form that the compiler turns into vectors."""

from __future__ import annotations

import numpy as np
from numba.extending import overload

# exp: 2^k times a polynomial of the rest, |rest| <= log(2) / 2, where k and its bits come from adding
# 1.5 * 2^mantissa; coefficients: S. Moshier, Cephes 2.2 (float32), Taylor (float64). log on 1 to 3: the
# series of 2 artanh(z), after one halving. Polynomials are summed in pairs (Estrin), since each cell of a
# table waits for its left neighbour: what counts is the longest chain of operations.
_LOG2E, _LN2 = 1.4426950408889634, 0.6931471805599453
_LN2_HIGH32, _LN2_LOW32 = 0.693359375, -2.12194440e-4
_LN2_HIGH64, _LN2_LOW64 = 0.6931471803691238, 1.9082149292705877e-10
_SHIFT32, _SHIFT64 = 12582912.0, 6755399441055744.0


# No reassociation here: it would cancel the shift that rounds.
_INLINED = {"fastmath": {"contract", "nsz"}, "forceinline": True}


def exp(x):
    """exp(x) for x <= 0, and 0 where it would be denormal; inside compiled loops only."""
    return np.exp(x)


def log(x):
    """log(x) for 1 <= x <= 3; inside compiled loops only."""
    return np.log(x)


@overload(exp, jit_options=_INLINED)
def _exp(x):
    if x.bitwidth == 32:

        def single(x):
            small = x < np.float32(-87.0)
            x = np.float32(-87.0) if small else x
            shifted = x * np.float32(_LOG2E) + np.float32(_SHIFT32)
            k = shifted - np.float32(_SHIFT32)
            r = (x - k * np.float32(_LN2_HIGH32)) - k * np.float32(_LN2_LOW32)
            r2 = r * r
            s = np.float32(1.9875691500e-4) * r + np.float32(1.3981999507e-3)
            s = s * r2 + (np.float32(8.3334519073e-3) * r + np.float32(4.1665795894e-2))
            s = s * r2 + (np.float32(1.6666665459e-1) * r + np.float32(5.0000001201e-1))
            s = s * r2 + (r + np.float32(1))
            power = np.int32((np.float32(shifted).view(np.int32) + np.int32(127)) << np.int32(23)).view(
                np.float32
            )
            return np.float32(0) if small else s * power

        return single

    def double(x):
        small = x < -708.0
        x = -708.0 if small else x
        shifted = x * _LOG2E + _SHIFT64
        k = shifted - _SHIFT64
        r = (x - k * _LN2_HIGH64) - k * _LN2_LOW64
        r2 = r * r
        r4 = r2 * r2
        high = (1 / 39916800.0 * r + 1 / 3628800.0) + 1 / 479001600.0 * r2
        middle = (1 / 362880.0 * r + 1 / 40320.0) * r2 + (1 / 5040.0 * r + 1 / 720.0)
        low = (1 / 120.0 * r + 1 / 24.0) * r2 + (1 / 6.0 * r + 0.5)
        s = (high * r4 + middle) * r4 + low
        s = s * r2 + (r + 1)
        power = np.int64((np.float64(shifted).view(np.int64) + np.int64(1023)) << np.int64(52)).view(
            np.float64
        )
        return 0.0 if small else s * power

    return double


@overload(log, jit_options=_INLINED)
def _log(x):
    if x.bitwidth == 32:

        def single(x):
            half = x > np.float32(1.5)
            t = np.float32(0.5) * x if half else x
            z = (t - np.float32(1)) / (t + np.float32(1))
            w = z * z
            s = np.float32(2 / 9) * w + np.float32(2 / 7)
            s = s * (w * w) + (np.float32(2 / 5) * w + np.float32(2 / 3))
            s = s * w + np.float32(2)
            return s * z + (np.float32(_LN2) if half else np.float32(0))

        return single

    def double(x):
        half = x > 1.5
        t = 0.5 * x if half else x
        z = (t - 1) / (t + 1)
        w = z * z
        w2 = w * w
        w4 = w2 * w2
        high = (2 / 23 * w + 2 / 21) * w2 + (2 / 19 * w + 2 / 17)
        middle = (2 / 15 * w + 2 / 13) * w2 + (2 / 11 * w + 2 / 9)
        low = (2 / 7 * w + 2 / 5) * w2 + (2 / 3 * w + 2.0)
        s = (high * w4 + middle) * w4 + low
        return s * z + (_LN2 if half else 0.0)

    return double
