"""Any Gymnasium environment with a finite set of actions, played in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from icml_lm.text_env import CheckedEnv, Obs, Step, split_seed

if TYPE_CHECKING:
    import gymnasium

REFUSED = "Nothing happens: there is no such action."


class GymTextEnv(CheckedEnv):
    """A Gymnasium environment whose observations a function puts into words.

    An action that has no name changes nothing and is answered so, since a ``Discrete`` space has no place for
    it; where the space is ``Text`` it is passed on as it is.

    Args:
        env: the environment; closed with this one.
        renderer: words of an observation, ``renderer(observation, env)``.
        actions: names of the actions 0, 1, ... of a ``Discrete`` space; for a ``Text`` space the actions that
            are offered.
        task: what is to be done, or a function of the environment after its reset.
        won: whether the task is fulfilled, from the reward and ``terminated``; by default a positive reward
            at the end.
        expert: a plan from the environment's present state.
        name: for messages.

    Raises:
        ValueError: where the space of actions is neither, or has another number of actions than there are
            names.

    Example:
        >>> import gymnasium  # doctest: +SKIP
        >>> lake = gymnasium.make("FrozenLake-v1", is_slippery=False)  # doctest: +SKIP
        >>> GymTextEnv(lake, lambda o, _: f"tile {o}", ["left", "down", "right", "up"])  # doctest: +SKIP
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        renderer: Callable[[Any, Any], str],
        actions: Sequence[str],
        *,
        task: str | Callable[[Any], str] = "Reach the goal.",
        won: Callable[[float, bool], bool] = lambda reward, terminated: terminated and reward > 0,
        expert: Callable[[Any], list[str] | None] | None = None,
        name: str = "gymnasium environment",
    ) -> None:
        kind = type(env.action_space).__name__
        if kind not in ("Discrete", "Text"):
            raise ValueError(f"{name} has actions in a space {kind}; Discrete or Text is wanted")
        self._first = int(getattr(env.action_space, "start", 0))
        self._named = kind == "Discrete"
        if self._named and len(actions) != env.action_space.n:
            raise ValueError(f"{name} has {env.action_space.n} actions; {len(actions)} names were given")
        if len(set(actions)) != len(actions):
            raise ValueError(f"the names of the actions are not all different: {list(actions)}")
        self.env, self.name = env, name
        self._renderer, self._task, self._won, self._expert = renderer, task, won, expert
        self._numbers = {action: self._first + i for i, action in enumerate(actions)}
        self._offered_actions = tuple(sorted(actions))

    def begin(self, seed: int, split: str) -> Obs:
        """Gymnasium's reset, with a seed of this split."""
        observation, _ = self.env.reset(seed=split_seed(seed, split))
        self._said = self._task if isinstance(self._task, str) else self._task(self.env)
        self._score = 0.0
        self._text = self._renderer(observation, self.env)
        return Obs(self._text, self._offered_actions, self._said)

    def act(self, action: str) -> Step:
        """Gymnasium's step; the score is the sum of the rewards."""
        if self._named and action not in self._numbers:
            obs = Obs(f"{REFUSED} {self._text}", self._offered_actions, self._said)
            return Step(obs, 0.0, False, {"won": False, "score": self._score})
        sent = self._numbers[action] if self._named else action
        observation, reward, terminated, truncated, _ = self.env.step(sent)
        done = bool(terminated or truncated)
        self._score += float(reward)
        self._text = self._renderer(observation, self.env)
        obs = Obs(self._text, () if done else self._offered_actions, self._said)
        won = bool(self._won(float(reward), bool(terminated)))
        info = {"won": won, "score": self._score, "truncated": bool(truncated)}
        return Step(obs, float(reward), done, info)

    def plan(self) -> list[str] | None:
        """The plan of the function that was given, if one was."""
        return self._expert(self.env) if self._expert else None

    def free(self) -> None:
        """Close the environment."""
        self.env.close()
