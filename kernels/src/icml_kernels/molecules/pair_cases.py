"""The operators over pairs, each with every input on which its routes are compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

import icml_kernels
from icml_kernels.molecules.cfconv_mlp import cases as mlp
from icml_kernels.molecules.cfconv_table import cases as table
from icml_kernels.molecules.pair_geometry import cases as geometry
from icml_kernels.molecules.segment_sum_csr import cases as segments
from icml_kernels.testing import Case


def filter_network(
    x: Tensor,
    r: Tensor,
    pairs: icml_kernels.HalfList,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
    centers: Tensor,
    widths: Tensor,
    **options: Any,
) -> Tensor:
    """``cfconv_mlp`` with everything differentiable in a row, as the cases give it."""
    return icml_kernels.cfconv_mlp(
        x, r, pairs, w1, b1, w2, b2, centers=centers, widths=widths, cutoff=mlp.CUTOFF, **options
    )


def every_case() -> list[tuple[Callable[..., Any], Case]]:
    """Each operator with each of its cases."""
    return [
        (function, case)
        for function, module in (
            (icml_kernels.cfconv_table, table),
            (filter_network, mlp),
            (icml_kernels.pair_geometry, geometry),
            (icml_kernels.segment_sum_csr, segments),
        )
        for case in module.CASES
    ]


def label(value: object) -> str:
    """What a test calls an operator or a case."""
    return value.name if isinstance(value, Case) else getattr(value, "__name__", str(value))
