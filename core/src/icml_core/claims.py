"""Claims: statements of a paper about figures that a measure gives, each with a bound that can be missed.

A package declares measures and claims; the core chooses the seeds, calls the measures and judges
(:mod:`icml_core.verdicts`), so that no package judges itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

if TYPE_CHECKING:
    from icml_core.run import Run

Scale: TypeAlias = Literal["smoke", "small", "full"]
Kind: TypeAlias = Literal["every", "mean", "proportion", "ratio"]
Figures: TypeAlias = Mapping[str, "float | Sequence[float]"]

SCALES: tuple[Scale, ...] = ("smoke", "small", "full")
KINDS: tuple[Kind, ...] = ("every", "mean", "proportion", "ratio")

_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Measure:
    """A function that gives figures for one seed.

    Attributes:
        name: the function's name.
        function: ``function(run, seed)`` returns a dict of figures.
        seeds: how many seeds it is called with at each scale.
        ablations: names under which it runs again with a key idea of the paper switched off.
        exclusive: nothing else runs meanwhile; for times and memory.
        needs: requirements such as ``"openmm>=8.2"``, or ``"cuda"``.
    """

    name: str
    function: Callable[[Run, int], Figures]
    seeds: Mapping[Scale, int]
    ablations: tuple[str, ...] = ()
    exclusive: bool = False
    needs: tuple[str, ...] = ()

    def seed(self, suite: str, index: int) -> int:
        """The ``index``-th seed: a hash of the names, so that nobody picks a seed that flatters."""
        return int.from_bytes(sha256(f"{suite}/{self.name}/{index}".encode()).digest()[:4], "big") >> 1


@dataclass(frozen=True, slots=True)
class Claim:
    """A statement about one figure of one measure, with the bound that decides it.

    Attributes:
        name: its name in the table.
        measure: the measure that gives its figure.
        figure: which figure.
        kind: how values become a verdict: ``every`` value inside the bounds; ``mean`` over seeds
            with a t interval, paired where a baseline is named; ``proportion`` of ones with a
            Clopper-Pearson interval; ``ratio`` to the baseline with a t interval of logarithms.
        statement: what is claimed here, in a sentence.
        paper: what the paper states, with its setting.
        baseline: the figure compared with: subtracted (``mean``) or divided by (``ratio``).
        low, high: the bounds; both None gives the verdict ``measured``.
        unit: of the figure.
        teeth: the ablation under which this claim must fail or be worse.
    """

    name: str
    measure: Measure
    figure: str
    kind: Kind
    statement: str
    paper: str
    baseline: str | None = None
    low: float | None = None
    high: float | None = None
    unit: str = ""
    teeth: str | None = None

    @property
    def bound(self) -> str:
        """The bound as text: ``<= 0.05``, ``>= 10``, ``0.4 to 0.6``, or nothing."""
        if self.low is not None and self.high is not None:
            return f"{self.low:g} to {self.high:g}"
        if self.high is not None:
            return f"<= {self.high:g}"
        return f">= {self.low:g}" if self.low is not None else ""


class ClaimSuite:
    """The measures and claims of one plug-in, in the order in which they were declared."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.measures: dict[str, Measure] = {}
        self.claims: dict[str, Claim] = {}

    def measure(
        self,
        *,
        seeds: Mapping[Scale, int],
        ablations: Sequence[str] = (),
        exclusive: bool = False,
        needs: Sequence[str] = (),
    ) -> Callable[[Callable[[Run, int], Any]], Callable[[Run, int], Any]]:
        """Declare the decorated function as a measure (see :class:`Measure` for the options).

        Raises:
            ValueError: a scale is missing or unknown, a count is below one, a name is taken or malformed.
        """
        if set(seeds) != set(SCALES):
            raise ValueError(
                f"{self.name}: seeds must name the scales {', '.join(SCALES)}; got {dict(seeds)}"
            )
        if any(count < 1 for count in seeds.values()):
            raise ValueError(f"{self.name}: every scale needs at least one seed; got {dict(seeds)}")
        for ablation in ablations:
            _check_name(self.name, "ablation", ablation)

        def declare(function: Callable[[Run, int], Any]) -> Callable[[Run, int], Any]:
            name = function.__name__
            if name in self.measures:
                raise ValueError(f"{self.name}: two measures are called {name!r}")
            self.measures[name] = Measure(
                name, function, dict(seeds), tuple(ablations), exclusive, tuple(needs)
            )
            return function

        return declare

    def claim(
        self,
        name: str,
        *,
        of: Callable[[Run, int], Any],
        figure: str,
        kind: Kind,
        statement: str,
        paper: str,
        baseline: str | None = None,
        at_most: float | None = None,
        at_least: float | None = None,
        between: tuple[float, float] | None = None,
        unit: str = "",
        teeth: str | None = None,
    ) -> None:
        """Declare a claim about ``figure`` of the measure ``of`` (see :class:`Claim`).

        Raises:
            ValueError: an unknown measure, kind or ablation, contradictory bounds, a missing
                baseline, or a name that is taken or malformed.
        """
        where = f"{self.name}, claim {name!r}"
        _check_name(self.name, "claim", name)
        if name in self.claims:
            raise ValueError(f"{where}: declared twice")
        measure = self.measures.get(getattr(of, "__name__", ""))
        if measure is None or measure.function is not of:
            raise ValueError(f"{where}: of={of!r} is not a measure of this suite")
        if kind not in KINDS:
            raise ValueError(f"{where}: kind {kind!r} is none of {', '.join(KINDS)}")
        if between is not None and (at_most is not None or at_least is not None):
            raise ValueError(f"{where}: give between, or at_most and at_least, not both")
        low, high = between if between is not None else (at_least, at_most)
        if low is not None and high is not None and low > high:
            raise ValueError(f"{where}: the lower bound {low} is above the upper bound {high}")
        if kind == "ratio" and baseline is None:
            raise ValueError(f"{where}: a ratio needs a baseline")
        if kind in ("every", "proportion") and baseline is not None:
            raise ValueError(f"{where}: kind {kind!r} takes no baseline; use mean or ratio")
        if teeth is not None and teeth not in measure.ablations:
            raise ValueError(f"{where}: {measure.name!r} has no ablation {teeth!r}: {measure.ablations}")
        if teeth is not None and low is None and high is None:
            raise ValueError(f"{where}: without a bound nothing can fail, so it can have no teeth")
        self.claims[name] = Claim(
            name, measure, figure, kind, statement, paper, baseline, low, high, unit, teeth
        )


def _check_name(suite: str, what: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{suite}: {what} name {name!r} must be lower-case letters, digits, '-' and '_'")
