"""Accuracy against forward passes: decoders on tasks with a checker, puzzle by puzzle.

Every decoder sees the same puzzles, so that differences are paired.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from icml_lm.stats import Interval, paired_bootstrap

from icml_ccd.decoding import decode
from icml_ccd.model_calls import Model
from icml_ccd.tasks import Task, masked_out

Config = Mapping[str, Any]
"""Arguments of ``decode``: ``{"rule": "ccd", "budget": 2}``."""
FIXED = ("neg_entropy", "confidence", "margin", "left_to_right", "random", "ccd", "ccd_plus")
BUDGETS = (1, 2, 4, 8)
THRESHOLDS = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98)
BOUNDS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
"""Of H(p̄), nats."""


@dataclass(frozen=True)
class Outcome:
    """One decoder on some puzzles.

    Attributes:
        correct: per puzzle.
        forwards: per puzzle, passes in which it took part.
        seconds: for all.
        wanted: tokens of an answer, the passes of one token a step.
    """

    correct: np.ndarray
    forwards: np.ndarray
    seconds: float
    wanted: int

    @property
    def accuracy(self) -> float:
        """Share of puzzles that are right."""
        return float(self.correct.mean())

    @property
    def nfe(self) -> float:
        """Mean number of forward passes."""
        return float(self.forwards.mean())

    @property
    def share(self) -> float:
        """Of the passes of one token a step."""
        return self.nfe / self.wanted


def run_config(
    model: Model, task: Task, config: Config, n: int, *, seed: int, device: str = "cpu", batch: int = 512
) -> Outcome:
    """Decode ``n`` puzzles.

    Args:
        model: as for ``decode``.
        task: whose answers are checked.
        config: arguments of ``decode``.
        n: puzzles.
        seed: of the puzzles, and of what the decoder draws.
        device: where the ids are.
        batch: puzzles at a time.
    """
    given, _ = masked_out(task, n, seed=seed)
    given = given.to(device)
    options = {"infill": True, "mask_id": task.mask_id, "shift_logits": "auto", **config}
    correct, forwards, seconds = [], [], 0.0
    for start in range(0, n, batch):
        part = given[start : start + batch]
        began = time.perf_counter()
        with warnings.catch_warnings():
            # Ties are counted in the trace, and widths are swept on purpose: warnings would only be noise.
            warnings.filterwarnings("ignore", message="equal scores left")
            warnings.filterwarnings("ignore", message="V=")
            out = decode(model, part, generator=seed + start, **options)
        seconds += time.perf_counter() - began
        correct.append(task.check(part.cpu(), out.sequences.cpu()).numpy())
        forwards.append(out.trace.forwards.cpu().numpy())
    return Outcome(np.concatenate(correct), np.concatenate(forwards), seconds, task.wanted)


def best_setting(
    model: Model,
    task: Task,
    configs: Sequence[Config],
    n: int,
    *,
    seed: int,
    at_least: float,
    device: str = "cpu",
) -> Config:
    """The fastest setting whose accuracy on puzzles of their own is high enough, else the most accurate.

    Args:
        configs: settings of one rule.
        n: puzzles.
        seed: of these puzzles; not those on which the winner is judged.
        at_least: accuracy that is high enough.
    """
    different = [config for i, config in enumerate(configs) if config not in configs[:i]]
    found = [(config, run_config(model, task, config, n, seed=seed, device=device)) for config in different]
    good = [(config, outcome) for config, outcome in found if outcome.accuracy >= at_least]
    if good:
        return min(good, key=lambda pair: pair[1].nfe)[0]
    return max(found, key=lambda pair: (pair[1].accuracy, -pair[1].nfe))[0]


def curve_area(curve: Sequence[tuple[float, float]], low: float, high: float) -> float:
    """Mean accuracy over the logarithm of forward passes between two shares, by straight lines.

    Args:
        curve: (share of the passes of one token a step, accuracy), in any order; beyond its ends it is flat.
        low, high: shares.

    Raises:
        ValueError: no point, or bounds that hold no interval.
    """
    if not curve or not 0 < low < high:
        raise ValueError(f"{len(curve)} points between the shares {low} and {high}; nothing to integrate")
    by_share: dict[float, list[float]] = {}
    for share, accuracy in curve:
        by_share.setdefault(share, []).append(accuracy)
    shares = np.array(sorted(by_share))
    accuracies = np.array([np.mean(by_share[s]) for s in shares])
    inside = shares[(shares > low) & (shares < high)]
    grid = np.concatenate(([low], inside, [high]))
    values = np.interp(np.log2(grid), np.log2(shares), accuracies)
    return float(np.trapezoid(values, np.log2(grid)) / (np.log2(high) - np.log2(low)))


def common_range(curves: Sequence[Sequence[tuple[float, float]]]) -> tuple[float, float]:
    """Shares that all curves cover."""
    low = max(min(share for share, _ in curve) for curve in curves)
    high = min(max(share for share, _ in curve) for curve in curves)
    return low, high


def frontier(points: Mapping[str, tuple[float, float]]) -> list[str]:
    """Names that no other beats: fewer passes and at least the accuracy, or more of it at no more passes."""
    return [
        name
        for name, (share, accuracy) in points.items()
        if not any(
            s <= share and a >= accuracy and (s < share or a > accuracy)
            for other, (s, a) in points.items()
            if other != name
        )
    ]


def at_budget(rule: str, budget: int) -> dict[str, Any]:
    """A rule at so many tokens a step.

    Three steps of warm-up are all the steps there are when answers are short: at several tokens a step CCD
    averages from the second one on.
    """
    config: dict[str, Any] = {"rule": rule, "budget": budget}
    if rule == "ccd" and budget > 1:
        config["rule_options"] = {"warmup": 1}
    return config


def block_wise(budget: int = 1, block_length: int = 4) -> dict[str, Any]:
    """Low-confidence remasking block after block, the published loop of LLaDA."""
    return {"rule": "confidence", "budget": budget, "block_length": block_length}


def dynamic_settings(rule: str, bounds: Sequence[float] = BOUNDS) -> list[dict[str, Any]]:
    """Settings of a dynamic rule among which the best is chosen.

    Bounds; and of CCD-DS a short or long warm-up (1 or 3 steps), and agreement of two or of all contexts.
    """
    if rule == "ccd_plus":
        return [{"rule": rule, "eps": eps} for eps in bounds]
    ways = [{"warmup": warmup, "least": least} for warmup in (1, 3) for least in (2, None)]
    return [{"rule": rule, "eps": eps, "rule_options": way} for eps in bounds for way in ways]


def standard_configs(quick: bool = False) -> dict[str, dict[str, Any]]:
    """The decoders of the bench: every rule, over its budgets or bounds."""
    budgets = (1, 4) if quick else BUDGETS
    found: dict[str, dict[str, Any]] = {}
    for rule in FIXED:
        for b in budgets:
            found[f"{rule} b={b}"] = at_budget(rule, b)
    for b in (1,) if quick else (1, 2):
        found[f"confidence b={b}, blocks"] = block_wise(b)
    for b in budgets:
        found[f"ccd_released n={b}"] = {"rule": "ccd_released", "budget": b}
    for threshold in (0.9,) if quick else THRESHOLDS:
        options = {"threshold": threshold}
        found[f"threshold {threshold:g}"] = {"rule": "threshold", "rule_options": options}
    for eps in (0.3,) if quick else BOUNDS:
        found[f"ccd_ds eps={eps:g}"] = {"rule": "ccd_ds", "eps": eps, "rule_options": {"warmup": 1}}
        found[f"ccd_plus eps={eps:g}"] = {"rule": "ccd_plus", "eps": eps}
    for confidence in (0.9,) if quick else (0.6, 0.8, 0.9):
        options = {"confidence": confidence}
        found[f"klass {confidence:g}"] = {"rule": "klass", "rule_options": options}
    return found


@dataclass
class BenchResult:
    """Outcomes by task and decoder, and what they come to."""

    outcomes: dict[str, dict[str, Outcome]] = field(default_factory=dict)

    def figures(self) -> dict[str, float]:
        """Accuracy, mean passes and seconds, as ``"task/decoder: accuracy"``."""
        found = {}
        for task, by_config in self.outcomes.items():
            for name, outcome in by_config.items():
                found[f"{task}/{name}: accuracy"] = outcome.accuracy
                found[f"{task}/{name}: nfe"] = outcome.nfe
        return found

    def rows(self) -> list[dict[str, Any]]:
        """One row a task and decoder; ``frontier`` says whether no other decoder beats it."""
        rows = []
        for task, by_config in self.outcomes.items():
            best = frontier({name: (o.share, o.accuracy) for name, o in by_config.items()})
            for name, o in by_config.items():
                rows.append(
                    {
                        "task": task,
                        "decoder": name,
                        "accuracy": o.accuracy,
                        "nfe": o.nfe,
                        "share": o.share,
                        "seconds": o.seconds,
                        "frontier": name in best,
                    }
                )
        return rows

    def difference(self, task: str, a: str, b: str, *, seed: int = 0) -> Interval:
        """Accuracy of one decoder over another on the same puzzles, with a 95 % interval (bootstrap)."""
        first, second = self.outcomes[task][a], self.outcomes[task][b]
        return paired_bootstrap(first.correct.astype(float), second.correct.astype(float), seed=seed)


class Bench:
    """Evaluates models under every decoder.

    Args:
        configs: decoders by name; all rules over their settings by default.
        n: puzzles a task and seed.
        seeds: of the puzzles.
        quick: few settings instead of all, where ``configs`` is not given.
    """

    def __init__(
        self,
        configs: Mapping[str, Config] | None = None,
        *,
        n: int = 400,
        seeds: Sequence[int] = (0,),
        quick: bool = False,
    ) -> None:
        self.configs = dict(standard_configs(quick) if configs is None else configs)
        if n < 1 or not seeds or not self.configs:
            raise ValueError(f"n={n}, seeds={list(seeds)}, {len(self.configs)} decoders: nothing to evaluate")
        self.n, self.seeds = n, tuple(seeds)

    def run(
        self, subjects: Mapping[str, tuple[Model, Task]], *, device: str = "cpu", progress: Any = None
    ) -> BenchResult:
        """All outcomes.

        Args:
            subjects: models with their tasks, by name.
            device: where the ids are.
            progress: something with ``advance(1)``.
        """
        result = BenchResult()
        for subject, (model, task) in subjects.items():
            result.outcomes[subject] = {}
            for name, config in self.configs.items():
                parts = [
                    run_config(model, task, config, self.n, seed=seed, device=device) for seed in self.seeds
                ]
                result.outcomes[subject][name] = Outcome(
                    np.concatenate([p.correct for p in parts]),
                    np.concatenate([p.forwards for p in parts]),
                    sum(p.seconds for p in parts),
                    task.wanted,
                )
                if progress is not None:
                    progress.advance(1)
        return result

    def evaluate(self, subject: Model, *, task: Task) -> dict[str, float]:
        """Named figures of one model on one task."""
        return self.run({task.name: (subject, task)}).figures()


def model_vocabulary_fits(model: Model, task: Task) -> bool:
    """Whether a model gives logits over a task's tokens, with or without the mask."""
    ids = torch.full((1, task.length), task.mask_id)
    found = model(ids)
    return int(getattr(found, "logits", found).shape[-1]) in (task.vocab, task.vocab - 1)
