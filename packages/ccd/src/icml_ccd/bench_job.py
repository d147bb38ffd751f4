"""The job that draws accuracy against forward passes."""

from __future__ import annotations

import csv
from typing import Any

from icml_core import Run
from icml_core.run import write_json

from icml_ccd.bench import Bench, BenchResult, standard_configs
from icml_ccd.pictures import curve_picture
from icml_ccd.trained_tasks import TASKS, task_model


def run_bench(run: Run, tasks: list[str], n: int, quick: bool) -> dict[str, Any]:
    """Every rule on every task."""
    unknown = sorted(set(tasks) - set(TASKS))
    if unknown or not tasks:
        raise ValueError(
            f"--tasks {' '.join(tasks)}: {', '.join(unknown) or 'none'}; there are {', '.join(TASKS)}"
        )
    bench = Bench(standard_configs(quick), n=n, seeds=(run.seed,))
    with run.progress("decoding", total=len(tasks) * len(bench.configs)) as bar:
        scale = "smoke" if quick else "small"
        subjects = {name: (task_model(name, scale, device=run.device), TASKS[name]) for name in tasks}
        result = bench.run(subjects, device=run.device, progress=bar)
    rows = result.rows()
    with run.path("bench.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    write_json(run.file("differences.json"), _differences(result))
    for name in tasks:
        curves: dict[str, list[tuple[float, float]]] = {}
        for config, outcome in result.outcomes[name].items():
            curves.setdefault(config.split()[0], []).append((outcome.nfe, outcome.accuracy))
        with run.path(f"{name}.png") as temporary:
            curve_picture(curves, temporary, title=name)
    return {f"{row['task']}/{row['decoder']}": row["accuracy"] for row in rows if row["frontier"]}


def _differences(result: BenchResult) -> dict[str, Any]:
    """CCD and ccd_plus over every rule at one token a step, with paired intervals."""
    found: dict[str, Any] = {}
    for task, by_config in result.outcomes.items():
        single = [name for name in by_config if name.endswith("b=1")]
        for ours in ("ccd b=1", "ccd_plus b=1"):
            for other in single:
                if other != ours and ours in by_config:
                    interval = result.difference(task, ours, other)
                    found[f"{task}: {ours} over {other}"] = list(interval.__dict__.values())
    return found
