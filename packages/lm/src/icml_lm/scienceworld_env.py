"""ScienceWorld: thirty tasks of an elementary-school science class, in a simulated house.

The simulator of R. Wang, P. Jansen, M.-A. Côté and P. Ammanabrolu, 2022, arXiv 2203.07540, is driven through
its own Python package. Each task has variations for training, development and test, and a gold path for each.
"""

from __future__ import annotations

from typing import Any

from icml_lm.java_env import NO_LIMIT, JavaEnv, require_java, steady_hashes
from icml_lm.text_env import Obs, Step, needs, unknown

FULL_SCORE = 100.0
TASK_PREFIX = "Task Description:"


class ScienceWorldEnv(JavaEnv):
    """One of the tasks; a seed counts through the variations of the split, and begins anew after the last.

    Args:
        task: its name, such as ``boil``, or its number, such as ``1-1``.
        simplifications: what is made easier, such as ``"easy"`` or ``"openDoors,teleportAction"``.

    Raises:
        UnknownNameError: for a task that there is not.
        NeedsError: where the package is not installed.
        MissingJava: where Java is not.
        ValueError: for simplifications that there are not.
    """

    def __init__(self, task: str, *, simplifications: str = "") -> None:
        package = needs("scienceworld", "scienceworld")
        constants = needs("scienceworld.constants", "scienceworld")
        task = constants.ID2TASK.get(task, task)
        if task not in constants.ID2TASK.values():
            raise unknown("task of scienceworld", task, constants.ID2TASK.values())
        require_java("scienceworld")
        with steady_hashes():
            super().__init__(package.ScienceWorldEnv("", envStepLimit=NO_LIMIT))
        self.name = f"scienceworld:{task}"
        self._task, self._simplifications = task, simplifications
        try:
            self._game.load(task, 0, simplifications)
        except ValueError as error:
            self.close()
            raise ValueError(f"{self.name} refuses simplifications={simplifications!r}: {error}") from error
        self._variations = {
            "train": self._game.get_variations_train(),
            "dev": self._game.get_variations_dev(),
            "test": self._game.get_variations_test(),
        }

    def begin(self, seed: int, split: str) -> Obs:
        """The first look around in the variation of this seed."""
        self.own()
        variations = self._variations[split]
        variation = variations[seed % len(variations)]
        self.seed_java(seed)
        self._game.load(self._task, variation, self._simplifications, generateGoldPath=True)
        text, infos = self._game.reset()
        self.follow(self._game.get_gold_action_sequence())
        return _observed(text, infos, False)

    def act(self, action: str) -> Step:
        """The simulator's answer; a full score is 1, and what cannot be put right any more is -1."""
        self.own()
        self.sent(action)
        text, reward, done, infos = self._game.step(action)
        score = infos["score"] / FULL_SCORE
        info = {"won": score >= 1, "score": score}
        return Step(_observed(text, infos, done), reward / FULL_SCORE, bool(done), info)


def _observed(text: str, infos: dict[str, Any], done: bool) -> Obs:
    task = infos["taskDesc"].removeprefix(TASK_PREFIX).strip()
    return Obs(text.strip(), () if done else tuple(sorted(infos["valid"])), task)


def scienceworld(variant: str, **options: Any) -> ScienceWorldEnv:
    """A task by name."""
    return ScienceWorldEnv(variant, **options)
