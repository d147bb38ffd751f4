"""Random numbers that belong to a record, not to its row: hashes of a seed and of vertex keys.

Shuffling the input, or swapping the two ends of an edge, leaves every draw as it was. The mixing function
is the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014, doi.org/10.1145/2660193.2660195).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b

import numpy as np
from jaxtyping import Float, UInt64

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def mix(values: UInt64[np.ndarray, "*shape"]) -> UInt64[np.ndarray, "*shape"]:
    """Send 64-bit integers one to one to integers that look random."""
    with np.errstate(over="ignore"):
        z = np.asarray(values, dtype=np.uint64) + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
    return z ^ (z >> np.uint64(31))


def vertex_keys(ids: Sequence[Hashable] | None, n: int) -> UInt64[np.ndarray, " n"]:
    """Give the 64-bit key of each vertex: from its id, or from its index where there are no ids.

    An integer id has the key that its value has as an index, so both ways of naming agree.
    """
    if ids is None:
        return mix(np.arange(n, dtype=np.uint64))
    keys = np.empty(n, dtype=np.uint64)
    for index, name in enumerate(ids):
        if isinstance(name, int) and 0 <= name < 2**63:
            keys[index] = name
            continue
        text = f"{type(name).__name__}:{name!r}".encode()
        keys[index] = int.from_bytes(blake2b(text, digest_size=8).digest(), "big")
    return mix(keys)


def pair_keys(
    first: UInt64[np.ndarray, " pairs"], second: UInt64[np.ndarray, " pairs"]
) -> UInt64[np.ndarray, " pairs"]:
    """Give the key of each unordered pair of vertices."""
    with np.errstate(over="ignore"):
        return mix(mix(first) + mix(second))


def uniforms(
    keys: UInt64[np.ndarray, " k"], seed: int, stream: int, runs: Iterable[int]
) -> Float[np.ndarray, "runs k"]:
    """Draw a number in [0, 1) for each run and key; different seeds, streams and runs are independent."""
    return (hashes(keys, seed, stream, runs) >> np.uint64(11)) * 2.0**-53


def hashes(
    keys: UInt64[np.ndarray, " k"], seed: int, stream: int, runs: Iterable[int]
) -> UInt64[np.ndarray, "runs k"]:
    """Draw a 64-bit integer for each run and key; different seeds, streams and runs are independent."""
    salt = np.array(list(runs), dtype=np.uint64)
    for part in (stream, seed):
        salt = mix(salt ^ np.uint64(part & 0xFFFFFFFFFFFFFFFF))
    return mix(keys ^ salt[:, None])
