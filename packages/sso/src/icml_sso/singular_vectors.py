"""Top singular triplets of the atomic matrices of a parameter: at the start, and followed from step to step.

Steps on a sphere bring many singular values near R, where they overtake each other. Each atomic matrix keeps
a block of eight right vectors, from which `icml_kernels.matrices.block_krylov.krylov_top` goes on.
"""

from __future__ import annotations

import torch
from icml_kernels import block_lanczos, power_iter, top_singular
from icml_kernels.matrices.block_krylov import block_vectors, krylov_top, start_block
from jaxtyping import Float
from torch import Tensor

from icml_sso.atoms import Layout, Part

START_DEPTH = 7  # of the Krylov space from vectors that know nothing: 64 dimensions
LANCZOS_STEPS = 16
__all__ = ["followed_vectors", "lanczos_norms", "part_vectors", "starting_blocks", "top_singular"]


def part_vectors(part: Part) -> int:
    """Vectors that the block of each matrix of a part has."""
    return block_vectors(part.rows, part.columns)


def followed_vectors(layout: Layout) -> int:
    """Vectors for which a parameter's state has room: what its largest matrices need."""
    return max(part_vectors(part) for part in layout.parts)


def starting_blocks(
    layout: Layout, weight: Tensor, depth: int = START_DEPTH
) -> tuple[Float[Tensor, " atoms"], Float[Tensor, "atoms vectors columns"]]:
    """sigma and the block of each atomic matrix, from fixed vectors of spread-out entries."""
    vectors = followed_vectors(layout)
    sigmas, blocks = [], []
    for part in layout.parts:
        matrices = layout.read(weight, part)
        found = krylov_top(matrices, start_block(matrices, part_vectors(part)), depth)
        missing = vectors - found.block.shape[1]
        sigmas.append(found.sigma)
        blocks.append(torch.nn.functional.pad(found.block, (0, 0, 0, missing)))
    return torch.cat(sigmas), torch.cat(blocks)


def lanczos_norms(
    matrices: Float[Tensor, "batch rows columns"], v: Float[Tensor, "batch columns"]
) -> Float[Tensor, " batch"]:
    """Spectral norms by 16 block Lanczos steps: right to rounding where power iterations still converge."""
    _, u, v = power_iter(matrices, v, 1)
    wide, left, right = (matrices, u, v) if matrices.shape[1] <= matrices.shape[2] else (matrices.mT, v, u)
    t = block_lanczos(wide, left, right, LANCZOS_STEPS).t
    return torch.linalg.eigvalsh(t.double())[:, -1].clamp_min(0.0).sqrt().to(matrices.dtype)
