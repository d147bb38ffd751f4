"""Random pivots on the CPU: a thread owns its runs.

The order of a run comes from buckets of the upper bits of the random keys and insertion within a bucket:
O(n) in expectation, since the keys are uniform. Unsigned indices spare numba's test for counting from the
end.
"""

from __future__ import annotations

import numpy as np
from torch import Tensor

from icml_kernels.njit import njit, prange, threads


def rounds(
    indptr: Tensor,
    indices: Tensor,
    probability: Tensor,
    vertex_keys: Tensor,
    order_salts: Tensor,
    coin_salts: Tensor,
) -> Tensor:
    """See ``reference.rounds``."""
    out = vertex_keys.new_empty(order_salts.shape[0], vertex_keys.shape[0])
    graph = indptr.contiguous().numpy(), indices.contiguous().numpy(), probability.contiguous().numpy()
    keys, *salts = (t.contiguous().numpy().view(np.uint64) for t in (vertex_keys, order_salts, coin_salts))
    shares = max(1, min(threads(), len(out)))
    bounds = np.linspace(0, len(out), shares + 1).astype(np.int64)
    if out.numel():
        _runs(bounds, *graph, keys, *salts, out.numpy())
    return out


@njit
def _mix(value):
    z = value + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@njit
def _order(hashes, begin, order):
    """The vertices by rising hash, ties by number; ``begin`` is scratch for the buckets."""
    buckets = len(begin) - 1
    shift = np.uint64(64)
    while (1 << (64 - np.int64(shift))) < buckets:
        shift -= np.uint64(1)
    one = np.uint64(1)
    begin[:] = 0
    for v in range(len(hashes)):
        begin[(hashes[v] >> shift) + one] += 1
    for k in range(buckets):
        begin[k + 1] += begin[k]
    for v in range(len(hashes)):
        bucket = hashes[v] >> shift
        order[np.uint64(begin[bucket])] = v
        begin[bucket] += 1
    start = 0
    for bucket in range(buckets):
        stop = begin[bucket]
        for k in range(start + 1, stop):
            v = order[k]
            j = k
            while j > start and hashes[order[j - 1]] > hashes[v]:
                order[j] = order[j - 1]
                j -= 1
            order[j] = v
        start = stop


@njit
def _run(indptr, indices, probability, keys, mixed, order_salt, coin_salt, hashes, begin, order, pivot):
    for v in range(len(keys)):
        hashes[v] = _mix(keys[v] ^ order_salt)
        pivot[v] = -1
    _order(hashes, begin, order)
    for v in order:
        if pivot[v] >= 0:
            continue
        pivot[v] = v
        for entry in range(indptr[v], indptr[v + 1]):
            w = np.uint64(indices[np.uint64(entry)])
            if pivot[w] < 0:
                if probability[entry] < 1.0:
                    coin = _mix(_mix(mixed[v] + mixed[w]) ^ coin_salt) >> np.uint64(11)
                    if np.float64(coin) * 2.0**-53 >= probability[entry]:
                        continue
                pivot[w] = v


@njit(parallel=True)
def _runs(bounds, indptr, indices, probability, keys, order_salts, coin_salts, out):
    n = len(keys)
    buckets = 2
    while buckets < n:
        buckets *= 2
    mixed = np.empty(n, dtype=np.uint64)
    for v in range(n):
        mixed[v] = _mix(keys[v])
    for s in prange(len(bounds) - 1):
        hashes = np.empty(n, dtype=np.uint64)
        begin = np.empty(buckets + 1, dtype=np.int64)
        order = np.empty(n, dtype=np.int64)
        for r in range(bounds[s], bounds[s + 1]):
            salts = order_salts[r], coin_salts[r]
            _run(indptr, indices, probability, keys, mixed, *salts, hashes, begin, order, out[r])
