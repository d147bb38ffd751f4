"""TextWorldExpress: eight games of cooking, tidying, searching, counting and sorting.

The simulator of P. Jansen and M.-A. Côté, 2023, arXiv 2208.01174, is driven through its own Python package;
each game has 1,000 or more seeds for training, development and test, and a gold path for each.
"""

from __future__ import annotations

from typing import Any

from icml_lm.java_env import NO_LIMIT, JavaEnv, require_java
from icml_lm.text_env import Obs, Step, needs, unknown

GAMES = (
    "arithmetic",
    "coin",
    "cookingworld",
    "mapreader",
    "peckingorder",
    "simonsays",
    "sorting",
    "twc",
)


class TextWorldExpressEnv(JavaEnv):
    """One of the games; a seed counts through those of the split, and begins anew after the last.

    Args:
        game: its name.
        params: what the game's generator is told, such as ``"numLocations=3,includeDoors=0"``.

    Raises:
        UnknownNameError: for a game that there is not.
        NeedsError: where the package is not installed.
        MissingJava: where Java is not.
        ValueError: for parameters that the game does not know.
    """

    def __init__(self, game: str, *, params: str = "") -> None:
        if game not in GAMES:
            raise unknown("game of textworld-express", game, GAMES)
        package = needs("textworld_express", "textworld-express")
        require_java("textworld-express")
        super().__init__(package.TextWorldExpressEnv(envStepLimit=NO_LIMIT))
        self.name = f"textworld-express:{game}"
        try:
            self._game.load(game, params)
        except ValueError as error:
            self.close()
            raise ValueError(f"{self.name} refuses params={params!r}: {error}") from error
        self._seeds = {
            "train": self._game.getValidSeedsTrain(),
            "dev": self._game.getValidSeedsDev(),
            "test": self._game.getValidSeedsTest(),
        }

    def begin(self, seed: int, split: str) -> Obs:
        """The first look at the game of this seed."""
        self.own()
        seeds = self._seeds[split]
        _, infos = self._game.reset(seed=seeds[seed % len(seeds)], gameFold=split, generateGoldPath=True)
        self.follow(self._game.getGoldActionSequence())
        return _observed(infos, False)

    def act(self, action: str) -> Step:
        """The simulator's answer; the score is the part of the points that were made."""
        self.own()
        self.sent(action)
        text, reward, done, infos = self._game.step(action)
        won = bool(infos["tasksuccess"])
        info = {"won": won, "score": float(infos["score"])}
        return Step(_observed(infos | {"observation": text}, done), float(reward), bool(done), info)


def _observed(infos: dict[str, Any], done: bool) -> Obs:
    admissible = () if done else tuple(sorted(infos["validActions"]))
    return Obs(infos["observation"].strip(), admissible, infos["taskDescription"].strip())


def textworld_express(variant: str, **options: Any) -> TextWorldExpressEnv:
    """A game by name."""
    return TextWorldExpressEnv(variant, **options)
