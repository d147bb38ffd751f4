"""The loops of ``hh_run`` over the numbers of a row, each naming few arrays, so that the compiler makes
vectors.

See ``loops.py``, which calls them; a change here is not seen by the cache of that file.
"""

from __future__ import annotations

from icml_kernels.neurons.vector_math import log
from icml_kernels.njit import njit
from icml_kernels.series.soft_elastic.vector_math import exp

LARGEST_EXPONENT = 80
SAFE_EXPONENT = 40  # in single precision, where two exponentials are multiplied
NEAR32, NEAR64 = 3e-2, 1e-4


@njit(nogil=True)
def product(a, b, out):
    """out = a b."""
    for j in range(len(out)):
        out[j] = a[j] * b[j]


@njit(nogil=True)
def add_product(a, b, out):
    """out += a b."""
    for j in range(len(out)):
        out[j] += a[j] * b[j]


@njit(nogil=True)
def subtract_product(a, b, out):
    """out -= a b."""
    for j in range(len(out)):
        out[j] -= a[j] * b[j]


@njit(nogil=True)
def add_scaled(scale, a, out):
    """out += scale a."""
    for j in range(len(out)):
        out[j] += scale * a[j]


@njit(nogil=True)
def gap_product(mu, a, b, out):
    """out += mu (a - b)."""
    for j in range(len(out)):
        out[j] += mu[j] * (a[j] - b[j])


@njit(nogil=True)
def add_gap_product(w, a, b, out):
    """out += w (a - b)."""
    for j in range(len(out)):
        out[j] += w[j] * (a[j] - b[j])


@njit(nogil=True)
def pull_back(mu, potential, v, out):
    """out = mu (potential - v): the derivative by a conductance."""
    for j in range(len(out)):
        out[j] = mu[j] * (potential[j] - v[j])


@njit(nogil=True, forceinline=True)
def _power(x, p, one):
    square = x * x
    low = one if p == 0 else (x if p == 1 else square)
    return low if p <= 2 else (square * x if p == 3 else square * square)


@njit(nogil=True)
def conduct(gmax, x1, p1, x2, p2, potential, diagonal, right):
    """Add w and w E of a channel, w = gmax x1^p1 x2^p2, to the diagonal and the right side."""
    one = gmax.dtype.type(1)
    for j in range(len(gmax)):
        w = gmax[j] * _power(x1[j], p1, one) * _power(x2[j], p2, one)
        diagonal[j] += w
        right[j] += w * potential


@njit(nogil=True)
def weight(gmax, x1, p1, x2, p2, out):
    """out = gmax x1^p1 x2^p2."""
    one = gmax.dtype.type(1)
    for j in range(len(gmax)):
        out[j] = gmax[j] * _power(x1[j], p1, one) * _power(x2[j], p2, one)


@njit(nogil=True)
def conduct_towards(w, potential, diagonal, right):
    """The same with a potential for each number."""
    for j in range(len(w)):
        diagonal[j] += w[j]
        right[j] += w[j] * potential[j]


@njit(nogil=True)
def open_back(push, x1, p1, x2, p2, out):
    """out += push x1^p1 x2^p2: the derivative by gmax."""
    one = push.dtype.type(1)
    for j in range(len(push)):
        out[j] += push[j] * _power(x1[j], p1, one) * _power(x2[j], p2, one)


@njit(nogil=True)
def power_back(push, gmax, x, p, other, q, out):
    """out += push gmax p x^(p - 1) other^q: the derivative by x."""
    one, factor = push.dtype.type(1), push.dtype.type(p)
    for j in range(len(push)):
        out[j] += push[j] * gmax[j] * factor * _power(x[j], p - 1, one) * _power(other[j], q, one)


@njit(nogil=True)
def calcium_parts(calcium, share, nernst, half, outside, scale):
    """Ca / (Ca + half), and the Nernst potential."""
    for j in range(len(calcium)):
        share[j] = calcium[j] / (calcium[j] + half)
        nernst[j] = scale * log(outside / calcium[j])


@njit(nogil=True)
def calcium(calcium, current, rate, rest, tau, decay, out):
    """Ca of the next step."""
    zero = calcium.dtype.type(0)
    for j in range(len(calcium)):
        entry = -rate[j] * current[j]
        level = rest + tau * (entry if entry > zero else zero)
        out[j] = level + (calcium[j] - level) * decay


@njit(nogil=True)
def calcium_back(current, rate, lam, by_rate, tau, decay):
    """current becomes the derivative by it; lam loses a step."""
    zero, gain = current.dtype.type(0), tau * (current.dtype.type(1) - decay)
    for j in range(len(current)):
        entering = -rate[j] * current[j] > zero
        entry = lam[j] * gain if entering else zero
        by_rate[j] -= current[j] * entry
        current[j] = -rate[j] * entry
        lam[j] *= decay


