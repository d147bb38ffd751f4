"""A sparse matrix in compressed rows times a block of vectors: Y = A X."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int32
from torch import Tensor

from icml_kernels.autodiff import differentiable
from icml_kernels.dispatch import raw_op
from icml_kernels.subspaces.checks import REAL, require_dtype, require_matrix
from icml_kernels.subspaces.spmm_csr import reference

_HERE = "icml_kernels.subspaces.spmm_csr"


def spmm_csr(
    data: Float[Tensor, " entries"],
    indices: Int32[Tensor, " entries"],
    indptr: Int32[Tensor, " rows_1"],
    x: Float[Tensor, "columns block"],
) -> Float[Tensor, "rows block"]:
    """y_i = sum of data_p x_{indices_p} over the entries p of row i, in their order.

    Differentiable by the entries and the block. Deterministic for any number of threads.

    Args:
        data: entries.
        indices: their columns.
        indptr: bounds of the rows, rising from 0 to the number of entries.
        x: block; the matrix has as many columns as it has rows.

    Raises:
        TypeError: dtypes that are not floating, two precisions, indices that are not int32.
        ValueError: shapes that do not fit, or a column outside of the block.

    Example:
        >>> indptr, indices = (torch.tensor(v, dtype=torch.int32) for v in ([0, 1, 3], [1, 0, 1]))
        >>> spmm_csr(torch.tensor([2.0, 1.0, 3.0]), indices, indptr, torch.tensor([[1.0], [10.0]])).tolist()
        [[20.0], [31.0]]
    """
    require_dtype(REAL, data=data, x=x)
    for name, index in (("indices", indices), ("indptr", indptr)):
        if index.dtype != torch.int32:
            raise TypeError(f"{name} has dtype {index.dtype}; expected torch.int32")
    require_matrix("x", x)
    if data.dim() != 1 or indices.shape != data.shape or indptr.dim() != 1 or indptr.shape[0] == 0:
        raise ValueError(
            f"data {list(data.shape)}, indices {list(indices.shape)}, indptr {list(indptr.shape)}; expected "
            "[entries], [entries] and [rows + 1]"
        )
    if data.device.type == "cpu" and not torch.compiler.is_compiling() and not _inside_transform(data, x):
        _check_structure(indices, indptr, x.shape[0])
    return _spmm(data, indices, indptr, x)


def _inside_transform(*tensors: Tensor) -> bool:
    return any(torch._C._functorch.is_functorch_wrapped_tensor(t) for t in tensors)


def _check_structure(indices: Tensor, indptr: Tensor, columns: int) -> None:
    if int(indptr[0]) != 0 or int(indptr[-1]) != indices.shape[0] or bool((torch.diff(indptr) < 0).any()):
        raise ValueError(f"indptr must rise from 0 to the {indices.shape[0]} entries")
    if indices.shape[0] and (int(indices.min()) < 0 or int(indices.max()) >= columns):
        raise ValueError(
            f"indices reach from {int(indices.min())} to {int(indices.max())}; x has rows 0 to {columns - 1}"
        )


def _fake_forward(data: Tensor, indices: Tensor, indptr: Tensor, x: Tensor) -> Tensor:
    return x.new_empty(indptr.shape[0] - 1, x.shape[1])


def _fake_transposed(data: Tensor, indices: Tensor, indptr: Tensor, y: Tensor, columns: int) -> Tensor:
    return y.new_empty(columns, y.shape[1])


def _fake_sampled(indices: Tensor, indptr: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return y.new_empty(indices.shape[0])


_forward = raw_op(
    "spmm_csr",
    reference.forward,
    fake=_fake_forward,
    cpu=f"{_HERE}.cpu:forward",
    cuda=f"{_HERE}.triton:forward",
)
_transposed = raw_op(
    "spmm_csr_transposed", reference.transposed, fake=_fake_transposed, cpu=f"{_HERE}.cpu:transposed"
)
_sampled = raw_op("spmm_csr_sampled", reference.sampled, fake=_fake_sampled, cpu=f"{_HERE}.cpu:sampled")


class _Spmm(torch.autograd.Function):
    """Y = A X; bilinear in the entries and X."""

    generate_vmap_rule = True

    @staticmethod
    def forward(data: Tensor, indices: Tensor, indptr: Tensor, x: Tensor) -> Tensor:
        return _forward(data, indices, indptr, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        data, indices, indptr, x = ctx.saved_tensors
        return (
            _spmm_sampled(indices, indptr, g, x),
            None,
            None,
            _spmm_transposed(data, indices, indptr, g, x.shape[0]),
        )

    @staticmethod
    def jvp(ctx: Any, data_t: Any, indices_t: Any, indptr_t: Any, x_t: Any) -> Any:
        data, indices, indptr, x = ctx.saved_tensors
        parts = [] if data_t is None else [_spmm(data_t, indices, indptr, x)]
        parts += [] if x_t is None else [_spmm(data, indices, indptr, x_t)]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


_spmm = differentiable(_Spmm)


class _SpmmTransposed(torch.autograd.Function):
    """X = A^T Y."""

    generate_vmap_rule = True

    @staticmethod
    def forward(data: Tensor, indices: Tensor, indptr: Tensor, y: Tensor, columns: int) -> Tensor:
        return _transposed(data, indices, indptr, y, columns)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs[:4])
        ctx.save_for_forward(*inputs[:4])
        ctx.columns = inputs[4]

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        data, indices, indptr, y = ctx.saved_tensors
        return _spmm_sampled(indices, indptr, y, g), None, None, _spmm(data, indices, indptr, g), None

    @staticmethod
    def jvp(ctx: Any, data_t: Any, indices_t: Any, indptr_t: Any, y_t: Any, columns_t: Any) -> Any:
        data, indices, indptr, y = ctx.saved_tensors
        parts = [] if data_t is None else [_spmm_transposed(data_t, indices, indptr, y, ctx.columns)]
        parts += [] if y_t is None else [_spmm_transposed(data, indices, indptr, y_t, ctx.columns)]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


_spmm_transposed = differentiable(_SpmmTransposed)


class _SpmmSampled(torch.autograd.Function):
    """The entries of Y X^T in the pattern."""

    generate_vmap_rule = True

    @staticmethod
    def forward(indices: Tensor, indptr: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return _sampled(indices, indptr, y, x)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        indices, indptr, y, x = ctx.saved_tensors
        return None, None, _spmm(g, indices, indptr, x), _spmm_transposed(g, indices, indptr, y, x.shape[0])

    @staticmethod
    def jvp(ctx: Any, indices_t: Any, indptr_t: Any, y_t: Any, x_t: Any) -> Any:
        indices, indptr, y, x = ctx.saved_tensors
        parts = [] if y_t is None else [_spmm_sampled(indices, indptr, y_t, x)]
        parts += [] if x_t is None else [_spmm_sampled(indices, indptr, y, x_t)]
        return parts[0] if len(parts) == 1 else parts[0] + parts[1]


_spmm_sampled = differentiable(_SpmmSampled)
