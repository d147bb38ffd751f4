"""Top singular triplets of the atomic matrices of a parameter: at the start, and started anew now and then.

Two power iterations a step from the vector of the step before follow sigma_1 as long as it stays the largest.
Where sigma_2 overtakes it the iteration keeps to the old vector for long, so that it also starts from another
one.
"""

from __future__ import annotations

import torch
from icml_kernels import block_lanczos, lanczos_top, power_iter, top_singular
from icml_kernels.matrices.matvec import matvec
from icml_kernels.matrices.singular import start_vectors
from jaxtyping import Float
from torch import Tensor

from icml_sso.atoms import Layout

START_ITERATIONS = 20
LANCZOS_STEPS = 16
__all__ = ["followed_triplet", "lanczos_norms", "starting_triplets", "top_singular"]


def starting_triplets(
    layout: Layout, weight: Tensor, iterations: int = START_ITERATIONS
) -> tuple[Float[Tensor, " atoms"], Float[Tensor, "atoms columns"]]:
    """sigma and v of each atomic matrix, from a fixed vector of spread-out entries."""
    sigmas, vectors = [], []
    for part in layout.parts:
        matrices = layout.read(weight, part)
        sigma, _, v = power_iter(matrices, start_vectors(matrices), iterations)
        sigmas.append(sigma)
        vectors.append(v)
    return torch.cat(sigmas), torch.cat(vectors)


def lanczos_norms(
    matrices: Float[Tensor, "batch rows columns"], v: Float[Tensor, "batch columns"]
) -> Float[Tensor, " batch"]:
    """Spectral norms by 16 block Lanczos steps: right to rounding where power iterations still converge."""
    _, u, v = power_iter(matrices, v, 1)
    wide, left, right = (matrices, u, v) if matrices.shape[1] <= matrices.shape[2] else (matrices.mT, v, u)
    t = block_lanczos(wide, left, right, LANCZOS_STEPS).t
    return torch.linalg.eigvalsh(t.double())[:, -1].clamp_min(0.0).sqrt().to(matrices.dtype)


def followed_triplet(
    weight: Float[Tensor, "batch rows columns"],
    v: Float[Tensor, "batch columns"],
    steps: int,
    turn: int | Tensor,
) -> tuple[Float[Tensor, " batch"], Float[Tensor, "batch rows"], Float[Tensor, "batch columns"]]:
    """sigma, u and v of each matrix now, from v of the step before and another vector each time."""
    if weight.shape[1] > weight.shape[2]:
        sigma, right, left = lanczos_top(weight.mT, v, steps, turn=turn)
        return sigma, left, right
    return lanczos_top(weight, matvec(weight, v), steps, turn=turn)
