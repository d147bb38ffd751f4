"""Triangles of class centroids: their mean area says how widely the classes are spread.

    area(a, b, c) = 1/2 sqrt(|ab|^2 |ac|^2 - (ab . ac)^2)

Areas need the centroids' inner products only, so that centroids of any space given by a Gram matrix will do.
"""

from __future__ import annotations

import math
from itertools import combinations

import torch
from jaxtyping import Float, Int
from torch import Tensor

MOST_CLASSES = 60
"""Up to so many classes all triangles are taken: 34,220 of them."""
PER_CLASS, MOST_SAMPLED = 3, 200
"""The paper draws min(200, 3 C) triples of classes."""


def draw_triples(
    classes: int, triangles: str, generator: torch.Generator | None = None
) -> Int[Tensor, "triples 3"]:
    """Triples of classes.

    Args:
        classes: C; with fewer than three there are none.
        triangles: ``"sample"`` for min(200, 3 C) triples drawn with replacement, as in the paper, some of
            them degenerate; ``"sample:m"`` for at most m; ``"all"`` for every triple of distinct classes.
        generator: of the draws, on the CPU.

    Raises:
        ValueError: another form; ``"all"`` with more than 60 classes.
    """
    kind, _, number = triangles.partition(":")
    if kind not in ("sample", "all") or (
        number and (kind == "all" or not number.isdigit() or int(number) < 1)
    ):
        raise ValueError(f"triangles={triangles!r}; expected 'sample', 'sample:200' or 'all'")
    if classes < 3:
        return torch.zeros(0, 3, dtype=torch.int64)
    if kind == "all":
        if classes > MOST_CLASSES:
            raise ValueError(
                f"triangles='all' of {classes} classes are {math.comb(classes, 3)}; take 'sample:200' beyond "
                f"{MOST_CLASSES} classes"
            )
        return torch.tensor(list(combinations(range(classes), 3)))
    most = int(number) if number else MOST_SAMPLED
    return torch.randint(classes, (min(most, PER_CLASS * classes), 3), generator=generator)


def triangle_areas(
    gram: Float[Tensor, "*batch classes classes"], triples: Int[Tensor, "triples 3"], least: float = 0.0
) -> Float[Tensor, "*batch triples"]:
    """Area of each triangle from inner products of the corners; the squared double area is at least
    ``least``."""
    a, b, c = triples.to(gram.device).unbind(1)
    norms = gram.diagonal(dim1=-2, dim2=-1)
    ab = norms[..., a] + norms[..., b] - 2 * gram[..., a, b]
    ac = norms[..., a] + norms[..., c] - 2 * gram[..., a, c]
    along = gram[..., b, c] - gram[..., a, b] - gram[..., a, c] + norms[..., a]
    # Two equal corners span nothing; rounding of large norms would make it a little.
    distinct = (a != b) & (a != c) & (b != c)
    return 0.5 * ((ab * ac - along.square()) * distinct).clamp_min(least).sqrt()


def mean_area(
    gram: Float[Tensor, "*batch classes classes"], triples: Int[Tensor, "triples 3"]
) -> Float[Tensor, "*batch"]:
    """Mean area over the triples; 0 without any."""
    if len(triples) == 0:
        return gram.new_zeros(gram.shape[:-2])
    return triangle_areas(gram, triples).mean(-1)


def class_means(labels: Int[Tensor, " n"], classes: int) -> Float[Tensor, "classes n"]:
    """A with A X the class centroids of X: row c averages over the examples of class c."""
    indicator = torch.nn.functional.one_hot(labels, classes).double().T
    return indicator / indicator.sum(1, keepdim=True).clamp_min(1)
