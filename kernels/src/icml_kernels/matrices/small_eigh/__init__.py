"""Eigenvalues and eigenvectors of many small symmetric matrices: A = V diag(values) V^T.

torch.linalg.eigh on a GPU makes the host wait for the result, which a CUDA graph cannot hold. Up to
`LARGEST` rows a kernel of Jacobi rotations takes its place there; on a CPU it is torch.linalg.eigh itself.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from icml_kernels.dispatch import raw_op, route
from icml_kernels.matrices.checks import require_matrices
from icml_kernels.matrices.small_eigh import reference

LARGEST = 32  # rows that the kernel takes; larger matrices go to torch.linalg.eigh on every device
_HERE = "icml_kernels.matrices.small_eigh"


def _fake(a: Tensor) -> tuple[Tensor, Tensor]:
    return a.new_empty(a.shape[:2]), a.new_empty(a.shape).mT


_small_eigh = raw_op("small_eigh", reference.small_eigh, fake=_fake, cuda=f"{_HERE}.triton:small_eigh")


def small_eigh(
    a: Float[Tensor, "batch size size"],
) -> tuple[Float[Tensor, "batch size"], Float[Tensor, "batch size size"]]:
    """Eigenvalues of symmetric matrices, ascending, and orthonormal eigenvectors as columns.

    Both to rounding of the largest entry of each matrix, whatever the scale. The signs of eigenvectors, and
    which ones of an eigenvalue that occurs several times, are nobody's promise. On a GPU the host never waits
    up to `LARGEST` rows, and entries that are not finite give NaN; elsewhere they raise as in torch. Not
    differentiable.

    Args:
        a: Matrices, float32 or float64; entries above the diagonal are not read.

    Raises:
        TypeError: A dtype that is neither float32 nor float64.
        ValueError: Anything but a batch of square matrices.

    Example:
        >>> values, vectors = small_eigh(torch.tensor([[[0.0, 2.0], [2.0, 0.0]]]))
        >>> values
        tensor([[-2.,  2.]])
    """
    require_matrices("a", a)
    if a.dtype not in (torch.float32, torch.float64):
        raise TypeError(f"a has dtype {a.dtype}; convert it to float32")
    if a.dim() != 3 or a.shape[1] != a.shape[2]:
        raise ValueError(f"a has shape {list(a.shape)}; expected [batch, size, size]")
    if a.device.type == "cpu" and not torch.compiler.is_compiling() and route() != "triton":
        return reference.small_eigh(a.detach())  # the same call as without this operator
    return _small_eigh(a.detach())
