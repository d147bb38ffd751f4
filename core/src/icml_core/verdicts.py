"""Verdicts: from the figures of several seeds to holds, fails or inconclusive.

Intervals are two-sided, 95 %: Student's t over seeds for means (on logarithms for ratios) and
Clopper and Pearson's for proportions. No bootstrap: over few seeds its 95 % intervals cover 75 to 90 %.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from icml_core.claims import Claim

LEVEL = 0.95
FEWEST = 3  # seeds from which an interval over seeds is formed

Word: TypeAlias = Literal["holds", "fails", "inconclusive", "measured", "error", "needs"]
Teeth: TypeAlias = Literal["bites", "blunt", "error", "not measured"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one call of a measure gave: figures, or why there are none."""

    figures: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    seconds: float = 0.0
    error: str | None = None
    traceback: str | None = None
    needs: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The judgement of one claim.

    Attributes:
        word: holds, fails, inconclusive, measured, error, or needs.
        values: what was judged, one a seed (differences or ratios where a baseline is named).
        estimate, low, high: the estimate and its interval, where one is formed.
        teeth: whether the ablation made the claim fail or worse; None where it has none.
        note: the error, what is needed, or how the teeth were shown.
        ablated: the values under the ablation.
    """

    word: Word
    values: tuple[float, ...] = ()
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    teeth: Teeth | None = None
    note: str = ""
    ablated: tuple[float, ...] = ()

    @property
    def bad(self) -> bool:
        """Whether ``icml verify`` must exit with 1."""
        return self.word in ("fails", "error") or self.teeth in ("blunt", "error")


def judge(
    claim: Claim,
    outcomes: Sequence[Outcome],
    ablated: Sequence[Outcome] | None = None,
    *,
    judged: bool = True,
) -> Verdict:
    """Judge ``claim`` by the outcomes of its measure, one a seed.

    Args:
        ablated: the outcomes under the claim's ablation, the same seeds in the same order; None
            where they were not measured.
        judged: False at the smoke scale, where every verdict is ``measured``.
    """
    verdict = _judge(claim, outcomes, judged)
    if claim.teeth is None or verdict.word in ("error", "needs") or not judged:
        return verdict
    if ablated is None:
        return _with_teeth(verdict, "not measured", "", ())
    broken = next((o for o in ablated if o.error or o.needs), None)
    if broken is not None:
        return _with_teeth(verdict, "error", f"ablation {claim.teeth!r}: {broken.error or broken.needs}", ())
    try:
        values = _values(claim, ablated)
    except ValueError as error:
        return _with_teeth(verdict, "error", f"ablation {claim.teeth!r}: {error}", ())
    without = _judge(claim, ablated, judged)
    if without.word == "fails":
        return _with_teeth(verdict, "bites", f"fails under {claim.teeth!r}", values)
    if _worse(claim, verdict.values, values):
        return _with_teeth(verdict, "bites", f"worse under {claim.teeth!r}", values)
    return _with_teeth(verdict, "blunt", f"neither fails nor is worse under {claim.teeth!r}", values)


def t_interval(values: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """Mean of ``values`` with Student's t interval: ``(mean, low, high)``.

    Raises:
        ValueError: fewer than two values.
    """
    from scipy import stats

    n = len(values)
    if n < 2:
        raise ValueError(f"an interval needs two values or more, got {n}")
    mean = math.fsum(values) / n
    variance = math.fsum((v - mean) ** 2 for v in values) / (n - 1)
    half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * math.sqrt(variance / n)
    return mean, mean - half, mean + half


def clopper_pearson(successes: int, trials: int, level: float = LEVEL) -> tuple[float, float, float]:
    """Proportion with Clopper and Pearson's exact interval: ``(proportion, low, high)``.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    from scipy import stats

    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"{successes} successes of {trials} trials")
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else float(stats.beta.ppf(tail, successes, trials - successes + 1))
    high = 1.0 if successes == trials else float(stats.beta.ppf(1 - tail, successes + 1, trials - successes))
    return successes / trials, low, high


