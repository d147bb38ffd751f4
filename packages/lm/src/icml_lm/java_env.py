"""What environments in a Java machine have in common: a machine of their own, and a gold path to follow."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from threading import Lock
from typing import Any

from icml_lm.text_env import CheckedEnv, EpisodeError, MissingJava

NO_LIMIT = 1_000_000_000
"""Steps an episode may have; who plays decides when to stop."""
SECONDS_TO_END = 5.0
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"
_ENVIRONMENT = Lock()
STEADY_HASHES = "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"


def require_java(wanted_by: str) -> None:
    """Raise :class:`MissingJava` where no ``java`` is on the PATH."""
    if shutil.which("java") is None:
        raise MissingJava(wanted_by)


@contextmanager
def steady_hashes() -> Iterator[None]:
    """Let Java machines that are started here give every object the same identity hash.

    By default it is drawn at random, and with it the order of Scala's sets of objects, and so which objects a
    simulator names and lists first: the same seed would give other episodes. Equal hashes leave the order of
    insertion. The option is read from the environment, since the packages do not pass options on.
    """
    with _ENVIRONMENT:
        before = os.environ.get(JAVA_OPTIONS)
        os.environ[JAVA_OPTIONS] = f"{before or ''} {STEADY_HASHES}".strip()
        try:
            yield
        finally:
            if before is None:
                del os.environ[JAVA_OPTIONS]
            else:
                os.environ[JAVA_OPTIONS] = before


class JavaEnv(CheckedEnv):
    """One Java machine and one port, for one environment, in one process.

    A forked child would talk to its parent's game, so that it is refused there.
    """

    def __init__(self, game: Any) -> None:
        self._game = game
        self._owner = os.getpid()
        self._gold: list[str] = []
        self._followed = 0

    def seed_java(self, seed: int) -> None:
        """Seed the generator that Scala programs share."""
        getattr(getattr(self._game._gateway.jvm.scala.util, "Random$"), "MODULE$").setSeed(seed)

    @property
    def port(self) -> int:
        """Where this environment's Java machine listens."""
        return int(self._game._gateway.gateway_parameters.port)

    def follow(self, gold: Sequence[str]) -> None:
        """Take the gold path of a new episode."""
        self._gold, self._followed = list(gold), 0

    def sent(self, action: str) -> None:
        """Note whether an action keeps to the gold path."""
        on_path = 0 <= self._followed < len(self._gold) and self._gold[self._followed] == action
        self._followed = self._followed + 1 if on_path else -1

    def plan(self) -> list[str] | None:
        """What is left of the gold path; None off the path, for it is given from the start only."""
        return self._gold[self._followed :] or None if self._followed >= 0 else None

    def own(self) -> None:
        """Raise where this is another process than the one that started the Java machine."""
        if os.getpid() != self._owner:
            raise EpisodeError(f"{self.name} was started in another process; make one in each process")

    def free(self) -> None:
        """End the Java machine."""
        if os.getpid() != self._owner:
            return
        machine: subprocess.Popen[bytes] = self._game._gateway.java_process
        with suppress(OSError, ValueError):  # its pipe is already gone
            self._game.close()
        with suppress(OSError, ValueError):
            machine.stdin.close()
        try:
            machine.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            machine.kill()
            machine.wait(SECONDS_TO_END)
        self._game.close = lambda: None  # which its destructor calls again
