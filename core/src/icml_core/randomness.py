"""The one place that seeds torch globally: for initialisers and dropout, which take no generator."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Run the body under ``seed`` and restore the CPU's and every CUDA device's random state after it."""
    import torch

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        yield
