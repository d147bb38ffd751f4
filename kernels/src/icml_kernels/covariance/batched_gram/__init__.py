"""Gram matrices of every layer of an embedding tensor: K_l = X_l X_l^T, with centred columns.

They are the whole input of layer selection in dual form (arXiv 2605.23033, and its reformulation in
icml-loes): ridge residuals, orthogonal complements, redundancies and isotropies of layers of any width are
functions of them. The tensor [examples, layers, dim] is read where it lies; no permuted copy of it is made.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.autodiff import differentiable
from icml_kernels.covariance.batched_gram import reference
from icml_kernels.covariance.checks import require_floats, working_dtype
from icml_kernels.dispatch import raw_op

_HERE = "icml_kernels.covariance.batched_gram"


def batched_gram(
    embeddings: Float[Tensor, "examples layers dim"],
    *,
    center: bool = True,
    out_dtype: torch.dtype | None = None,
) -> Float[Tensor, "layers examples examples"]:
    """K_l = X_l X_l^T for every layer, X_l centred by its column means.

    Half precision is summed in float32. Where float32 embeddings come from a model and a small ridge follows,
    ask for float64: the rounding of a float32 Gram matrix of norm 1e4 exceeds a ridge of 1e-3.

    Args:
        embeddings: X_l are its slices ``[:, l]``, with any strides.
        center: whether to subtract column means first.
        out_dtype: float32 or float64; by default float64 for float64 and float32 for the rest.

    Raises:
        TypeError: a dtype that is not floating; an ``out_dtype`` other than the two, or narrower than the
            input.
        ValueError: no tensor of three dimensions, or an empty one.

    Example:
        >>> batched_gram(torch.tensor([[[1.0]], [[3.0]]]))
        tensor([[[ 1., -1.],
                 [-1.,  1.]]])
    """
    require_floats("embeddings", embeddings, 3, "[examples, layers, dim]")
    if embeddings.dim() != 3:
        raise ValueError(f"embeddings have shape {list(embeddings.shape)}; expected [examples, layers, dim]")
    natural = working_dtype(embeddings.dtype)
    wanted = natural if out_dtype is None else out_dtype
    if wanted not in (torch.float32, torch.float64) or (natural, wanted) == (torch.float64, torch.float32):
        raise TypeError(
            f"out_dtype={out_dtype} does not suit embeddings of {embeddings.dtype}; take {natural} or "
            "torch.float64"
        )
    return _batched_gram(embeddings, bool(center), wanted == torch.float64)


def _fake(embeddings: Tensor, center: bool, wide: bool) -> Tensor:
    n, layers, _ = embeddings.shape
    return embeddings.new_empty(layers, n, n, dtype=working_dtype(embeddings.dtype, wide))


_forward = raw_op(
    "batched_gram",
    reference.batched_gram,
    fake=_fake,
    cpu=f"{_HERE}.cpu:batched_gram",
    cuda=f"{_HERE}.triton:batched_gram",
)


class _BatchedGram(torch.autograd.Function):
    """dL/dX_l = H (G + G^T) X_l for the gradient G by K_l, H the centring."""

    generate_vmap_rule = True

    @staticmethod
    def forward(embeddings: Tensor, center: bool, wide: bool) -> Any:
        return _forward(embeddings, center, wide)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        embeddings, ctx.center, ctx.wide = inputs
        ctx.save_for_backward(embeddings)
        ctx.save_for_forward(embeddings)

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        (embeddings,) = ctx.saved_tensors
        layers = reference.centred_layers(embeddings, ctx.center, ctx.wide)
        gradient = (g + g.mT) @ layers
        if ctx.center:
            gradient = gradient - gradient.mean(1, keepdim=True)
        return gradient.transpose(0, 1).to(embeddings.dtype), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Any, *rest: Any) -> Any:
        (embeddings,) = ctx.saved_tensors
        layers = reference.centred_layers(embeddings, ctx.center, ctx.wide)
        half = reference.centred_layers(tangent, ctx.center, ctx.wide) @ layers.mT
        return half + half.mT


_batched_gram = differentiable(_BatchedGram)
