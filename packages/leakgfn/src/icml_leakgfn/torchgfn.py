"""Environments of torchgfn as ours, and a trained network as theirs. torchgfn is imported on use alone."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from icml_core.errors import NeedsError
from jaxtyping import Bool, Float, Int
from numpy import ndarray
from torch import Tensor, nn

from icml_leakgfn.environments import CUT, INTERIOR, World

_SINK = -7  # a value that no state of ours holds
_DEEPEST = 10_000  # backward steps after which states are taken to turn in a circle


class TorchgfnWorld(World):
    """A ``DiscreteEnv`` of torchgfn, its states flattened to rows of integers.

    Args:
        env: the environment; every state is reached by as many actions, whichever way leads there.
        max_length: L_max, the longest trajectory without the exit.

    Raises:
        ValueError: ``max_length`` is missing and cannot be told from the environment.
    """

    def __init__(self, env: Any, *, max_length: int | None = None) -> None:
        if max_length is None:
            if not (hasattr(env, "ndim") and hasattr(env, "height")):
                raise ValueError(
                    f"give max_length: the longest trajectory of {type(env).__name__} is not known"
                )
            max_length = env.ndim * (env.height - 1)
        self._set_lengths(max_length, None, "leak")
        self.env = env
        self.n_actions = env.n_actions
        self.start = env.s0.detach().cpu().reshape(-1).numpy().astype(np.int64)
        self._values = self._alphabet()

    def _alphabet(self) -> int:
        height = getattr(self.env, "height", None)
        return int(height) if height is not None else 0

    def _states(self, rows: Int[ndarray, "n width"]) -> Any:
        tensor = torch.from_numpy(np.ascontiguousarray(rows)).reshape(len(rows), *self.env.state_shape)
        return self.env.states_from_tensor(tensor.to(self.env.s0.dtype).to(self.env.s0.device))

    def _rows(self, states: Any) -> Int[ndarray, "n width"]:
        return states.tensor.detach().cpu().reshape(states.tensor.shape[0], -1).numpy().astype(np.int64)

    def mask(self, states: Int[ndarray, "n width"]) -> Bool[ndarray, "n actions"]:
        """The environment's forward masks."""
        if len(states) == 0:
            return np.zeros((0, self.n_actions), dtype=bool)
        return self._states(states).forward_masks.cpu().numpy().copy()

    def apply(self, states: Int[ndarray, "n width"], actions: Int[ndarray, " n"]) -> Int[ndarray, "n width"]:
        """The environment's step."""
        if len(states) == 0:
            return states.copy()
        acts = self.env.actions_from_tensor(torch.from_numpy(np.asarray(actions, dtype=np.int64))[:, None])
        return self._rows(self.env.step(self._states(states), acts))

    def parents(
        self, states: Int[ndarray, "n width"]
    ) -> tuple[Int[ndarray, "edges width"], Int[ndarray, " edges"], Int[ndarray, " edges"]]:
        """The environment's backward steps."""
        if len(states) == 0:
            none = np.zeros(0, dtype=np.int64)
            return states.copy(), none, none
        index, action = np.nonzero(self._states(states).backward_masks.cpu().numpy())
        if len(index) == 0:
            return self.reset(0), action, index
        acts = self.env.actions_from_tensor(torch.from_numpy(action)[:, None])
        return self._rows(self.env.backward_step(self._states(states[index]), acts)), action, index

    def length(self, states: Int[ndarray, "n width"]) -> Int[ndarray, " n"]:
        """Backward steps to the first state.

        Raises:
            ValueError: the states turn in a circle.
        """
        if self._values:
            return states.sum(axis=1)
        rows, steps = states.copy(), np.zeros(len(states), dtype=np.int64)
        for _ in range(_DEEPEST):
            going = np.flatnonzero((rows != self.start).any(axis=1))
            if len(going) == 0:
                return steps
            parents, _, index = self.parents(rows[going])
            first = np.unique(index, return_index=True)[1]
            rows[going[index[first]]] = parents[first]
            steps[going] += 1
        raise ValueError(f"state graph has a cycle through {self.label(rows[going[:1]])[0]!r}")

    def features(self, states: Int[ndarray, "n width"]) -> dict[str, Tensor]:
        """One-hot entries where their range is known, else the entries themselves."""
        rows = torch.from_numpy(np.ascontiguousarray(states, dtype=np.int64))
        if self._values:
            return {"vector": nn.functional.one_hot(rows, self._values).flatten(1).float()}
        return {"vector": rows.float()}

    @property
    def width(self) -> int:
        """Length of the vector of features."""
        return len(self.start) * (self._values or 1)

    def decode(self, states: Int[ndarray, "n width"]) -> list[tuple[int, ...]]:
        """The entries of each state."""
        return [tuple(row) for row in states.tolist()]

    def reward(self) -> Callable[[list[tuple[int, ...]]], Float[Tensor, " n"]]:
        """The environment's own reward, as a function of a list of states."""

        def of(items: list[tuple[int, ...]]) -> Float[Tensor, " n"]:
            return self.env.reward(self._states(np.array(items, dtype=np.int64))).double()

        of.vectorised = True  # type: ignore[attr-defined]
        return of

    def signature(self) -> dict[str, Any]:
        """With the environment's class."""
        return super().signature() | {"torchgfn": type(self.env).__name__}


