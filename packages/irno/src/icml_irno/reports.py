"""What the jobs write of a model: errors of every step, and forecasts over lead time, as tables and pictures.

The base alone is the row k = 0; the corrector alone, started from 0 instead of the base's output, has a row
of its own where it can start (x and y on one grid, and a base to leave out).
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from icml_core import Run
from torch import Tensor

from icml_irno import plots
from icml_irno.batches import Batches
from icml_irno.field_files import read_trajectories
from icml_irno.fields import fill_masked
from icml_irno.metrics import BANDS
from icml_irno.operator import IRNO
from icml_irno.rollouts import rollout
from icml_irno.spectrum import lead_time_report, spectrum_report


def write_steps(
    run: Run,
    model: IRNO,
    data: Any,
    picture: bool,
    steps: int | None = None,
    certificate: int = 0,
    spacing: Sequence[float] | None = None,
) -> dict[str, Any]:
    """Write steps.csv, refinement.png and sample.png of every step on (x, y[, mask]); their figures.

    Args:
        run: where to.
        model: the operator.
        data: z-scores, as ``Batches`` takes them.
        picture: draw.
        steps: go so far; 3 K by default.
        certificate: samples whose contraction factor is measured.
        spacing: of the grid of y, where it is known.
    """
    depth = 3 * model.K if steps is None else steps
    collected: list[list[Tensor]] = [[] for _ in range(depth + 1)]
    targets: list[Tensor] = []
    alone: list[Tensor] = []
    q: list[float] = []
    corrector = None if model.base is None else model.rebase(None)
    for x, y, mask in Batches(data, 16, run.device).epoch():
        valid = model.joined_mask(mask)
        if valid is not None:  # no error, and no variance, where there is no point
            y = fill_masked(y, valid)

        def kept(h: Tensor, y: Tensor = y, valid: Tensor | None = valid) -> Tensor:
            return (h if valid is None else torch.where(valid, h, y)).cpu()

        with torch.no_grad():
            for k, h in enumerate(model.iterates(x, depth, mask, spacing)):
                collected[k].append(kept(h))
            if corrector is not None and x.shape[2:] == y.shape[2:]:
                alone.append(kept(corrector(x, model.K, mask, spacing)))
        targets.append(y.cpu())
        if len(q) < certificate:
            some = slice(certificate - len(q))
            own = None if mask is None else mask[some]
            q += model.contraction(x[some], mask=own, spacing=spacing).tolist()
    iterates, target = [torch.cat(part) for part in collected], torch.cat(targets)
    sound = next((k for k, h in enumerate(iterates) if not bool(torch.isfinite(h).all())), depth + 1)
    report = spectrum_report(iterates[:sound], target, q)
    figures: dict[str, Any] = report.figures()
    rows: list[dict[str, Any]] = [
        {"start": "base" if model.base is not None else "zero", "k": k, "vrmse": report.vrmse[k]}
        | dict(zip(BANDS, bands, strict=True))
        for k, bands in enumerate(report.bands)
    ]
    if alone and bool(torch.isfinite(torch.cat(alone)).all()):
        other = spectrum_report([iterates[0], torch.cat(alone)], target)
        row = {"vrmse": other.vrmse[1], **dict(zip(BANDS, other.bands[1], strict=True))}
        rows.append({"start": "zero", "k": model.K, **row})
        figures |= {f"corrector_alone_{name}": value for name, value in row.items()}
    write_table(run, "steps.csv", rows)
    if picture:
        with run.path("refinement.png") as temporary:
            plots.refinement(report, temporary, model.K)
        with run.path("sample.png") as temporary:
            plots.sample(iterates[0][0], iterates[min(model.K, sound - 1)][0], target[0], temporary)
    return figures


def write_lead_times(
    run: Run, model: IRNO, known: Mapping[str, Any], data: Path, count: int, picture: bool
) -> dict[str, Any]:
    """Write lead_times.csv and lead_times.png of forecasts: the base's, refined ones, the corrector's alone.

    Args:
        run: where to.
        model: the operator.
        known: ``history`` and statistics ``x`` and ``y`` of its training.
        data: trajectories in the Well's format.
        count: lead times.
        picture: draw.

    Raises:
        ValueError: the trajectories are too short.
    """
    fields, _, spacing = read_trajectories(data)
    frames, x_stats, y_stats = known["history"], known["x"], known["y"]
    if fields.shape[1] < frames + count:
        raise ValueError(
            f"{data} has {fields.shape[1]} times; {count} lead times after {frames} frames need more"
        )

    def scored(field: Tensor) -> Tensor:
        return field if y_stats is None else y_stats.normalize(field)

    def step_of(operator: IRNO, steps: int) -> Callable[[Tensor], Tensor]:
        """In the units of the data: inputs and outputs are z-scores of statistics of their own."""

        def step(x: Tensor) -> Tensor:
            h = operator(x if x_stats is None else x_stats.normalize(x), K=steps, spacing=spacing)
            return h if y_stats is None else y_stats.denormalize(h)

        return step

    arms = {"base": (model, 0), "refined": (model, model.K)}
    if model.base is not None:
        arms["corrector_alone"] = (model.rebase(None), model.K)
    start = fields[:, :frames].flatten(1, 2).to(run.device)
    truths = [scored(fields[:, frames + t]) for t in range(count)]
    reports = {
        name: lead_time_report([scored(f.cpu()) for f in rollout(step_of(*arm), start, count)], truths)
        for name, arm in arms.items()
    }
    rows = [
        {"lead": float(t + 1)}
        | {f"{n}_vrmse": r.vrmse[t] for n, r in reports.items()}
        | {f"{n}_energy_{b}": r.energy[t][i] for n, r in reports.items() for i, b in enumerate(BANDS)}
        | {f"{n}_error_{b}": r.error[t][i] for n, r in reports.items() for i, b in enumerate(BANDS)}
        for t in range(count)
    ]
    write_table(run, "lead_times.csv", rows)
    if picture:
        with run.path("lead_times.png") as temporary:
            plots.lead_times(reports, temporary)
    return {f"lead_{n}_vrmse/{t + 1}": r.vrmse[t] for n, r in reports.items() for t in range(count)}


def write_table(run: Run, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as CSV."""
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