def _judge(claim: Claim, outcomes: Sequence[Outcome], judged: bool) -> Verdict:
    if (needs := next((o.needs for o in outcomes if o.needs), None)) is not None:
        return Verdict("needs", note=needs)
    if (error := next((o.error for o in outcomes if o.error), None)) is not None:
        return Verdict("error", note=error)
    if not outcomes:
        return Verdict("error", note="the measure was not run")
    try:
        values = _values(claim, outcomes)
        if not judged:
            return Verdict("measured", values)
        estimate, low, high = _interval(claim, values)
    except ValueError as error:
        return Verdict("error", note=str(error))
    if claim.low is None and claim.high is None:
        word: Word = "measured"
    elif claim.kind == "every":
        word = "holds" if all(_inside(claim, v) for v in values) else "fails"
    elif low is None or high is None:
        word = "inconclusive"
    else:
        word = _compare(claim, low, high)
    note = ""
    if word == "inconclusive" and low is None:
        note = f"{len(values)} seeds give no interval; {FEWEST} are needed"
    return Verdict(word, values, estimate, low, high, note=note)


def _values(claim: Claim, outcomes: Sequence[Outcome]) -> tuple[float, ...]:
    """The numbers that are judged: figures, differences to the baseline, or ratios."""
    pooled = claim.kind in ("every", "proportion")
    figures = [_figure(outcome, claim.figure, pooled) for outcome in outcomes]
    if pooled:
        values = [v for figure in figures for v in figure]
        if claim.kind == "proportion" and any(v not in (0.0, 1.0) for v in values):
            raise ValueError(f"figure {claim.figure!r} of a proportion must be 0 or 1")
        if not values:
            raise ValueError(f"figure {claim.figure!r} is empty")
        return tuple(values)
    values = [figure[0] for figure in figures]
    if claim.baseline is None:
        return tuple(values)
    base = [_figure(outcome, claim.baseline, False)[0] for outcome in outcomes]
    if claim.kind == "mean":
        return tuple(v - b for v, b in zip(values, base, strict=True))
    if any(v <= 0 for v in (*values, *base)):
        raise ValueError(f"a ratio needs positive figures; got {values} and {base}")
    return tuple(v / b for v, b in zip(values, base, strict=True))


def _figure(outcome: Outcome, name: str, pooled: bool) -> list[float]:
    if name not in outcome.figures:
        raise ValueError(f"the measure gave no figure {name!r}; it gave {', '.join(outcome.figures)}")
    value = outcome.figures[name]
    values = [float(v) for v in value] if isinstance(value, Sequence) else [float(value)]
    if not pooled and len(values) != 1:
        raise ValueError(f"figure {name!r} must be one number a seed, got {len(values)}")
    if any(not math.isfinite(v) for v in values):
        raise ValueError(f"figure {name!r} is not finite")
    return values


def _interval(claim: Claim, values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    if claim.kind == "every":
        return None, None, None
    if claim.kind == "proportion":
        return clopper_pearson(int(sum(values)), len(values))
    if claim.kind == "ratio":
        logs = [math.log(v) for v in values]
        if len(logs) < FEWEST:
            return math.exp(math.fsum(logs) / len(logs)), None, None
        mean, low, high = t_interval(logs)
        return math.exp(mean), math.exp(low), math.exp(high)
    if len(values) < FEWEST:
        return math.fsum(values) / len(values), None, None
    return t_interval(values)


def _inside(claim: Claim, value: float) -> bool:
    return (claim.low is None or value >= claim.low) and (claim.high is None or value <= claim.high)


def _compare(claim: Claim, low: float, high: float) -> Word:
    if _inside(claim, low) and _inside(claim, high):
        return "holds"
    below = claim.low is not None and high < claim.low
    above = claim.high is not None and low > claim.high
    return "fails" if below or above else "inconclusive"


def _worse(claim: Claim, values: Sequence[float], ablated: Sequence[float]) -> bool:
    """Whether the ablated values are worse by a paired interval that excludes 0.

    Only for one-sided bounds, where it is plain which direction is worse.
    """
    one_sided = (claim.low is None) != (claim.high is None)
    if not one_sided or len(values) != len(ablated) or len(values) < FEWEST:
        return False
    if claim.kind == "ratio":
        values, ablated = [math.log(v) for v in values], [math.log(v) for v in ablated]
    sign = 1.0 if claim.high is not None else -1.0
    _, low, _ = t_interval([sign * (a - v) for v, a in zip(values, ablated, strict=True)])
    return low > 0


def _with_teeth(verdict: Verdict, teeth: Teeth, note: str, ablated: tuple[float, ...]) -> Verdict:
    joined = "; ".join(part for part in (verdict.note, note) if part)
    return Verdict(
        verdict.word, verdict.values, verdict.estimate, verdict.low, verdict.high, teeth, joined, ablated
    )
