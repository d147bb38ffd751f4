"""One call of a measure, wherever it runs: in this process, in a worker, or on another machine."""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icml_core.claims import ClaimSuite, Scale
from icml_core.components import resolve
from icml_core.errors import NeedsError
from icml_core.requirements import first_unmet
from icml_core.run import Run
from icml_core.verdicts import Outcome

# What every numerical library reads once, before it starts its threads.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


@dataclass(frozen=True, slots=True)
class Task:
    """One call of a measure that is still to be made.

    Attributes:
        suite: the import string of the claim suite.
        measure, index, seed, scale, ablation: which call.
        directory: where the measure may write, or None for a temporary place.
        exclusive: nothing else may run meanwhile.
    """

    suite: str
    measure: str
    index: int
    seed: int
    scale: Scale
    ablation: str | None
    directory: str | None
    device: str = "auto"
    exclusive: bool = False

    @property
    def label(self) -> str:
        """How a message names it."""
        return f"{self.measure} seed {self.seed}" + (f" [{self.ablation}]" if self.ablation else "")

    @property
    def file(self) -> str:
        """Its file's name in the directory of measures."""
        ablation = f"-{self.ablation}" if self.ablation else ""
        return f"{self.measure}/{self.scale}-{self.index}{ablation}.json"


def set_threads(count: int) -> None:
    """Give numerical libraries ``count`` threads; call it before the first of them is imported.

    Also sends what a worker prints to standard error, so that standard output stays one document,
    and leaves Ctrl-C to the parent, which ends the workers.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for variable in _THREAD_VARIABLES:
        os.environ[variable] = str(count)
    sys.stdout = sys.stderr


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def perform(task: Task) -> Outcome:
    """Call the measure; whatever it raises becomes the outcome's error."""
    begin = time.perf_counter()
    try:
        suite: ClaimSuite = resolve(task.suite)
        measure = suite.measures[task.measure]
        if (needs := first_unmet(measure.needs)) is not None:
            return Outcome(needs=str(needs))
        directory = Path(task.directory or tempfile.mkdtemp(prefix="icml-measure-"))
        directory.mkdir(parents=True, exist_ok=True)
        run = Run(
            directory,
            seed=task.seed,
            device=task.device,
            scale=task.scale,
            ablation=task.ablation,
            quiet=True,
        )
        try:
            figures = _checked(measure.function(run, task.seed))
        finally:
            if task.directory is None:
                shutil.rmtree(directory, ignore_errors=True)
        return Outcome(figures, time.perf_counter() - begin)
    except NeedsError as error:
        return Outcome(needs=str(error), seconds=time.perf_counter() - begin)
    except (Exception, SystemExit) as error:
        return Outcome(
            error=" ".join(traceback.format_exception_only(error)[-1].split()),
            traceback="".join(traceback.format_exception(error)),
            seconds=time.perf_counter() - begin,
        )


def _checked(figures: Any) -> Mapping[str, float | list[float]]:
    """The figures as plain numbers.

    Raises:
        TypeError: not a mapping of names to numbers.
        ValueError: a figure that is not finite.
    """
    if not isinstance(figures, Mapping) or not figures:
        raise TypeError(f"a measure returns a dict of figures, got {figures!r}")
    plain: dict[str, float | list[float]] = {}
    for name, value in figures.items():
        if hasattr(value, "tolist"):
            value = value.tolist()
        many = isinstance(value, Sequence) and not isinstance(value, str)
        numbers = [float(v) for v in value] if many else [float(value)]
        if any(not math.isfinite(v) for v in numbers):
            raise ValueError(f"figure {name!r} is not finite: {value!r}")
        plain[str(name)] = numbers if many else numbers[0]
    return plain
