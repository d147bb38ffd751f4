"""What selection knows of each layer before it sees a label: Gram matrix, moments of the spectrum,
redundancies.

    ||X_i^T X_j||_F^2 = <X_i X_i^T, X_j X_j^T> = <K_i, K_j> + 2 n u_i . u_j + n^2 s_i s_j

for the uncentred X = Xbar + 1 m^T with K = Xbar Xbar^T, u = Xbar m and s = |m|^2: K 1 = 0 makes all other
terms vanish, so that centred Gram matrices serve for redundancies as well, without the cancellation of large
means.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from icml_kernels import batched_gram, spectrum_moments
from jaxtyping import Float
from torch import Tensor

from icml_loes.isotropy import eigenvalue_count, isotropy_of_moments
from icml_loes.layers import Layers

KEPT_BYTES = 2 << 30
"""Gram matrices of all layers are kept up to so many bytes; beyond it each is computed again where it is
needed."""


@dataclass
class LayerGrams:
    """Gram matrices and spectra of layers, float64.

    Args:
        layers: the layers.
        definition: of isotropy, ``"paper"`` or ``"dimension"``.
        wide: whether Gram matrices [n, n] are wanted at all; without them D x D products serve.
    """

    layers: Layers
    definition: str = "paper"
    wide: bool = True
    _kept: Tensor | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        n, count = self.layers.examples, len(self.layers)
        if self.wide and 8 * count * n * n <= KEPT_BYTES:
            self._kept = self._all()
        self.traces, self.squares = [], []
        for layer, value in enumerate(self.layers.values):
            if self.wide:
                k = self.gram(layer)
                self.traces.append(float(k.diagonal().sum()) / n)
                self.squares.append(float(k.square().sum()) / n**2)
            else:
                found = spectrum_moments(value.double(), correction=0)
                self.traces.append(float(found.trace))
                self.squares.append(float(found.square))

    def gram(self, layer: int) -> Float[Tensor, "n n"]:
        """K_l, centred, without weights."""
        if self._kept is not None:
            return self._kept[layer]
        return batched_gram(self.layers.values[layer][:, None], out_dtype=torch.float64)[0]

    def isotropies(self) -> list[float]:
        """iso of each layer."""
        n = self.layers.examples
        return [
            isotropy_of_moments(t, s, eigenvalue_count(n, d, self.definition), self.definition)
            for t, s, d in zip(self.traces, self.squares, self.layers.widths, strict=True)
        ]

    def redundancies(self) -> Float[Tensor, "layers layers"]:
        """red of all pairs: ||X_i^T X_j||_F / (||X_i||_F ||X_j||_F), uncentred; by Gram matrices if there are
        any."""
        count, n = len(self.layers), self.layers.examples
        if not self.wide:
            found = torch.stack([self.redundancy_with(j) for j in range(count)])
            return (found + found.T) / 2
        means = [v.double().mean(0) for v in self.layers.values]
        u = torch.stack([(v.double() - m) @ m for v, m in zip(self.layers.values, means, strict=True)])
        s = torch.stack([m @ m for m in means])
        if self._kept is not None:
            flat = self._kept.flatten(1)
            inner = flat @ flat.T
        else:
            inner = u.new_zeros(count, count)
            for i in range(count):
                k = self.gram(i)
                for j in range(i + 1):
                    inner[i, j] = inner[j, i] = (k * self.gram(j)).sum()
        square = inner + 2 * n * (u @ u.T) + n**2 * torch.outer(s, s)
        traces = torch.tensor(self.traces, dtype=torch.float64, device=s.device)
        norms = (n * (traces + s)).sqrt()
        return square.clamp_min(0).sqrt() / torch.outer(norms, norms).clamp_min(
            torch.finfo(torch.float64).tiny
        )

    def redundancy_with(self, layer: int) -> Float[Tensor, " layers"]:
        """red of every layer with one, by products D x D."""
        other = self.layers.values[layer].double()
        found = []
        for value in self.layers.values:
            x = value.double()
            norms = (x.norm() * other.norm()).clamp_min(torch.finfo(torch.float64).tiny)
            found.append((x.T @ other).norm() / norms)
        return torch.stack(found)

    def _all(self) -> Tensor:
        if self.layers.stacked is not None and len(self.layers.stacked[0]) == len(self.layers):
            return batched_gram(self.layers.stacked, out_dtype=torch.float64)
        one_each = [batched_gram(v[:, None], out_dtype=torch.float64) for v in self.layers.values]
        return torch.cat(one_each)
