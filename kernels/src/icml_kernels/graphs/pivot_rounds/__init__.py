"""Many random greedy clusterings of a graph: pivots take their neighbours, or toss a coin for each."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.graphs.checks import require_csr, require_dtype
from icml_kernels.graphs.pivot_rounds import reference

_HERE = "icml_kernels.graphs.pivot_rounds"


def pivot_rounds(
    indptr: Int[Tensor, " n_1"],
    indices: Int[Tensor, " entries"],
    probability: Float[Tensor, " entries"],
    vertex_keys: Int64[Tensor, " n"],
    order_salts: Int64[Tensor, " runs"],
    coin_salts: Int64[Tensor, " runs"],
    *,
    trusted: bool = False,
) -> Int64[Tensor, "runs n"]:
    """Cluster by random pivots, once for each pair of salts.

    In every run the vertices come in the order of ``mix(key ^ order_salt)``, ties by number. One that has no
    cluster yet becomes a pivot, and takes each neighbour without a cluster with the entry's probability. The
    coin of an edge is ``mix(mix(mix(key_u) + mix(key_v)) ^ coin_salt)``, its upper 53 bits a number in
    [0, 1); ``mix`` is the finaliser of SplitMix64. So each run costs O(n + m), and depends on keys and salts
    alone, not on how vertices are numbered.

    Args:
        indptr: bounds of the rows of a symmetric graph without loops.
        indices: neighbours.
        probability: of each entry, the same in both directions; float64.
        vertex_keys: 64 random bits of each vertex.
        order_salts: 64 random bits for each run.
        coin_salts: the same for the coins.
        trusted: do not look whether the arguments are right.

    Returns:
        For each run and vertex the pivot of its cluster.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes that do not match.
    """
    if trusted:
        return _rounds(indptr, indices, probability.detach(), vertex_keys, order_salts, coin_salts)
    require_csr("the graph", indptr, indices)
    require_dtype(torch.float64, probability=probability)
    require_dtype(torch.int64, vertex_keys=vertex_keys, order_salts=order_salts, coin_salts=coin_salts)
    n = len(indptr) - 1
    if probability.shape != indices.shape or vertex_keys.shape != (n,):
        shapes = f"{list(probability.shape)} and {list(vertex_keys.shape)}"
        raise ValueError(
            f"probability and vertex_keys have shapes {shapes}; expected [{len(indices)}] and [{n}]"
        )
    if order_salts.dim() != 1 or coin_salts.shape != order_salts.shape:
        raise ValueError(
            f"salts have shapes {list(order_salts.shape)} and {list(coin_salts.shape)}; expected [runs] twice"
        )
    return _rounds(indptr, indices, probability.detach(), vertex_keys, order_salts, coin_salts)


def _fake(
    indptr: Tensor,
    indices: Tensor,
    probability: Tensor,
    vertex_keys: Tensor,
    order_salts: Tensor,
    coin_salts: Tensor,
) -> Tensor:
    return vertex_keys.new_empty(order_salts.shape[0], vertex_keys.shape[0])


_rounds = raw_op("pivot_rounds", reference.rounds, fake=_fake, cpu=f"{_HERE}.cpu:rounds")
