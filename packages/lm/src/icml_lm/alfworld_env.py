"""ALFWorld's household tasks in TextWorld: generated games, and the real ones where they are on disk.

Commands and replies are those of ALFWorld since the end of 2024 ("move X to Y"); only one object can be held.
"""

from __future__ import annotations

import functools
import json
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icml_lm.alfgen import INSTALL, TASKS, WHY, alfred_package, new_game
from icml_lm.alfworld_expert import Goal, House, shortest_plan
from icml_lm.text_env import CheckedEnv, EnvDataMissing, Obs, Step, needs, split_seed, unknown

FOLDERS = {"train": "train", "dev": "valid_seen", "test": "valid_unseen"}
"""The splits' folders in ALFWorld's data."""
GAME_FILE = "game.tw-pddl"
TASK_MARK = "Your task is to:"
GENERATOR = 'make_env("alfgen:heat") plays generated games with the same rules and words'


class AlfworldEnv(CheckedEnv):
    """Games of ALFWorld; the score is 1 once the task is fulfilled.

    Args:
        game_of: the game of a seed and a split, as ALFWorld's files have it.
        name: for messages.

    Raises:
        NeedsError: where ALFWorld or TextWorld's planner are not installed.
    """

    def __init__(self, game_of: Callable[[int, str], dict[str, Any]], *, name: str = "alfworld") -> None:
        needs("fast_downward", *INSTALL, why=WHY)
        textworld = needs("textworld", *INSTALL, why=WHY)
        pddl = needs("textworld.envs.pddl.pddl", *INSTALL, why=WHY)
        demangler = alfred_package("agents.environment.alfred_tw_env").AlfredDemangler
        self.name = name
        self._game_of = game_of
        self._pddl = pddl.PddlEnv(textworld.EnvInfos(admissible_commands=True, won=True))
        self._play = demangler(self._pddl)

    def begin(self, seed: int, split: str) -> Obs:
        """The room, and the task."""
        game = self._game_of(seed, split)
        self._goal = Goal.of(game["pddl_problem"])
        with untouched_arguments():
            self._play.load(game)
            self._state = self._play.reset()
        text = self._state.feedback.strip()
        self._names = {key: info.name.strip() for key, info in self._pddl._entity_infos.items()}
        self._task = text.rpartition(TASK_MARK)[2].strip()
        self._won = False
        return Obs(text, self._commands(), self._task)

    def act(self, action: str) -> Step:
        """TextWorld's answer; what it does not take has the answer "Nothing happens."."""
        self._state, _, done = self._play.step(action)
        self._won = bool(self._state["won"])
        score = float(self._won)
        obs = Obs(self._state.feedback.strip(), () if done else self._commands(), self._task)
        return Step(obs, score, bool(done), {"won": self._won, "score": score})

    def plan(self) -> list[str] | None:
        """The fewest commands from here, by an expert that knows the whole state."""
        return shortest_plan(House.of(self._state["_facts"], self._names), self._goal)

    def planner_commands(self) -> list[str]:
        """The plan of Fast Downward from here: any plan, at a cost that explodes with the size of the room.

        Eight receptacles and seven objects take less than a second, 28 and 27 took more than two minutes.
        """
        self._must_play()
        with untouched_arguments():
            return [command.strip() for command in self._pddl._pddl_state.replan(self._pddl._entity_infos)]

    def free(self) -> None:
        """Free the planner's state; to unload its library as well would end the interpreter at its exit."""
        self._pddl.downward_lib.cleanup()

    def _commands(self) -> tuple[str, ...]:
        return tuple(self._state["admissible_commands"])


@contextmanager
def untouched_arguments() -> Iterator[None]:
    """Put ``sys.argv`` back, which Fast Downward's translator overwrites."""
    before = sys.argv
    try:
        yield
    finally:
        sys.argv = before


def alfgen(variant: str = "", *, receptacles: int = 8, objects: int = 7) -> AlfworldEnv:
    """Generated games of one task, or of all six in turn by chance.

    Raises:
        UnknownNameError: for another task.
        ValueError: for too few receptacles or objects.
    """
    if variant and variant not in TASKS:
        raise unknown("task of alfgen", variant, TASKS)

    def game_of(seed: int, split: str) -> dict[str, Any]:
        task = variant or random.Random(split_seed(seed, f"alfgen {split}")).choice(list(TASKS))
        return new_game(task, seed, split, receptacles=receptacles, objects=objects)

    return AlfworldEnv(game_of, name=f"alfgen:{variant}" if variant else "alfgen")


def alfworld(variant: str = "", *, tasks: tuple[str, ...] = tuple(TASKS)) -> AlfworldEnv:
    """ALFWorld's own games in a folder; a seed counts through those of the split, ordered by their paths.

    Args:
        variant: the folder, which has ``train``, ``valid_seen`` and ``valid_unseen``; by default
            ``$ALFWORLD_DATA/json_2.1.1``.
        tasks: which of pick, look, clean, heat, cool and two are wanted.

    Raises:
        UnknownNameError: for another task.
        EnvDataMissing: where the folder has no games; at a reset, where the split has none of these tasks.
    """
    for task in tasks:
        if task not in TASKS:
            raise unknown("task of alfworld", task, TASKS)
    data = os.environ.get("ALFWORLD_DATA", "~/.cache/alfworld")
    home = Path(variant).expanduser() if variant else Path(data).expanduser() / "json_2.1.1"
    if not any((home / folder).is_dir() for folder in FOLDERS.values()):
        raise EnvDataMissing(home, "games of ALFWorld (train, valid_seen, valid_unseen)", GENERATOR)
    wanted = {TASKS[task] for task in tasks}

    @functools.cache
    def files(split: str) -> tuple[Path, ...]:
        found = sorted((home / FOLDERS[split]).rglob(GAME_FILE))
        return tuple(file for file in found if _is_playable(file, wanted))

    def game_of(seed: int, split: str) -> dict[str, Any]:
        if not files(split):
            missing = f"solvable games of {', '.join(tasks)}"
            raise EnvDataMissing(home / FOLDERS[split], missing, GENERATOR)
        file = files(split)[seed % len(files(split))]
        game: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        return game

    return AlfworldEnv(game_of, name=f"alfworld:{home}")


def _is_playable(file: Path, wanted: set[str]) -> bool:
    """Whether a game is solvable and of a wanted task, which its folder's name begins with."""
    folders = [part for part in file.parts if part.split("-")[0] in wanted]
    sliced = any("Sliced" in part for part in file.parts)
    return bool(folders) and not sliced and bool(json.loads(file.read_text(encoding="utf-8")).get("solvable"))