def from_torchgfn(env: Any, *, max_length: int | None = None) -> TorchgfnWorld:
    """A torchgfn environment as ours; its reward is ``.reward()``.

    Raises:
        TypeError: no ``DiscreteEnv``.
        ValueError: ``max_length`` is missing and cannot be told from the environment.
    """
    if not all(hasattr(env, name) for name in ("n_actions", "s0", "states_from_tensor", "backward_step")):
        raise TypeError(f"{type(env).__name__} is no DiscreteEnv of torchgfn")
    return TorchgfnWorld(env, max_length=max_length)


class PolicyModule(nn.Module):
    """The valid policy of a trained network, as logits of torchgfn's states.

    Args:
        gfn: a :class:`LeakGFN`.
        max_length: L_max.
    """

    def __init__(self, gfn: Any, max_length: int | None = None) -> None:
        super().__init__()
        self.gfn, self.max_length = gfn, max_length
        self.input_dim = len(gfn.env.start)
        self.output_dim = gfn.env.n_actions
        self.net = gfn.net

    def forward(self, states: Int[Tensor, "n width"]) -> Float[Tensor, "n actions"]:
        """log P_F; a large negative number where an action is not legal."""
        rows = states.reshape(-1, self.input_dim).cpu().numpy()
        found = self.gfn.log_policy(rows.astype(self.gfn.env.start.dtype), self.max_length)
        return (
            torch.from_numpy(np.nan_to_num(found, nan=0.0, neginf=-1e9))
            .float()
            .reshape(*states.shape[:-1], -1)
        )


def to_torchgfn(gfn: Any, *, max_length: int | None = None, cut_reward: float = 1e-6) -> tuple[Any, Any]:
    """A trained network as torchgfn's environment and forward policy estimator.

    torchgfn knows no unfinished ends, so that a state that is cut off may exit there, with ``cut_reward``.

    Args:
        gfn: a :class:`LeakGFN`.
        max_length: L_max; by default the environment's.
        cut_reward: R of what is cut off.

    Raises:
        NeedsError: torchgfn is not installed.
    """
    try:
        base, states_module = import_module("gfn.env"), import_module("gfn.states")
        estimators = import_module("gfn.estimators")
    except ImportError as error:
        raise NeedsError("torchgfn", hint="pip install torchgfn") from error
    own = gfn.env
    budget = own.max_length if max_length is None else max_length

    def rows_of(tensor: Tensor) -> ndarray:
        rows = tensor.cpu().numpy().reshape(-1, len(own.start)).astype(own.start.dtype)
        sink = (rows == _SINK).all(axis=1)
        rows[sink] = own.start
        return rows

    class Wrapped(base.DiscreteEnv):  # type: ignore[name-defined]
        """Our environment with torchgfn's methods."""

        def __init__(self) -> None:
            start = torch.from_numpy(own.start.astype(np.int64))
            super().__init__(own.n_actions, start, tuple(start.shape), sf=torch.full_like(start, _SINK))

        def make_states_class(self) -> Any:
            outer = self

            class States(states_module.DiscreteStates):  # type: ignore[name-defined]
                state_shape, s0, sf, n_actions = outer.state_shape, outer.s0, outer.sf, outer.n_actions

                def _compute_forward_masks(self) -> Tensor:
                    rows = rows_of(self.tensor)
                    legal = own.mask(rows)
                    status = own.status(rows, budget, legal)
                    legal[status != INTERIOR, :-1] = False
                    legal[status == CUT, -1] = True
                    return torch.from_numpy(legal).reshape(*self.batch_shape, outer.n_actions)

                def _compute_backward_masks(self) -> Tensor:
                    rows = rows_of(self.tensor)
                    _, action, index = own.parents(rows)
                    legal = np.zeros((len(rows), outer.n_actions - 1), dtype=bool)
                    legal[index, action] = True
                    return torch.from_numpy(legal).reshape(*self.batch_shape, -1)

            return States

        def step(self, states: Any, actions: Any) -> Any:
            after = own.apply(rows_of(states.tensor), actions.tensor.reshape(-1).numpy())
            return self.states_from_tensor(torch.from_numpy(after.astype(np.int64)))

        def backward_step(self, states: Any, actions: Any) -> Any:
            rows, wanted = rows_of(states.tensor), actions.tensor.reshape(-1).numpy()
            parents, action, index = own.parents(rows)
            hit = action == wanted[index]
            if not np.array_equal(index[hit], np.arange(len(rows))):
                raise ValueError(
                    "an action leads into a state from several parents, which torchgfn cannot say"
                )
            return self.states_from_tensor(torch.from_numpy(parents[hit].astype(np.int64)))

        def reward(self, states: Any) -> Tensor:
            rows = rows_of(states.tensor)
            worth = own.status(rows, budget) != CUT
            out = np.full(len(rows), cut_reward)
            out[worth] = np.exp(gfn.reward.evaluate(own, rows[worth]).log_reward)
            return torch.from_numpy(out).float()

    env = Wrapped()
    return env, estimators.DiscretePolicyEstimator(PolicyModule(gfn, max_length), own.n_actions)
