"""Selection beside the algorithm as published (float32, eigenvalues, primal solves), and GeoReg beside
eigvalsh.

    python benchmarks/selection.py [--quick] [--threads 1] [--clock wall|cpu] [--no-memory]

The published algorithm's time grows with k^3 D^3 L; ours with L n^2 D + k L n^3 where n <= D. About three
minutes.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from icml_loes.direct import direct_selection
from icml_loes.georeg import GeoRegLoss
from icml_loes.selection import select_layers
from icml_loes.synthetic import residual_stream
from measuring import Case, Work, run

warnings.simplefilter("ignore", UserWarning)


def selection(n: int, layers: int, dim: int, k: int, published: bool = True) -> Mapping[str, Work]:
    """One choice of k layers; the modes beside the paper's are ours too."""
    x, labels = residual_stream(n, layers, dim, 10, 0)
    y = torch.nn.functional.one_hot(labels).float()

    def ours(**options: Any) -> dict[str, float]:
        found = select_layers(x, labels, k, metrics=False, **options)
        return {f"layer {i + 1}": float(layer) for i, layer in enumerate(found.selected)}

    def theirs() -> dict[str, float]:
        triples = [torch.zeros(0, 3, dtype=torch.int64)] * k
        chosen, _ = direct_selection(list(x.unbind(1)), y, labels, k, triples=triples)
        return {f"layer {i + 1}": float(layer) for i, layer in enumerate(chosen)}

    works: dict[str, Work] = {"Gram matrices": partial(ours, eta=0.0)}
    if published:
        works["as published, float32"] = theirs
    works["leave one out"] = partial(ours, mode="loo")
    return works


def georeg(batch: int, dim: int) -> Mapping[str, Work]:
    """Value and gradient."""
    z = torch.randn(batch, dim, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(batch) % 8

    def both(spectrum: str) -> None:
        leaf = z.clone().requires_grad_()
        GeoRegLoss(spectrum=spectrum)(leaf, labels).backward()

    return {"moments": partial(both, "gram"), "eigvalsh": partial(both, "eigh")}


CASES: dict[str, Case] = {
    "BERT-base: n=512, L=12, D=768, k=3": partial(selection, 512, 12, 768, 3),
    "SmolLM2: n=200, L=30, D=576, k=4": partial(selection, 200, 30, 576, 4),
    "MiniLM: n=400, L=6, D=384, k=2": partial(selection, 400, 6, 384, 2),
    "n=256, L=12, D=768, k=3": partial(selection, 256, 12, 768, 3, False),
    "n=1024, L=12, D=768, k=3": partial(selection, 1024, 12, 768, 3, False),
    "n=512, L=24, D=768, k=3": partial(selection, 512, 24, 768, 3, False),
    "n=512, L=12, D=1536, k=3": partial(selection, 512, 12, 1536, 3, False),
    "primal: n=3000, L=12, D=256, k=3": partial(selection, 3000, 12, 256, 3, False),
    "GeoReg, B=128, D=1024": partial(georeg, 128, 1024),
    "GeoReg, B=128, D=512": partial(georeg, 128, 512),
    "GeoReg, B=1024, D=256": partial(georeg, 1024, 256),
}
QUICK: dict[str, Case] = {
    "n=64, L=4, D=32, k=2": partial(selection, 64, 4, 32, 2),
    "GeoReg, B=16, D=32": partial(georeg, 16, 32),
}

if __name__ == "__main__":
    run("selection", CASES, QUICK, __file__)
