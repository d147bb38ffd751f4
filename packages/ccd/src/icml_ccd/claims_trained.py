"""Claims on trained models: 6-digit addition, 4 x 4 sudoku and trip scheduling, each with a checker.

One model a task, trained once for all seeds; a seed chooses the puzzles. Settings of dynamic rules are chosen
on puzzles of their own.
"""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

from icml_ccd.claims_exact import GAIN, VALIDATION, context_options

NAMES = ("addition", "sudoku", "trips")
PUZZLES = {"smoke": 10, "small": 400, "full": 2000}
CURVES = ("neg_entropy", "ccd", "ccd_plus")


def trained_tasks(run: Run, seed: int) -> dict[str, float]:
    """Accuracy of every rule at one token a step and with dynamic budgets, and accuracy against passes."""
    import numpy as np

    from icml_ccd.trained_tasks import TASKS

    figures: dict[str, float] = {}
    for name in NAMES:
        figures |= {f"{key}_{name}": value for key, value in _one_task(run, seed, name).items()}
    gains = sorted(figures[f"ccd_{name}"] - figures[f"neg_entropy_{name}"] for name in NAMES)
    figures["second_gain"] = gains[1]
    # Where curves share no stretch of passes there is nothing to compare, and the task is left out.
    comparable = [name for name in NAMES if f"area_ccd_{name}" in figures]
    figures["tasks_with_areas"] = float(len(comparable))
    for rule in (*CURVES, "threshold") if comparable else ():
        figures[f"area_{rule}"] = float(np.mean([figures[f"area_{rule}_{name}"] for name in comparable]))
    for b in (2, 4, 8):
        # An answer that is written in one step is the same under every rule.
        longer = [name for name in NAMES if TASKS[name].wanted > b]
        for rule in CURVES:
            figures[f"{rule}_b{b}"] = float(np.mean([figures[f"{rule}_b{b}_{name}"] for name in longer]))
    return figures


