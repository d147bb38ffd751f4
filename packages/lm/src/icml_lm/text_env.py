"""Environments that are read and answered in words: one interface, and one string form of the name for all.

``make_env("hopworld")``, ``make_env("scienceworld:boil")``: the adapters import what they drive when they are
built, so that a program that uses none of them needs none of them.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, NamedTuple, Protocol, runtime_checkable

from icml_core.errors import NeedsError, UnknownNameError, UserError, install_command

SPLITS = ("train", "dev", "test")
ADAPTERS = {
    "alfgen": (
        "icml_lm.alfworld_env",
        "alfgen",
        "alfgen[:TASK], TASK one of pick, look, clean, heat, cool, two",
    ),
    "alfworld": ("icml_lm.alfworld_env", "alfworld", "alfworld:PATH, a folder of ALFWorld's games"),
    "babyai": ("icml_lm.babyai", "babyai", "babyai:LEVEL, such as babyai:GoToRedBall"),
    "hopworld": ("icml_lm.hopworld", "hopworld", "hopworld"),
    "scienceworld": ("icml_lm.scienceworld_env", "scienceworld", "scienceworld:TASK, such as boil"),
    "textworld": ("icml_lm.textworld_env", "textworld", "textworld:PATH, a game or a folder of games"),
    "textworld-express": (
        "icml_lm.textworld_express",
        "textworld_express",
        "textworld-express:GAME, such as cookingworld",
    ),
}


class MissingJava(NeedsError):
    """The environment runs in a Java machine, and there is none."""

    def __init__(self, wanted_by: str) -> None:
        super().__init__(
            f"Java, in which {wanted_by} runs",
            hint="install a runtime (apt install default-jre-headless, brew install openjdk, or conda "
            "install -c conda-forge openjdk) and put `java` on the PATH",
        )


class EnvDataMissing(UserError):
    """The files of an environment are not there; says what makes or replaces them."""

    def __init__(self, path: object, wanted: str, generator: str) -> None:
        self.path, self.generator = str(path), generator
        super().__init__(f"{self.path} holds no {wanted}; {generator}")


class NoAdmissibleActions(UserError):
    """An episode goes on, and the environment offers nothing to do."""


class EpisodeError(UserError):
    """A step outside an episode: before the first reset, after the end, or after ``close``."""


@dataclass(frozen=True)
class Obs:
    """What is seen.

    Attributes:
        text: the environment's words.
        admissible: the actions that it accepts now, sorted; empty only once the episode is over.
        task: what is to be done, the same throughout an episode.
    """

    text: str
    admissible: tuple[str, ...]
    task: str


class Step(NamedTuple):
    """The outcome of an action: ``obs, reward, done, info = env.step(action)``.

    ``reward`` is the change of the score; ``info["won"]`` says whether the task is fulfilled and
    ``info["score"]`` to which part: 1 is all of it, below 0 is a failure.
    """

    obs: Obs
    reward: float
    done: bool
    info: dict[str, Any]


@runtime_checkable
class TextEnv(Protocol):
    """What everything that plays needs; any class with these methods will do."""

    def reset(self, seed: int = 0, split: str = "train") -> Obs:
        """Begin an episode: the same seed and split give the same one."""
        ...

    def step(self, action: str) -> Step:
        """Do an action. One that is not admissible is sent to the environment as it is."""
        ...

    def expert(self) -> list[str] | None:
        """Actions that fulfil the task from the present state, or None where none are known."""
        ...

    def close(self) -> None:
        """Free what the environment holds; may be called twice."""
        ...


class CheckedEnv(ABC):
    """A :class:`TextEnv` that refuses misuse; an adapter says ``begin``, ``act``, and ``plan`` if it can."""

    name = "environment"
    _closed = False
    _playing = False

    def reset(self, seed: int = 0, split: str = "train") -> Obs:
        """Begin an episode.

        Raises:
            UnknownNameError: for a split that is none of train, dev and test.
            ValueError: for a seed that is no whole number from 0 on.
            EpisodeError: after ``close``.
            NoAdmissibleActions: where the first state offers no action.
        """
        if split not in SPLITS:
            raise unknown("split", split, SPLITS)
        if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
            raise ValueError(f"seed = {seed!r}; a whole number from 0 on is wanted")
        if self._closed:
            raise EpisodeError(f"{self.name} is closed; make a new one")
        self._playing = False
        obs = self.begin(seed, split)
        self._playing = True
        return self._offered(obs, False)

    def step(self, action: str) -> Step:
        """Do an action; one that is not admissible is sent to the environment as it is.

        Raises:
            EpisodeError: outside an episode.
            ValueError: for an action that is no text.
            NoAdmissibleActions: where the episode goes on and offers no action.
        """
        self._must_play()
        if not isinstance(action, str):
            raise ValueError(f"action = {action!r}; a text is wanted")
        step = self.act(action)
        self._playing = not step.done
        self._offered(step.obs, step.done)
        return step

    def expert(self) -> list[str] | None:
        """Actions that fulfil the task from the present state, or None where none are known.

        Raises:
            EpisodeError: outside an episode.
        """
        self._must_play()
        return self.plan()

    def close(self) -> None:
        """Free what the environment holds; may be called twice."""
        if not self._closed:
            self._closed, self._playing = True, False
            self.free()

    @abstractmethod
    def begin(self, seed: int, split: str) -> Obs:
        """The first observation of the episode of this seed and split."""

    @abstractmethod
    def act(self, action: str) -> Step:
        """The outcome of an action."""

    def plan(self) -> list[str] | None:
        """A winning plan from the present state; None where none is known."""
        return None

    def free(self) -> None:
        """Free processes and files."""
        return None

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _must_play(self) -> None:
        if not self._playing:
            raise EpisodeError(f"{self.name} has no episode in progress; call reset first")

    def _offered(self, obs: Obs, done: bool) -> Obs:
        if not done and not obs.admissible:
            self._playing = False
            raise NoAdmissibleActions(f"{self.name} offers no action after: {obs.text[-200:]!r}")
        return obs


def make_env(name: str, **options: Any) -> CheckedEnv:
    """The environment of a name, such as ``scienceworld:boil``; options are those of its adapter.

    Raises:
        UnknownNameError: for a name, or a variant, that there is not; with the list and the nearest.
        NeedsError: where what the adapter drives is not installed; with the command.
        MissingJava: where it needs Java and there is none.
        EnvDataMissing: where the game files are not there.

    Example:
        >>> with make_env("hopworld") as env:
        ...     len(env.reset(seed=0).admissible)
        6
    """
    family, _, variant = name.partition(":")
    if family not in ADAPTERS:
        forms = tuple(form for _, _, form in ADAPTERS.values())
        raise unknown("environment", family, ADAPTERS, shown=forms)
    module, maker, _ = ADAPTERS[family]
    return getattr(importlib.import_module(module), maker)(variant, **options)


def unknown(
    what: str, given: str, known: Iterable[str], *, shown: Sequence[str] | None = None
) -> UnknownNameError:
    """The error for a name that there is not, with the nearest and the list."""
    names = list(known)
    near = difflib.get_close_matches(given, names, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    return UnknownNameError(f"no {what} {given!r}; {hint}There are: {'; '.join(shown or names)}")


def needs(module: str, *requirements: str, why: str = "") -> Any:
    """The module, imported; or :class:`NeedsError` with the command that installs the requirements."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        wanted = " and ".join(re.split(r"[<>=!\[ ]", r)[0] for r in requirements)
        hint = install_command(*requirements) + (f" ({why})" if why else "")
        raise NeedsError(wanted, hint=hint) from error


def split_seed(seed: int, split: str) -> int:
    """A seed for a generator that knows no splits: those of different splits do not meet."""
    digest = hashlib.sha256(f"{split} {seed}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1
