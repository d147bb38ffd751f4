"""One network for many targets: preferences between several scores, and pockets that a vector describes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from numpy import ndarray
from torch import Tensor

from icml_leakgfn.rewards import OnError, Reward, Shaping


class PreferenceReward(Reward):
    """Several scores and a preference w on the simplex: R = sum_k w_k s_k, or prod_k s_k^{w_k}, shaped.

    Args:
        functions: one for each score, each as :class:`Reward` takes it.
        combine: "sum" or "product".
        concentration: of the Dirichlet distribution from which preferences are drawn in training; 1 is
            uniform.
        options: of :class:`Reward`.

    Raises:
        ValueError: fewer than two functions, another way to combine, a concentration that is not positive, or
            what :class:`Reward` refuses.
    """

    def __init__(
        self,
        functions: Sequence[Callable[[Any], Any]],
        *,
        combine: Literal["sum", "product"] = "sum",
        concentration: float = 1.0,
        vectorised: bool | None = None,
        takes: Literal["object", "smiles"] = "object",
        shaping: Shaping | None = None,
        on_error: OnError = "raise",
    ) -> None:
        if len(functions) < 2:
            raise ValueError(f"{len(functions)} score(s); a preference is between at least two")
        if combine not in ("sum", "product"):
            raise ValueError(f"combine={combine!r} is neither 'sum' nor 'product'")
        if not concentration > 0:
            raise ValueError(f"concentration={concentration} must be positive")
        self.functions = tuple(functions)
        batched = [getattr(f, "vectorised", False) if vectorised is None else vectorised for f in functions]

        def everything(items: list[Any]) -> ndarray:
            columns = [
                np.asarray(f(items) if many else [f(item) for item in items], dtype=np.float64)
                for f, many in zip(self.functions, batched, strict=True)
            ]
            for column in columns:
                if len(column) != len(items):
                    raise ValueError(f"a score gave {len(column)} numbers for {len(items)} objects")
            return np.stack(columns, axis=1)

        super().__init__(everything, vectorised=True, takes=takes, shaping=shaping, on_error=on_error)
        self.way, self.concentration = combine, concentration
        self.dim = len(self.functions)

    @property
    def columns(self) -> int:
        """One for each score."""
        return len(self.functions)

    def combine(self, raw: ndarray, condition: Float[Tensor, "n dim"] | None) -> Float[ndarray, " n"]:
        """The scores joined under each object's preference.

        Raises:
            ValueError: no preferences, of a wrong shape, negative, or not summing to 1.
        """
        if condition is None:
            raise ValueError(f"preferences are missing: give condition [n, {self.dim}], rows that sum to 1")
        weights = condition.detach().cpu().double().numpy()
        if weights.shape != raw.shape:
            raise ValueError(f"condition has shape {list(weights.shape)}; expected {list(raw.shape)}")
        if (weights < 0).any() or np.abs(weights.sum(axis=1) - 1).max(initial=0) > 1e-4:
            raise ValueError("preferences must not be negative, and each row must sum to 1")
        if self.way == "sum":
            return (weights * raw).sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            powers = np.where(weights > 0, weights * np.log(np.maximum(raw, 0)), 0.0)
        return np.exp(powers.sum(axis=1))

    def sample_conditions(self, n: int, generator: torch.Generator) -> Float[Tensor, "n dim"]:
        """Preferences from a Dirichlet distribution."""
        alpha = torch.full((n, self.dim), float(self.concentration), dtype=torch.float64)
        draws = torch._standard_gamma(alpha, generator=generator).clamp_min(1e-12)
        return (draws / draws.sum(dim=1, keepdim=True)).float()


class ConditionedReward(Reward):
    """A score that depends on a vector, such as the embedding of a protein's pocket (as in TacoGFN).

    Args:
        function: takes a list of objects and their vectors [n, dim], gives as many scores; it is not cached,
            since a score belongs to an object and a vector.
        vectors: the conditions to train under, one a row; drawn uniformly.
        options: of :class:`Reward`.

    Raises:
        ValueError: vectors that are no matrix, or not finite.
    """

    def __init__(
        self,
        function: Callable[[list[Any], Tensor], Any],
        vectors: Float[Tensor, "pockets dim"],
        *,
        shaping: Shaping | None = None,
        log: bool = False,
        takes: Literal["object", "smiles"] = "object",
    ) -> None:
        vectors = torch.as_tensor(vectors)
        if vectors.dim() != 2 or 0 in vectors.shape or not bool(torch.isfinite(vectors).all()):
            raise ValueError(
                f"vectors has shape {list(vectors.shape)}; expected finite numbers, [pockets, dim], "
                "one row at least"
            )
        super().__init__(
            lambda items: [0.0] * len(items), vectorised=True, takes=takes, shaping=shaping, log=log
        )
        self.of_pair, self.vectors = function, vectors.detach().cpu().float()
        self.dim = vectors.shape[1]

    def evaluate(self, env: Any, states: ndarray, condition: Float[Tensor, "n dim"] | None = None) -> Any:
        """Scores and log R under each object's vector.

        Raises:
            ValueError: no vectors, of a wrong shape, or what :class:`Reward` refuses.
        """
        if condition is None or tuple(condition.shape) != (len(states), self.dim):
            shape = None if condition is None else list(condition.shape)
            raise ValueError(f"condition has shape {shape}; expected {[len(states), self.dim]}")
        self._items = env.label(states) if self.takes == "smiles" else env.decode(states)
        found = super().evaluate(env, states, condition)
        return replace(found, raw=self._values) if len(states) else found

    def combine(self, raw: ndarray, condition: Float[Tensor, "n dim"] | None) -> Float[ndarray, " n"]:
        """The score of each pair.

        Raises:
            ValueError: a wrong number of scores.
        """
        values = np.asarray(self.of_pair(self._items, condition), dtype=np.float64)
        if values.shape != raw.shape:
            raise ValueError(f"the reward gave {values.shape} scores for {len(raw)} objects")
        self._values = values
        return values

    def sample_conditions(self, n: int, generator: torch.Generator) -> Float[Tensor, "n dim"]:
        """Rows of ``vectors``."""
        return self.vectors[torch.randint(len(self.vectors), (n,), generator=generator)]


def hypervolume(points: Float[ndarray, "n 2"], reference: tuple[float, float] = (0.0, 0.0)) -> float:
    """The area that points dominate above a reference point, both scores being better where larger.

    Raises:
        ValueError: points that are no pairs.
    """
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(f"points has shape {list(points.shape)}; expected [n, 2]")
    area, reached = 0.0, reference[1]
    for x, y in sorted(points.tolist(), key=lambda p: (-p[0], -p[1])):
        if x > reference[0] and y > reached:
            area += (x - reference[0]) * (y - reached)
            reached = y
    return area
