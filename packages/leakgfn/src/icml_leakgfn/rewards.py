"""A user's score as a reward: shaped, cached, checked, and its failures told with the object that caused
them.

R = (max(score, minimum) / norm)^exponent, everything in logarithms, so that no power overflows.
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor

OnError: TypeAlias = Literal["raise", "floor"]
_SCORES_KEPT = 1_000_000


@dataclass(frozen=True)
class Shaping:
    """R = (max(score, minimum) / norm)^exponent.

    The official settings: QED and SA norm 0.8 and exponent 6, GSK3B 0.1, 0.5 and 8, JNK3 0.2 and 12, DRD2 0.1
    and 5, the minimum 0.01 elsewhere.

    Raises:
        ValueError: a number that is not positive.
    """

    minimum: float = 0.01
    norm: float = 0.8
    exponent: float = 6.0

    def __post_init__(self) -> None:
        for name in ("minimum", "norm", "exponent"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} must be positive and finite")

    @property
    def log_floor(self) -> float:
        """log R of the least score."""
        return self.exponent * math.log(self.minimum / self.norm)

    def log_reward(self, score: Float[ndarray, " n"]) -> Float[ndarray, " n"]:
        """log R of scores."""
        return self.exponent * np.log(np.maximum(score, self.minimum) / self.norm)


PRESETS: dict[str, Shaping] = {
    "qed": Shaping(0.01, 0.8, 6.0),
    "sa": Shaping(0.01, 0.8, 6.0),
    "gsk3b": Shaping(0.1, 0.5, 8.0),
    "jnk3": Shaping(0.01, 0.2, 12.0),
    "drd2": Shaping(0.01, 0.1, 5.0),
}


@dataclass(frozen=True)
class Scores:
    """What objects are worth.

    Attributes:
        raw: the scores as the user's function gave them; NaN where it failed. A column for each of several.
        log_reward: log R; -inf where the object is worth nothing.
        failed: where the function failed.
    """

    raw: Float[ndarray, " n *scores"]
    log_reward: Float[ndarray, " n"]
    failed: Bool[ndarray, " n"]

    def __len__(self) -> int:
        return len(self.log_reward)


class Reward:
    """What a flow network is to sample in proportion to.

    Args:
        function: takes an object (an RDKit molecule, a word) and gives a number; or a list of them and gives
            as many numbers where ``vectorised``.
        vectorised: whether it takes a list; by default what its attribute ``vectorised`` says, else False.
        takes: "object", or "smiles": the function takes SMILES instead of molecules.
        log: the function gives log R, of any size.
        shaping: how a score becomes a reward; by default R is the score.
        on_error: what to do where the function raises or gives NaN: "raise", naming the object, or "floor":
            the least reward, which the shaping says, counted in ``failures``.
        constraint: takes an object and says whether it counts; where not, its reward is 0.

    Raises:
        TypeError: the function cannot be called.
        ValueError: another choice than those named, both log and shaping, or "floor" without a shaping.
    """

    dim = 0

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        vectorised: bool | None = None,
        takes: Literal["object", "smiles"] = "object",
        log: bool = False,
        shaping: Shaping | None = None,
        on_error: OnError = "raise",
        constraint: Callable[[Any], bool] | None = None,
    ) -> None:
        if not callable(function):
            raise TypeError(f"the reward is {function!r}, which cannot be called")
        if takes not in ("object", "smiles"):
            raise ValueError(f"takes={takes!r} is neither 'object' nor 'smiles'")
        if on_error not in ("raise", "floor"):
            raise ValueError(f"on_error={on_error!r} is neither 'raise' nor 'floor'")
        if log and shaping is not None:
            raise ValueError("log=True takes the function's value as log R; it cannot be shaped again")
        if on_error == "floor" and shaping is None:
            raise ValueError(
                "on_error='floor' counts a failure as the least reward, which a shaping says: give "
                "shaping=Shaping(minimum, norm, exponent)"
            )
        self.function, self.takes, self.log = function, takes, log
        self.vectorised = getattr(function, "vectorised", False) if vectorised is None else vectorised
        self.shaping, self.on_error, self.constraint = shaping, on_error, constraint
        self.failures: dict[str, str] = {}
        self.calls = 0
        self._by_label: dict[str, tuple[Any, bool]] = {}
        self._seen_positive = False

    @property
    def columns(self) -> int:
        """Scores of one object."""
        return 1

    @property
    def log_floor(self) -> float | None:
        """log R of the least reward, where the shaping says it."""
        return None if self.shaping is None else self.shaping.log_floor

    def scores(self, env: Any, states: Int[ndarray, "n width"]) -> tuple[ndarray, Bool[ndarray, " n"]]:
        """Raw scores [n] or [n, columns], cached by label, and where the function failed.

        Raises:
            ValueError: the function failed or gave NaN, and ``on_error`` is "raise"; a wrong number of
                scores.
        """
        labels = env.label(states)
        missing = {label: k for k, label in enumerate(labels) if label not in self._by_label}
        if missing:
            if len(self._by_label) + len(missing) > _SCORES_KEPT:
                self._by_label.clear()
                missing = {label: k for k, label in enumerate(labels)}
            names, rows = list(missing), np.fromiter(missing.values(), dtype=np.int64)
            objects = env.decode(states[rows])
            values = self._call(objects, names)
            for name, value in zip(names, values, strict=True):
                failed = value is None
                self._by_label[name] = (np.full(self.columns, np.nan) if failed else value, failed)
        found = [self._by_label[label] for label in labels]
        raw = np.array([value for value, _ in found], dtype=np.float64).reshape(len(labels), self.columns)
        return (raw[:, 0] if self.columns == 1 else raw), np.array([bad for _, bad in found], dtype=bool)

    def _call(self, objects: Sequence[Any], names: Sequence[str]) -> list[Any]:
        """The scores of objects, None where the function failed."""
        given = list(names) if self.takes == "smiles" else list(objects)
        self.calls += len(given)
        broken = [k for k, item in enumerate(objects) if item is None]
        out: list[Any] = [None] * len(given)
        for k in broken:
            self._fail(names[k], "RDKit refuses the molecule", None)
        whole = [k for k in range(len(given)) if k not in set(broken)]
        if self.vectorised and whole:
            try:
                values = self.function([given[k] for k in whole])
            except Exception as error:
                if self.on_error == "raise":
                    raise ValueError(
                        f"the reward raised {type(error).__name__}: {error} for a batch of "
                        f"{len(whole)}, the first "
                        f"SMILES {names[whole[0]]}"
                    ) from error
                for k in whole:  # one of them is the culprit, the others are to be scored
                    out[k] = self._one(lambda item: self.function([item])[0], given[k], names[k])
                return out
            values = np.asarray(values.detach().cpu() if isinstance(values, Tensor) else values)
            if values.ndim == 0 or len(values) != len(whole):
                size = "one number" if values.ndim == 0 else f"{len(values)} scores"
                raise ValueError(
                    f"the reward gave {size} for {len(whole)} objects; it must give one for each"
                )
            for k, value in zip(whole, values, strict=True):
                out[k] = self._number(value, names[k])
            return out
        for k in whole:
            out[k] = self._one(self.function, given[k], names[k])
        return out

    def _one(self, function: Callable[[Any], Any], item: Any, name: str) -> Any:
        try:
            value = function(item)
        except Exception as error:
            return self._fail(name, f"{type(error).__name__}: {error}", error)
        return self._number(value, name)

    def _number(self, value: Any, name: str) -> Any:
        numbers = np.atleast_1d(np.asarray(value, dtype=np.float64)).ravel()
        if len(numbers) != self.columns:
            raise ValueError(
                f"the reward gave {len(numbers)} numbers for SMILES {name}; expected {self.columns}"
            )
        if np.isnan(numbers).any():
            return self._fail(name, "NaN", None)
        return numbers

    def _fail(self, name: str, why: str, error: Exception | None) -> None:
        if self.on_error == "raise":
            if error is None:
                raise ValueError(
                    f"reward must be finite and > 0 on finished objects; got {why} for SMILES {name}; "
                    "on_error='floor' counts such as the least reward"
                )
            raise ValueError(f"the reward raised {why} for SMILES {name}") from error
        text = "" if error is None else "".join(traceback.format_exception(error)[-3:])
        self.failures[name] = f"{why}\n{text}".strip()

    def evaluate(
        self, env: Any, states: Int[ndarray, "n width"], condition: Float[Tensor, "n dim"] | None = None
    ) -> Scores:
        """Scores and log R of finished objects.

        Raises:
            ValueError: the function failed; a score is not finite, or negative without shaping; or everything
                seen so far is worth nothing.
        """
        if len(states) == 0:
            none = np.zeros(0)
            return Scores(
                none.reshape(0, self.columns) if self.columns > 1 else none, none, none.astype(bool)
            )
        raw, failed = self.scores(env, states)
        value = np.where(failed, np.nan, self.combine(raw, condition))
        log_reward = np.full(len(states), -math.inf)
        good = ~failed
        self._check(env, states, value, good)
        with np.errstate(divide="ignore"):
            if self.log:
                log_reward[good] = value[good]
            elif self.shaping is not None:
                log_reward[good] = self.shaping.log_reward(value[good])
            else:
                log_reward[good] = np.log(value[good])
        if self.log_floor is not None:
            log_reward[failed] = self.log_floor
        if self.constraint is not None:
            kept = np.array([item is not None and bool(self.constraint(item)) for item in env.decode(states)])
            log_reward[~kept] = -math.inf
        return Scores(raw, log_reward, failed)

    def combine(self, raw: ndarray, condition: Float[Tensor, "n dim"] | None) -> Float[ndarray, " n"]:
        """The score of each object under its condition; here the score itself."""
        return raw

    def sample_conditions(self, n: int, generator: torch.Generator) -> Float[Tensor, "n dim"] | None:
        """Conditions to train under; none here."""
        return None

    def _check(self, env: Any, states: ndarray, value: ndarray, good: ndarray) -> None:
        limit = -math.inf if self.log or self.shaping is not None else 0.0
        bad = good & (~np.isfinite(value) | (value < limit))
        if bad.any():
            at = int(np.flatnonzero(bad)[0])
            raise ValueError(
                f"reward must be finite and > 0 on finished objects; got {value[at]} for SMILES "
                f"{env.label(states[at : at + 1])[0]}"
            )
        if self.log or self.shaping is not None or self._seen_positive or not good.any():
            return
        if not (value[good] > 0).any():
            at = int(np.flatnonzero(good)[0])
            raise ValueError(
                f"reward must be finite and > 0 on finished objects; got {value[at]} for SMILES "
                f"{env.label(states[at : at + 1])[0]}, and nothing above 0 for any of "
                f"{int(good.sum())} objects"
            )
        self._seen_positive = True


def as_reward(reward: Any, *, log: bool = False) -> Reward:
    """A :class:`Reward` from one, or from a function.

    Raises:
        TypeError: neither.
        ValueError: ``log`` beside a reward that has its own.
    """
    if isinstance(reward, Reward):
        if log and not reward.log:
            raise ValueError("log=True belongs to a function; this Reward says itself how it counts")
        return reward
    vectorised = getattr(reward, "vectorised", None)
    return Reward(reward, vectorised=vectorised, log=log)
