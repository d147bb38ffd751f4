"""Other ways to choose layers: the last, the last k, the best alone, at random, by entropy, curvature or
dimension.

Entropy and curvature follow "Layer by Layer" (Skean et al., arXiv 2502.02013), intrinsic dimension is TwoNN
(Facco et al., 2017). All take [n, L, D] or a list of layers and give layer numbers; none but ``best_single``
looks at labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np
import torch
from icml_kernels import batched_gram
from jaxtyping import Float
from torch import Tensor

from icml_loes.layers import as_layers
from icml_loes.leave_one_out import LeaveOneOut
from icml_loes.targets import as_targets

DISCARDED = 0.1
"""Share of the largest ratios that TwoNN leaves out of its fit, as in the authors' code."""


def last_layers(n_layers: int, k: int) -> list[int]:
    """The last k, the last of all first.

    Raises:
        ValueError: k does not lie in 1 … L.
    """
    _check(n_layers, k)
    return list(range(n_layers - 1, n_layers - 1 - k, -1))


def random_layers(n_layers: int, k: int, seed: int) -> list[int]:
    """k of L without replacement.

    Raises:
        ValueError: k does not lie in 1 … L.
    """
    _check(n_layers, k)
    return [int(i) for i in np.random.default_rng(seed).permutation(n_layers)[:k]]


def best_single_layers(embeddings: Any, targets: Any, k: int = 1) -> list[int]:
    """The k layers whose ridge regression alone has the least leave-one-out error: a probe a layer."""
    layers = as_layers(embeddings)
    _check(len(layers), k)
    found = as_targets(targets, layers.examples)
    if found.matrix is None:
        raise ValueError("the best single layer needs targets")
    errors = LeaveOneOut(layers, found)
    losses = [errors.error([i]).loss for i in range(len(layers))]
    return _order(losses, k)


def entropy_layers(embeddings: Any, k: int, *, highest: bool = True, order: float = 1.0) -> list[int]:
    """The k layers of highest (or lowest) matrix entropy."""
    values = matrix_entropies(embeddings, order=order)
    _check(len(values), k)
    return _order([-v for v in values] if highest else values, k)


def dimension_layers(embeddings: Any, k: int, *, highest: bool = True) -> list[int]:
    """The k layers of highest (or lowest) intrinsic dimension."""
    layers = as_layers(embeddings)
    _check(len(layers), k)
    values = [two_nn_dimension(v.cpu().numpy()) for v in layers.values]
    return _order([-v for v in values] if highest else values, k)


def curvature_layers(
    curvatures: Float[np.ndarray, "n layers"], k: int, *, highest: bool = False
) -> list[int]:
    """The k layers of lowest (or highest) mean curvature of token paths, which the collector measures."""
    means = np.nanmean(np.asarray(curvatures, dtype=float), axis=0)
    _check(len(means), k)
    return _order([-v for v in means] if highest else list(means), k)


def matrix_entropies(embeddings: Any, order: float = 1.0) -> list[float]:
    """Entropy of each layer's spectrum, in nats: of p_i = ev_i / sum(ev), of the uncentred rows scaled to
    length 1.

    Args:
        embeddings: layers.
        order: 1 for von Neumann's -sum p ln p; 2 for Renyi's -ln sum p^2, which needs no eigenvalues.

    Raises:
        ValueError: another order.

    Example:
        >>> [round(v, 3) for v in matrix_entropies([torch.eye(4)])]
        [1.386]
    """
    if order not in (1.0, 2.0):
        raise ValueError(f"order={order!r}; expected 1 or 2")
    found = []
    for value in as_layers(embeddings).values:
        x = torch.nn.functional.normalize(value.double(), dim=1)
        small = x if len(x) <= x.shape[1] else x.T
        gram = batched_gram(small[:, None], center=False)[0]
        gram = gram / gram.diagonal().sum()
        if order == 2.0:
            found.append(float(-gram.square().sum().log()))
            continue
        p = torch.linalg.eigvalsh(gram).clamp_min(0)
        found.append(float(-torch.special.xlogy(p, p).sum()))
    return found