def _one_task(run: Run, seed: int, name: str) -> dict[str, float]:
    from icml_ccd import bench
    from icml_ccd.trained_tasks import TASKS, task_model

    task, n = TASKS[name], PUZZLES[run.scale]
    model = task_model(name, run.scale, device=run.device)
    context = context_options(run)
    quick = run.scale == "smoke"

    def outcome(config: dict[str, Any]) -> bench.Outcome:
        return bench.run_config(model, task, config, n, seed=seed, device=run.device)

    figures: dict[str, float] = {}
    curves: dict[str, list[tuple[float, float]]] = {}
    for rule in CURVES:
        curves[rule] = []
        for b in bench.BUDGETS:
            found = outcome({**bench.at_budget(rule, b), **(context if rule == "ccd" else {})})
            curves[rule].append((found.share, found.accuracy))
            figures[f"{rule}_b{b}"] = found.accuracy
            if b == 1:
                figures[rule], figures[f"{rule}_nfe"] = found.accuracy, found.nfe
    for rule in ("confidence", "margin", "left_to_right", "random"):
        figures[rule] = outcome({"rule": rule, "budget": 1}).accuracy
    figures["ccd_released"] = outcome({"rule": "ccd_released", "budget": 1}).accuracy
    figures["confidence_blocks"] = outcome(bench.block_wise()).accuracy
    figures["klass"] = outcome({"rule": "klass"}).accuracy
    curves["threshold"] = []
    for threshold in (0.05, 0.9) if quick else bench.THRESHOLDS:
        found = outcome({"rule": "threshold", "rule_options": {"threshold": threshold}})
        curves["threshold"].append((found.share, found.accuracy))
        if threshold == 0.9:
            figures["threshold"], figures["threshold_nfe"] = found.accuracy, found.nfe
    low, high = bench.common_range(list(curves.values()))
    if low < high:
        figures |= {f"area_{rule}": bench.curve_area(curve, low, high) for rule, curve in curves.items()}
    held_out = bench.run_config(
        model, task, {"rule": "neg_entropy", "budget": 1}, n, seed=seed + VALIDATION, device=run.device
    )
    for key, rule in (("ccd_ds", "ccd_ds"), ("ccd_plus_ds", "ccd_plus")):
        settings = bench.dynamic_settings(rule, (0.3,) if quick else bench.BOUNDS)
        configs = [{**c, **(context if rule == "ccd_ds" else {})} for c in settings]
        best = bench.best_setting(
            model,
            task,
            configs,
            n,
            seed=seed + VALIDATION,
            at_least=held_out.accuracy - 0.005,
            device=run.device,
        )
        found = outcome(dict(best))
        figures[key], figures[f"{key}_nfe"], figures[f"{key}_eps"] = found.accuracy, found.nfe, best["eps"]
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    suite.measure(seeds={"smoke": 1, "small": 5, "full": 5}, ablations=("one-context",))(trained_tasks)
    for name in NAMES:
        suite.claim(
            f"{name}-above-entropy",
            of=trained_tasks,
            figure=f"ccd_{name}",
            baseline=f"neg_entropy_{name}",
            kind="mean",
            at_least=GAIN,
            statement=f"On {name}, at one token a step, CCD answers more puzzles than the entropy order.",
            paper="Dream-7B: GSM8K 81.01 to 82.26, Trip 15.10 to 16.93; LLaDA-8B: GSM8K 74.3 to 75.3.",
        )
        suite.claim(
            f"{name}-not-worse",
            of=trained_tasks,
            figure=f"ccd_{name}",
            baseline=f"neg_entropy_{name}",
            kind="mean",
            at_least=-0.02,
            statement=f"On {name} CCD is at most 2 points below the entropy order.",
            paper="Never worse in the paper's tables.",
        )
        suite.claim(
            f"{name}-plus-not-worse",
            of=trained_tasks,
            figure=f"ccd_plus_{name}",
            baseline=f"neg_entropy_{name}",
            kind="mean",
            at_least=-0.005,
            statement=f"On {name} ccd_plus is at most half a point below the entropy order.",
            paper="Beyond the paper.",
        )
        suite.claim(
            f"{name}-dynamic-fewer-passes",
            of=trained_tasks,
            figure=f"ccd_ds_nfe_{name}",
            baseline=f"neg_entropy_nfe_{name}",
            kind="ratio",
            at_most=0.8,
            statement=f"On {name} CCD-DS takes at most 0.8 of the passes of one token a step.",
            paper="Dream: Trip 3.48, MBPP 3.78, HumanEval 3.04 times fewer; LLaDA: Trip 2.27, GSM8K 1.31.",
        )
        suite.claim(
            f"{name}-dynamic-not-worse",
            of=trained_tasks,
            figure=f"ccd_ds_{name}",
            baseline=f"neg_entropy_{name}",
            kind="mean",
            at_least=-0.01,
            statement=f"On {name} CCD-DS is at most one point below the entropy order at one token a step.",
            paper="Dream: Trip +3.91 points.",
        )
    suite.claim(
        "two-of-three-tasks",
        of=trained_tasks,
        figure="second_gain",
        kind="mean",
        at_least=GAIN,
        statement="CCD's second largest gain over the entropy order, of three tasks, is positive.",
        paper="Better on most of five benchmarks with two models.",
        teeth="one-context",
    )
    for rule in ("neg_entropy", "threshold"):
        suite.claim(
            f"area-above-{rule}".replace("_", "-"),
            of=trained_tasks,
            figure="area_ccd",
            baseline=f"area_{rule}",
            kind="mean",
            at_least=0.0,
            statement=f"The area under accuracy against log passes of CCD is at least that of {rule}.",
            paper="Milder degradation under parallel decoding (curve of the ICML version).",
        )
    for b in (2, 4, 8):
        suite.claim(
            f"parallel-{b}",
            of=trained_tasks,
            figure=f"ccd_b{b}",
            baseline=f"neg_entropy_b{b}",
            kind="mean",
            at_least=0.0,
            statement=f"At {b} tokens a step CCD answers at least as many puzzles as the entropy order.",
            paper="Milder degradation under parallel decoding.",
        )
