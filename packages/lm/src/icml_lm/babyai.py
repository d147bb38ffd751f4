"""BabyAI's levels in words: what is seen from where the agent stands, and seven commands.

The levels are those of M. Chevalier-Boisvert et al., 2019, arXiv 1810.08272, as Minigrid has them; the plan
is that of the bot which comes with them.
"""

from __future__ import annotations

import copy
import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from typing import Any

import numpy as np

from icml_lm.gym_text import GymTextEnv
from icml_lm.text_env import Obs, Step, needs, unknown

ACTIONS = ("turn left", "turn right", "go forward", "pick up", "drop", "toggle", "done")
DIRECTIONS = ("east", "south", "west", "north")
UNSEEN, EMPTY, WALL, FLOOR, DOOR = 0, 1, 2, 3, 4
OPEN = 0


class BabyAIEnv(GymTextEnv):
    """A level of BabyAI; ``toggle`` opens doors and boxes, and the score is 1 at success, however late.

    Args:
        level: its name, such as ``GoToRedBall`` or ``BabyAI-GoToRedBall-v0``.

    Raises:
        NeedsError: where Minigrid is not installed.
        UnknownNameError: for a level that there is not.
    """

    def __init__(self, level: str) -> None:
        needs("minigrid", "minigrid")
        import gymnasium

        found = (re.fullmatch(r"BabyAI-(.+)-v\d+", name) for name in gymnasium.registry)
        levels = {match[1]: match[0] for match in found if match}
        short = level.removeprefix("BabyAI-").removesuffix("-v0")
        if short not in levels:
            raise unknown("level of babyai", level, sorted(levels))
        super().__init__(
            gymnasium.make(levels[short]).unwrapped,
            lambda observation, _: describe(observation),
            ACTIONS,
            task=lambda env: str(env.mission),
            name=f"babyai:{short}",
        )

    def begin(self, seed: int, split: str) -> Obs:
        """The first look; the bot begins to watch."""
        from minigrid.utils.baby_ai_bot import BabyAIBot

        with redirect_stdout(io.StringIO()):  # where Minigrid prints each layout that it rejects
            obs = super().begin(seed, split)
        self._bot: Any = BabyAIBot(self.env)
        self._advise(None)
        return obs

    def act(self, action: str) -> Step:
        """The level's answer."""
        step = super().act(action)
        if action in self._numbers and not step.done:
            self._advise(self._numbers[action])
        won = step.info["won"]
        return step._replace(reward=float(won), info=step.info | {"score": float(won)})

    def plan(self) -> list[str] | None:
        """What the bot does from here, tried out on a copy; None where it gets lost or out of time."""
        if self._bot is None:
            return None
        env, bot = copy.deepcopy((self.env, self._bot))
        advice, found = self._advice, []
        while True:
            found.append(ACTIONS[int(advice)])
            _, reward, terminated, truncated, _ = env.step(advice)
            if terminated or truncated:
                return found if terminated and reward > 0 else None
            advice = _replan(bot, advice)
            if advice is None:
                return None

    def _advise(self, taken: int | None) -> None:
        if self._bot is not None:
            self._advice = _replan(self._bot, None if taken is None else self.env.actions(taken))
            if self._advice is None:
                self._bot = None


def _replan(bot: Any, taken: Any) -> Any:
    """The bot's advice; None where it has lost its way, which it says by whichever error it meets."""
    try:
        return bot.replan(taken)
    except Exception:
        return None


def describe(observation: Mapping[str, Any]) -> str:
    """An observation of Minigrid in words.

    ``image`` is (view, view, 3) of kind, colour and state; the agent stands in the middle of the first axis,
    at the end of the second, and looks along it towards 0; its own cell shows what it carries.
    """
    image = np.asarray(observation["image"])
    middle, here = image.shape[0] // 2, image.shape[1] - 1
    ahead = here - 1
    while ahead >= 0 and _free(image[middle, ahead]):
        ahead -= 1
    free = here - 1 - ahead
    way = f"You can go {_steps(free)} forward" if free else "You cannot go forward"
    if ahead >= 0 and image[middle, ahead, 0] != UNSEEN:
        way += f"; {'then' if free else 'right in front'} there is {_named(image[middle, ahead])}"
    things = []
    for x, y in np.ndindex(image.shape[:2]):
        if image[x, y, 0] not in (UNSEEN, EMPTY, WALL, FLOOR) and (x, y) != (middle, here):
            things.append(
                (here - y + abs(x - middle), f"{_named(image[x, y])} {_place(here - y, x - middle)}")
            )
    seen = "; ".join(thing for _, thing in sorted(things)) or "nothing"
    carried = image[middle, here]
    held = "nothing" if carried[0] in (UNSEEN, EMPTY, FLOOR) else _named(carried)
    direction = DIRECTIONS[int(observation["direction"])]
    return f"You face {direction}. {way}. You see: {seen}. You carry {held}."


def _free(cell: np.ndarray) -> bool:
    return bool(cell[0] in (EMPTY, FLOOR) or (cell[0] == DOOR and cell[2] == OPEN))


def _named(cell: np.ndarray) -> str:
    from minigrid.core.constants import IDX_TO_COLOR, IDX_TO_OBJECT, STATE_TO_IDX

    kind, colour = IDX_TO_OBJECT[int(cell[0])], IDX_TO_COLOR[int(cell[1])]
    if kind == "wall":
        return "a wall"
    states = {number: f"{state} " for state, number in STATE_TO_IDX.items()}
    state = states[int(cell[2])] if kind == "door" else ""
    words = f"{state}{colour} {kind}"
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _place(ahead: int, right: int) -> str:
    parts = [f"{_steps(ahead)} ahead"] if ahead else []
    if right:
        parts.append(f"{_steps(abs(right))} to the {'right' if right > 0 else 'left'}")
    return " and ".join(parts)


def _steps(count: int) -> str:
    return f"{count} step" if count == 1 else f"{count} steps"


def babyai(variant: str, **options: Any) -> BabyAIEnv:
    """A level by name."""
    return BabyAIEnv(variant, **options)