def two_nn_dimension(x: Float[np.ndarray, "n dim"], discarded: float = DISCARDED) -> float:
    """Intrinsic dimension: slope of -ln(1 - F) over ln mu, mu = second over first neighbour's distance.

    Duplicates, whose first neighbour lies at distance 0, are left out.

    Raises:
        ValueError: fewer than three different points.
    """
    from sklearn.neighbors import NearestNeighbors

    points = np.unique(np.asarray(x, dtype=np.float64), axis=0)
    if len(points) < 3:
        raise ValueError(f"{len(points)} different points have no intrinsic dimension; three are needed")
    distances, _ = NearestNeighbors(n_neighbors=3).fit(points).kneighbors(points)
    mu = np.sort(distances[:, 2] / distances[:, 1])
    n = len(mu)
    kept = max(1, int(n * (1 - discarded)))
    log_mu, rate = np.log(mu[:kept]), -np.log1p(-np.arange(kept) / n)
    square = float(log_mu @ log_mu)
    return float(log_mu @ rate) / square if square > 0 else float("inf")


def token_curvature(
    states: Float[Tensor, "batch tokens dim"], mask: Float[Tensor, "batch tokens"]
) -> Float[Tensor, " batch"]:
    """Mean angle, in radians, between successive steps of each path of token states; NaN below three tokens.

    Attended tokens are contiguous.
    """
    steps = states[:, 1:] - states[:, :-1]
    valid = mask[:, 1:].bool() & mask[:, :-1].bool()
    both = valid[:, 1:] & valid[:, :-1]
    unit = torch.nn.functional.normalize(steps.double(), dim=-1)
    angle = (unit[:, 1:] * unit[:, :-1]).sum(-1).clamp(-1, 1).arccos()
    return (angle * both).sum(1) / both.sum(1)


def every_subset(n_layers: int, k: int) -> list[tuple[int, ...]]:
    """All sets of k layers; exhaustive search over them is the upper bound of any selection."""
    _check(n_layers, k)
    return list(combinations(range(n_layers), k))


class ScalarMix:
    """Softmax weights of layers, learned together with a linear classifier (ELMo's mixture; Peters et al.,
    2018).

    Args:
        decay: of the classifier's weights, in the loss of all examples.
        steps: of L-BFGS.
    """

    def __init__(self, decay: float = 1e-3, steps: int = 100) -> None:
        self.decay, self.steps = decay, steps

    def fit(self, embeddings: Any, labels: Any) -> ScalarMix:
        """Learn mixture and classifier on layers standardised as a whole; returns itself."""
        layers = as_layers(embeddings)
        found = as_targets(labels, layers.examples, task="classification")
        assert found.labels is not None
        self.classes_ = np.array(found.classes)
        x = torch.stack([v.double() for v in layers.values], 1)
        self._shift, self._scale = x.mean(0), x.std((0, 2), correction=0)[:, None].clamp_min(1e-12)
        x = (x - self._shift) / self._scale
        mixture = torch.zeros(x.shape[1], dtype=x.dtype, requires_grad=True)
        w = torch.zeros(x.shape[2] + 1, len(found.classes), dtype=x.dtype, requires_grad=True)
        optimizer = torch.optim.LBFGS([mixture, w], max_iter=self.steps, line_search_fn="strong_wolfe")

        def closure() -> Tensor:
            optimizer.zero_grad()
            mixed = torch.einsum("nld,l->nd", x, mixture.softmax(0))
            loss = torch.nn.functional.cross_entropy(mixed @ w[:-1] + w[-1], found.labels)
            loss = loss + self.decay * w[:-1].square().sum()
            loss.backward()  # type: ignore[no-untyped-call]
            return loss

        optimizer.step(closure)  # type: ignore[arg-type]
        self._w, self.mixture_ = w.detach(), mixture.detach().softmax(0).numpy()
        return self

    def predict(self, embeddings: Any) -> np.ndarray:
        """Classes of new examples."""
        x = torch.stack([v.double() for v in as_layers(embeddings, least_examples=1).values], 1)
        mixed = torch.einsum("nld,l->nd", (x - self._shift) / self._scale, torch.tensor(self.mixture_))
        return np.asarray(self.classes_[(mixed @ self._w[:-1] + self._w[-1]).argmax(1).numpy()])


def _order(values: Sequence[float], k: int) -> list[int]:
    return [int(i) for i in np.argsort(np.asarray(values), kind="stable")[:k]]


def _check(n_layers: int, k: int) -> None:
    if not 1 <= k <= n_layers:
        raise ValueError(f"k={k} of {n_layers} layers; expected 1 to {n_layers}")
