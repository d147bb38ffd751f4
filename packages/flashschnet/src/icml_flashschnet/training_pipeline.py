"""From all-atom simulations to a trained model: what the jobs that make data and models are made of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from icml_core import Run

from icml_flashschnet.beads import N_TYPES
from icml_flashschnet.checkpoint import save_model
from icml_flashschnet.force_matching import ForceMatcher, TrainingOptions
from icml_flashschnet.mapping import ForceMap
from icml_flashschnet.plots import plot_history
from icml_flashschnet.prior import CGPrior
from icml_flashschnet.prior_fit import PriorParameters, fit_prior
from icml_flashschnet.reference_data import (
    PROTEIN_SAVE_EVERY,
    ReferenceData,
    Solvent,
    peptide_library,
    reference_set,
    save_reference,
)
from icml_flashschnet.run_reports import write_rows
from icml_flashschnet.schnet import SchNetConfig
from icml_flashschnet.simulation import LangevinSimulator

if TYPE_CHECKING:
    from icml_flashschnet.jobs import Kernel, Network, Peptides, Training

DATA = "data"
TRAINING = "training.safetensors"
PRIOR_STEPS = 1000
"""Steps that the prior alone must survive before a network is trained on top of it."""
PRIOR_REPLICAS = 2


def generate(
    run: Run,
    peptides: Peptides,
    proteins: Sequence[tuple[Path, int]],
    solvent: Solvent,
    force_map: ForceMap,
) -> dict[str, Any]:
    """Simulate peptides and proteins, and write one data set each into the run's folder `data`.

    Args:
        run: the run; data sets that are there already are kept.
        peptides: which, and for how long.
        proteins: structure files with their numbers of steps.
        solvent: generalised-Born model.
        force_map: how forces are mapped.

    Returns:
        Numbers of molecules and frames, and the mean square of the forces under each map.
    """
    sequences = (
        peptide_library(peptides.permutations, peptides.length, seed=run.seed)
        if peptides.permutations
        else []
    )
    work: list[tuple[str, dict[str, Any]]] = [
        (
            f"peptide-{number:02d}-{sequence}",
            {"source": sequence, "starts": peptides.starts, "steps": peptides.steps,
             "save_every": peptides.save_every, "seed": run.seed * 1000 + number},
        )
        for number, sequence in enumerate(sequences)
    ]  # fmt: skip
    for path, steps in proteins:
        if not path.is_file():
            raise FileNotFoundError(f"no structure file {path}")
        options: dict[str, Any] = {"source": path, "starts": 1, "steps": steps, "seed": run.seed}
        options["save_every"] = PROTEIN_SAVE_EVERY
        work.append((f"protein-{path.name.partition('.')[0]}", options))
    if not work:
        raise ValueError("nothing to simulate: give peptides.permutations above 0, or proteins")
    frames = 0
    variances: list[dict[str, float]] = []
    total = sum(int(options["starts"]) * int(options["steps"]) for _, options in work)
    with run.progress("all-atom simulations", total=total) as bar:
        for name, options in work:
            path = run.file(f"{DATA}/{name}.npz")
            if not path.exists():
                made = reference_set(**options, solvent=solvent, mode=force_map, advance=bar.advance)
                save_reference(made, path)
                run.log(len(variances), frames=len(made.coords), **made.variance)
                frames += len(made.coords)
                variances.append(made.variance)
            else:
                bar.advance(options["starts"] * options["steps"])
    means = (
        {f"force_variance_{m}": float(np.mean([v[m] for v in variances])) for m in variances[0]}
        if variances
        else {}
    )
    return {"molecules": len(work), "new_frames": frames, **means}


def train(
    run: Run,
    sets: Sequence[tuple[Path, ReferenceData]],
    network: Network,
    training: Training,
    every: int,
    prior: bool,
    temperature: float,
    min_count: int,
    kernel: Kernel,
) -> dict[str, Any]:
    """Fit the prior, try it, and train the network on the forces that it leaves; writes the model.

    Args:
        run: the run; a training that was interrupted goes on.
        sets: data sets with their files.
        network: sizes.
        training: options.
        every: train on every n-th frame.
        prior: whether there is a prior.
        temperature: of the data, K.
        min_count: of `fit_prior`.
        kernel: code of the convolution.

    Raises:
        ValueError: `every` below 1.
        RuntimeError: the prior alone blows up.
    """
    if every < 1:
        raise ValueError(f"every must be at least 1, got {every}")
    config = SchNetConfig(n_types=N_TYPES, **vars(network))
    options = TrainingOptions(**{**vars(training), "patience": training.patience or None})
    data = [loaded for _, loaded in sets]
    parameters = None
    if prior:
        parameters = fit_prior(
            [(d.molecule(), d.coords) for d in data], temperature=temperature, min_count=min_count
        )
        with run.path("prior.txt") as temporary:
            temporary.write_text(parameters.table() + "\n", encoding="utf-8")
        if not run.resumed:
            _try_prior(run, data, parameters, temperature)
    priors = None if parameters is None else [CGPrior(d.molecule(), parameters) for d in data]
    matcher = ForceMatcher(config, priors, options=options, seed=run.seed, device=run.device, kernel=kernel)
    with run.progress("force matching", total=training.epochs) as bar:

        def report(line: dict[str, float]) -> None:
            bar.advance(1, training=line["train_rmse"], held_out=line["validation_rmse"])
            run.log(
                int(line["epoch"]), train_rmse=line["train_rmse"], validation_rmse=line["validation_rmse"]
            )

        try:
            matcher.fit(
                [d.coords[::every] for d in data], [d.forces[::every] for d in data], [d.types for d in data],
                checkpoint=run.file(TRAINING), resume=run.resumed, callback=report,
            )  # fmt: skip
        except KeyboardInterrupt:
            _save(run, matcher, parameters, sets, temperature)
            raise
    _save(run, matcher, parameters, sets, temperature)
    errors = matcher.errors_
    plot_history(matcher.history_, run.file("history.png"), prior=errors.prior)
    return {
        "systems": len(data),
        "frames": sum(len(d.coords[::every]) for d in data),
        "epochs": len(matcher.history_),
        "held_out_force_rmse": errors.model,
        "prior_force_rmse": errors.prior,
        "force_rms": errors.forces,
        "parameters": sum(p.numel() for p in matcher.network_.parameters()),
        "model": "model.safetensors",
    }


def _save(
    run: Run,
    matcher: ForceMatcher,
    parameters: PriorParameters | None,
    sets: Sequence[tuple[Path, ReferenceData]],
    temperature: float,
) -> None:
    """The best model so far, and the history."""
    if not matcher.history_:
        return
    best = min(line["validation_rmse"] for line in matcher.history_)
    notes = {
        "data": ", ".join(path.stem for path, _ in sets),
        "temperature_K": f"{temperature:g}",
        "held_out_network_rmse": f"{best:.6g} kcal/mol/Å",
        "epochs": str(len(matcher.history_)),
    }
    save_model(run.file("model.safetensors"), matcher.network_, prior=parameters, notes=notes)
    write_rows(run, "history.csv", [dict(line) for line in matcher.history_])


def _try_prior(
    run: Run, data: Sequence[ReferenceData], parameters: PriorParameters, temperature: float
) -> None:
    """Run the prior alone on the smallest and the largest molecule: a bad fit shows here, not weeks later."""
    by_size = sorted(data, key=lambda d: len(d.types))
    for chosen in {id(d): d for d in (by_size[0], by_size[-1])}.values():
        molecule = chosen.molecule()
        simulator = LangevinSimulator(
            CGPrior(molecule, parameters),
            molecule,
            PRIOR_REPLICAS,
            temperature,
            seed=run.seed,
            device=run.device,
        )
        trajectory = simulator.run(PRIOR_STEPS, save_every=PRIOR_STEPS)
        if simulator.blown:
            raise RuntimeError(
                f"the prior alone does not hold {chosen.sequence} together: {simulator.blown[0]}"
            )
        run.log(0, prior_only_energy=float(torch.as_tensor(trajectory.energy).mean()))
