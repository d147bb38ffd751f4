"""The logarithm inside compiled loops, in a form that the compiler turns into vectors.

The exponential is that of ``icml_kernels.series.soft_elastic.vector_math``.
"""

from __future__ import annotations

import numpy as np
from numba.extending import overload

_LN2 = 0.6931471805599453
_SQRT2 = 1.4142135623730951
# No reassociation: the high and low parts of a sum would be mixed.
_INLINED = {"fastmath": {"contract", "nsz"}, "forceinline": True}


def log(x):
    """log(x) for normal x above 0; inside compiled loops only.

    x = 2^k m with m in sqrt(1/2) to sqrt(2), and log m = 2 artanh(z) with z = (m - 1) / (m + 1), |z| <=
    0.172, as its series; what the series leaves out is below 1e-17.
    """
    return np.log(x)


@overload(log, jit_options=_INLINED)
def _log(x):
    if x.bitwidth == 32:

        def single(x):
            bits = np.float32(x).view(np.int32)
            k = np.int32((bits >> np.int32(23)) - np.int32(127))
            m = np.int32((bits & np.int32(0x007FFFFF)) | np.int32(0x3F800000)).view(np.float32)
            high = m > np.float32(_SQRT2)
            m = np.float32(0.5) * m if high else m
            e = np.float32(k) + (np.float32(1) if high else np.float32(0))
            z = (m - np.float32(1)) / (m + np.float32(1))
            w = z * z
            s = np.float32(2 / 9) * w + np.float32(2 / 7)
            s = s * (w * w) + (np.float32(2 / 5) * w + np.float32(2 / 3))
            s = s * w + np.float32(2)
            return s * z + e * np.float32(_LN2)

        return single

    def double(x):
        bits = np.float64(x).view(np.int64)
        k = np.int64((bits >> np.int64(52)) - np.int64(1023))
        m = np.int64((bits & np.int64(0x000FFFFFFFFFFFFF)) | np.int64(0x3FF0000000000000)).view(np.float64)
        high = m > _SQRT2
        m = 0.5 * m if high else m
        e = np.float64(k) + (1.0 if high else 0.0)
        z = (m - 1) / (m + 1)
        w = z * z
        w2 = w * w
        w4 = w2 * w2
        top = (2 / 21 * w + 2 / 19) * w2 + (2 / 17 * w + 2 / 15)
        s = (2 / 13 * w + 2 / 11) * w2 + (2 / 9 * w + 2 / 7)
        s = top * w4 + s
        s = s * w2 + (2 / 5 * w + 2 / 3)
        s = s * w + 2.0
        return s * z + e * _LN2

    return double
