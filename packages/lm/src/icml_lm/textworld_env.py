"""Games that TextWorld made (``tw-make``), played through TextWorld itself.

TextWorld (M.-A. Côté et al., 2018, arXiv 1806.11532) keeps beside each ``.z8`` or ``.ulx`` file a ``.json``
with the game's logic, which tells the admissible commands and the optimal policy from any state.
"""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

from icml_lm.text_env import SPLITS, CheckedEnv, EnvDataMissing, Obs, Step, needs

GAMES = (".z8", ".ulx")
WANTED = dict.fromkeys(
    ("admissible_commands", "policy_commands", "won", "lost", "score", "max_score", "objective"), True
)
GENERATOR = "make one with `tw-make custom --world-size 3 --quest-length 4 --seed 1 --output games/one.z8`"
PROMPT = re.compile(r"\n*>(?:[ \t]+-=.*)?\s*$")
"""The prompt that ends a reply, with the status line that some interpreters leave behind it."""
BANNER = re.compile(r"^[ \t$\\/|_>]*\$[ \t$\\/|_>]*$", re.MULTILINE)
"""Lines of the title drawn in letters."""


class TextWorldEnv(CheckedEnv):
    """A game, or a folder of games; the score is the part of the game's points that were made.

    A seed counts through the games in the order of their names, and begins anew after the last. Where a
    folder has folders ``train``, ``dev`` and ``test``, these are the splits; else all have the same games.

    Args:
        path: of a ``.z8`` or ``.ulx`` file with its ``.json`` beside it, or of a folder of such.

    Raises:
        NeedsError: where TextWorld is not installed.
        EnvDataMissing: where there are no games.
    """

    def __init__(self, path: str | Path) -> None:
        self._textworld = needs("textworld", "textworld", why="builds from source and needs a C compiler")
        home = Path(path).expanduser()
        self.name = f"textworld:{home}"
        self._files = {split: _games(home, split) for split in SPLITS}
        if not any(self._files.values()):
            raise EnvDataMissing(home, f"game ({', '.join(GAMES)}, each with its .json)", GENERATOR)
        self._home, self._file, self._play = home, Path(), None

    def begin(self, seed: int, split: str) -> Obs:
        """The game's introduction."""
        files = self._files[split]
        if not files:
            raise EnvDataMissing(self._home / split, "game", GENERATOR)
        file = files[seed % len(files)]
        with warnings.catch_warnings():  # the interpreter's, of what TextWorld does itself
            warnings.filterwarnings("ignore", message=".*is not fully supported")
            if file != self._file:
                self.free()
                self._play = self._textworld.start(str(file), self._textworld.EnvInfos(**WANTED))
                self._file = file
            self._state = self._play.reset()
        self._most = max(1, int(self._state["max_score"] or 1))
        self._task = (self._state["objective"] or "").strip()
        self._score = 0.0
        return self._seen(False)

    def act(self, action: str) -> Step:
        """The game's reply."""
        self._state, _, done = self._play.step(action)
        over = bool(done or self._state["won"] or self._state["lost"])
        score, before = int(self._state["score"] or 0) / self._most, self._score
        self._score = score
        info = {"won": bool(self._state["won"]), "score": score}
        return Step(self._seen(over), score - before, over, info)

    def plan(self) -> list[str] | None:
        """TextWorld's optimal policy from here; None where the game cannot be won any more."""
        return list(self._state["policy_commands"] or ()) or None

    def free(self) -> None:
        """End the interpreter."""
        if self._play is not None:
            self._play.close()
            self._play = None

    def _seen(self, over: bool) -> Obs:
        commands = () if over else tuple(sorted(set(self._state["admissible_commands"] or ())))
        return Obs(_cleaned(self._state["feedback"]), commands, self._task)


def _games(home: Path, split: str) -> tuple[Path, ...]:
    if home.is_file():
        found = [home]
    else:
        folder = home / split if any((home / other).is_dir() for other in SPLITS) else home
        found = sorted(file for file in folder.glob("*") if file.suffix in GAMES)
    return tuple(file for file in found if file.suffix in GAMES and file.with_suffix(".json").is_file())


def _cleaned(reply: str) -> str:
    """A reply without prompt, drawn title and runs of empty lines."""
    text = BANNER.sub("", PROMPT.sub("", reply))
    return re.sub(r"\n\s*\n\s*", "\n\n", text).strip()


def textworld(variant: str, **options: Any) -> TextWorldEnv:
    """The games of a path.

    Raises:
        EnvDataMissing: for an empty path.
    """
    if not variant:
        raise EnvDataMissing("textworld:", "path of a game", GENERATOR)
    return TextWorldEnv(variant, **options)
