"""Random pivots in plain Python: the definition."""

from __future__ import annotations

from torch import Tensor

_MASK = 2**64 - 1


def mix(value: int) -> int:
    """The finaliser of SplitMix64."""
    z = (value + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def rounds(
    indptr: Tensor,
    indices: Tensor,
    probability: Tensor,
    vertex_keys: Tensor,
    order_salts: Tensor,
    coin_salts: Tensor,
) -> Tensor:
    """Run after run, vertex after vertex."""
    bounds, neighbours, chance = indptr.tolist(), indices.tolist(), probability.tolist()
    keys = [key & _MASK for key in vertex_keys.tolist()]
    found = []
    for order_salt, coin_salt in zip(order_salts.tolist(), coin_salts.tolist(), strict=True):
        pivot = [-1] * len(keys)
        for v in sorted(range(len(keys)), key=lambda v: mix(keys[v] ^ (order_salt & _MASK))):
            if pivot[v] >= 0:
                continue
            pivot[v] = v
            for entry in range(bounds[v], bounds[v + 1]):
                w = neighbours[entry]
                if pivot[w] < 0:
                    pair = mix((mix(keys[v]) + mix(keys[w])) & _MASK)
                    coin = (mix(pair ^ (coin_salt & _MASK)) >> 11) * 2.0**-53
                    if coin < chance[entry]:
                        pivot[w] = v
        found.append(pivot)
    return vertex_keys.new_tensor(found).reshape(len(found), len(keys))
