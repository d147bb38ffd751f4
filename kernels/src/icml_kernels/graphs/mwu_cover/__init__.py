"""Multiplicative weights for covering triples of edges and packing the triples.

``min Σ w_e x_e`` with ``Σ_{e∈t} x_e ≥ 1`` for every triple t, ``x ≥ 0``; and ``max Σ y_t`` with
``Σ_{t∋e} y_t ≤ w_e``. A short triple is packed, which makes its edges longer (Garg and Könemann, SIAM J.
Comput. 37, 2007, doi.org/10.1137/S0097539704446232).
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int32, Int64
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.graphs.checks import require_dtype
from icml_kernels.graphs.mwu_cover import reference

_HERE = "icml_kernels.graphs.mwu_cover"


def mwu_cover_pass(
    rows: Int32[Tensor, "triples 3"],
    weight: Float[Tensor, " edges"],
    lengths: Float[Tensor, " edges"],
    packing: Float[Tensor, " triples"],
    threshold: float,
    step: float,
    phases: int = 1,
    *,
    trusted: bool = False,
) -> tuple[Float[Tensor, " edges"], Float[Tensor, " triples"]]:
    """Pack every triple, in order, until its length ``Σ_{e∈t} l_e`` is at least the threshold.

    Every further phase does so once more with a threshold greater by ``1 + step``.

    Packing ``u = min_{e∈t} w_e`` more of a triple multiplies the length of each of its edges by
    ``1 + step·u/w_e``. The result depends on the order of the triples, and on nothing else: it is the same
    to the last bit on every route.

    Args:
        rows: the three edges of each triple.
        weight: of the edges, positive; float64.
        lengths: of the edges, positive; float64.
        packing: what is packed of each triple already; float64.
        threshold: the length that every triple reaches.
        step: by which part the length of the lightest edge grows.
        phases: how many thresholds to reach, one after the other.
        trusted: do not look whether the arguments are right, which takes as long as a pass.

    Returns:
        The new lengths and the new packing.

    Raises:
        TypeError: dtypes other than int32 and float64.
        ValueError: shapes that do not match, an edge that is none, a step or threshold that is not positive.
    """
    weight, lengths, packing = weight.detach(), lengths.detach(), packing.detach()
    if trusted:
        return _pass(rows, weight, lengths, packing, float(threshold), float(step), phases)
    _check(rows, len(weight))
    require_dtype(torch.float64, weight=weight, lengths=lengths, packing=packing)
    if weight.dim() != 1 or lengths.shape != weight.shape or packing.shape != rows.shape[:1]:
        shapes = f"{list(weight.shape)}, {list(lengths.shape)} and {list(packing.shape)}"
        raise ValueError(
            f"weight, lengths and packing have shapes {shapes}; expected [edges] twice and [triples]"
        )
    if len(weight) and (float(weight.min()) <= 0 or float(lengths.min()) <= 0):
        raise ValueError("a weight or length is not positive; leave edges of no weight out")
    if not (0 < step <= 1 and 0 < threshold < float("inf")):
        raise ValueError(
            f"step={step}, threshold={threshold}; expected 0 < step <= 1 and a positive threshold"
        )
    if phases < 0:
        raise ValueError(f"phases={phases}; expected a number >= 0")
    return _pass(rows, weight, lengths, packing, float(threshold), float(step), phases)


def raised_cover(
    rows: Int32[Tensor, "triples 3"], x: Float[Tensor, " edges"], *, trusted: bool = False
) -> Float[Tensor, " edges"]:
    """Cover what two edges of each triple leave uncovered by the first one: the least such cover.

    ``x_f = max(0, max_t 1 − x_e − x_e')`` over the triples t = (f, e, e'), and x where it is no first edge.
    What x has on first edges is not read.

    Args:
        rows: the three edges of each triple; an edge that is the first of one must be the first of all.
        x: float64.
        trusted: do not look whether the arguments are right, which takes as long as the rest.

    Raises:
        TypeError: dtypes other than int32 and float64.
        ValueError: shapes that do not match, an edge that is none.
    """
    if not trusted:
        _check(rows, len(x))
        require_dtype(torch.float64, x=x)
    return _raised(rows, x.detach())


def cover_costs(
    rows: Int32[Tensor, "triples 3"],
    weight: Float[Tensor, " edges"],
    others: Int64[Tensor, " others"],
    values: Float[Tensor, "covers others"],
    *,
    trusted: bool = False,
) -> Float[Tensor, " covers"]:
    """Cost ``Σ w_e x_e`` of the least covers with given values on the edges that are first of no triple.

    As :func:`raised_cover` gives them, one after the other in the same memory.

    Args:
        rows: the three edges of each triple.
        weight: of the edges; float64.
        others: the edges that have values, first of no triple.
        values: of those edges, one row a cover; float64.
        trusted: do not look whether the arguments are right.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes that do not match, an edge that is none.
    """
    if not trusted:
        _check(rows, len(weight))
        require_dtype(torch.float64, weight=weight, values=values)
        require_dtype(torch.int64, others=others)
        if values.dim() != 2 or values.shape[1:] != others.shape or weight.dim() != 1:
            shapes = f"{list(weight.shape)}, {list(others.shape)} and {list(values.shape)}"
            raise ValueError(
                f"weight, others and values have shapes {shapes}; "
                "expected [edges], [others], [covers, others]"
            )
        if len(others) and (int(others.min()) < 0 or int(others.max()) >= len(weight)):
            raise ValueError(f"others names an edge outside 0, …, {len(weight) - 1}")
    return _costs(rows, weight.detach(), others, values.detach())


def scaled_packing(
    rows: Int32[Tensor, "triples 3"],
    weight: Float[Tensor, " edges"],
    packing: Float[Tensor, " triples"],
    *,
    trusted: bool = False,
) -> Float[Tensor, " triples"]:
    """Make a packing of any amounts: each triple is divided by the worst overload among its edges.

    ``y_t / max(1, max_{e∈t} (Σ_{s∋e} y_s) / w_e)`` loads no edge beyond its weight.

    Args:
        rows: the three edges of each triple.
        weight: of the edges, positive; float64.
        packing: amounts >= 0; float64.
        trusted: do not look whether the arguments are right.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes that do not match, an edge that is none.
    """
    if not trusted:
        _check(rows, len(weight))
        require_dtype(torch.float64, weight=weight, packing=packing)
        if packing.shape != rows.shape[:1]:
            raise ValueError(f"packing has shape {list(packing.shape)}; expected [{len(rows)}]")
    return _scaled(rows, weight.detach(), packing.detach())


def _check(rows: Tensor, edges: int) -> None:
    require_dtype(torch.int32, rows=rows)
    if rows.dim() != 2 or rows.shape[1] != 3:
        raise ValueError(f"rows has shape {list(rows.shape)}; expected [triples, 3]")
    if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= edges):
        raise ValueError(f"rows names an edge outside 0, …, {edges - 1}")


def _fake_pass(
    rows: Tensor,
    weight: Tensor,
    lengths: Tensor,
    packing: Tensor,
    threshold: float,
    step: float,
    phases: int,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(lengths), torch.empty_like(packing)


def _fake_raised(rows: Tensor, x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _fake_costs(rows: Tensor, weight: Tensor, others: Tensor, values: Tensor) -> Tensor:
    return values.new_empty(values.shape[0])


def _fake_scaled(rows: Tensor, weight: Tensor, packing: Tensor) -> Tensor:
    return torch.empty_like(packing)


_costs = raw_op("cover_costs", reference.costs, fake=_fake_costs, cpu=f"{_HERE}.cpu:costs")
_scaled = raw_op("scaled_packing", reference.scaled, fake=_fake_scaled, cpu=f"{_HERE}.cpu:scaled")
_pass = raw_op("mwu_cover_pass", reference.cover_pass, fake=_fake_pass, cpu=f"{_HERE}.cpu:cover_pass")
_raised = raw_op("raised_cover", reference.raised, fake=_fake_raised, cpu=f"{_HERE}.cpu:raised")