@njit(nogil=True)
def pool_back(calcium, by_share, by_nernst, half, scale, lam):
    """Through Ca / (Ca + half) and the Nernst potential."""
    for j in range(len(calcium)):
        total = calcium[j] + half
        lam[j] += by_share[j] * half / (total * total) - by_nernst[j] * scale / calcium[j]


@njit(nogil=True)
def gate(v, x, out, a, b, dt):
    """x' = inf + (x - inf) exp(-dt (alpha + beta)), in double precision with one
    division; in single precision that would overflow, and far exponentials are cut."""
    kind = v.dtype.type
    one, half, twelfth, most = kind(1), kind(0.5), kind(1 / 12), kind(LARGEST_EXPONENT)
    far = most if v.itemsize == 8 else kind(SAFE_EXPONENT)
    near = kind(NEAR64) if v.itemsize == 8 else kind(NEAR32)
    near_a, near_b = (near if a[6] < 0 else -one), (near if b[6] < 0 else -one)
    a0, a1, a2, a3, a4, a5, a6 = a[0], a[1], a[2], a[3], a[4], a[5], a[6]
    b0, b1, b2, b3, b4, b5, b6 = b[0], b[1], b[2], b[3], b[4], b[5], b[6]
    for j in range(len(v)):
        s = (v[j] - a1) * a2
        s = s if s < most else most
        s = s if s > -most else -most
        e = exp(-(far if s > far else (s if s > -far else -far)))
        close = abs(s) < near_a
        na = a0 * (one + s * half + s * s * twelfth if close else a3 + a4 * s + a5 * e)
        da = one if close else one + a6 * e
        s = (v[j] - b1) * b2
        s = s if s < most else most
        s = s if s > -most else -most
        e = exp(-(far if s > far else (s if s > -far else -far)))
        close = abs(s) < near_b
        nb = b0 * (one + s * half + s * s * twelfth if close else b3 + b4 * s + b5 * e)
        db = one if close else one + b6 * e
        p = na * db
        d = p + nb * da
        m = da * db
        if v.itemsize == 8:
            r = one / (d * m)
            inf, total = p * m * r, d * d * r
        else:
            inf, total = p / d, d / m
        out[j] = inf + (x[j] - inf) * exp(-dt * total)


@njit(nogil=True)
def gate_back(v, x, lam_v, lam_x, a, b, dt):
    """From the derivative by x' to those by V' and x."""
    kind = v.dtype.type
    one, half, twelfth, most = kind(1), kind(0.5), kind(1 / 12), kind(LARGEST_EXPONENT)
    sixth = kind(1 / 6)
    near = kind(NEAR64) if v.itemsize == 8 else kind(NEAR32)
    near_a, near_b = (near if a[6] < 0 else -one), (near if b[6] < 0 else -one)
    a0, a1, a2, a3, a4, a5, a6 = a[0], a[1], a[2], a[3], a[4], a[5], a[6]
    b0, b1, b2, b3, b4, b5, b6 = b[0], b[1], b[2], b[3], b[4], b[5], b[6]
    for j in range(len(v)):
        s = (v[j] - a1) * a2
        s = s if s < most else most
        s = s if s > -most else -most
        e = exp(-s)
        close = abs(s) < near_a
        inverse = one / (one if close else one + a6 * e)
        value = (one + s * half + s * s * twelfth if close else a3 + a4 * s + a5 * e) * inverse
        slope = (half + s * sixth if close else a4 - a5 * e + value * a6 * e) * inverse
        alpha, by_alpha = a0 * value, a0 * a2 * slope
        s = (v[j] - b1) * b2
        s = s if s < most else most
        s = s if s > -most else -most
        e = exp(-s)
        close = abs(s) < near_b
        inverse = one / (one if close else one + b6 * e)
        value = (one + s * half + s * s * twelfth if close else b3 + b4 * s + b5 * e) * inverse
        slope = (half + s * sixth if close else b4 - b5 * e + value * b6 * e) * inverse
        total = alpha + b0 * value
        by_total = by_alpha + b0 * b2 * slope
        inverse = one / total
        inf = alpha * inverse
        by_inf = (by_alpha - inf * by_total) * inverse
        decay = exp(-dt * total)
        lam_v[j] += lam_x[j] * (by_inf * (one - decay) - (x[j] - inf) * dt * by_total * decay)
        lam_x[j] *= decay
