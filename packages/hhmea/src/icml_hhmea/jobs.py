"""What `icml run` runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, resumable

if TYPE_CHECKING:
    from icml_hhmea.electrodes import ElectrodeArray
    from icml_hhmea.recordings import Recording


POSTERIOR, CHECKPOINT = "posterior.safetensors", "checkpoint.safetensors"


@resumable(may_change=("steps",))
def fit(
    *,
    run: Run,
    ei: Path,
    curves: Path | None = None,
    electrodes: Path | None = None,
    method: Literal["gd", "npe", "npe+refine"] = "gd",
    features: Literal["amp+thr", "full"] = "amp+thr",
    units: Literal["uV", "mV", "V"] | None = None,
    noise: float | None = None,
    npe: Path | None = None,
    simulations: int = 20_000,
    restarts: int = 8,
    steps: int | None = None,
    lr: float | None = None,
    picture: bool = True,
) -> dict[str, Any]:
    """Fit a model of one neuron to its electrical image and activation curves.

    Writes posterior.safetensors, parameters.csv, metrics.jsonl and the pictures cell.png, image.png,
    curves.png.

    Args:
        ei: .npz with ei [electrodes, samples], fs, and xy [electrodes, 2], noise, units where there are.
        curves: CSV with electrode,uA,trials,spikes; negative is cathodic.
        electrodes: CSV with electrode,x,y in µm, where the .npz has no xy.
        method: gradient descent, a neural posterior, or one that is refined.
        features: amplitudes and thresholds, or durations and delays too.
        units: of ei, where the file does not say or says wrong.
        noise: standard deviation of ei, µV; estimated by default.
        npe: a flow that hhmea.npe has trained for this array.
        simulations: for training a flow, where a method needs one and none is given.
        restarts: of the descent from the prior.
        steps: of the descent: 200 by default, 50 where draws are refined.
        lr: of the descent: 0.03 by default, 0.02 where draws are refined.
        picture: draw.
    """
    from dataclasses import replace

    from icml_hhmea import figures
    from icml_hhmea.descent import DescentOptions
    from icml_hhmea.fitting import FitProblem, NeuronFit
    from icml_hhmea.recordings import Recording
    from icml_hhmea.refinement import REFINE
    from icml_hhmea.user_files import read_curves, read_electrodes, read_image

    image = read_image(ei)
    known = [] if curves is None else read_curves(curves)
    if electrodes is not None:
        array: Any = read_electrodes(electrodes)
    elif image.xy is not None:
        array = image.xy
    else:
        raise ValueError(f"{ei} has no array xy; give --electrodes")
    recording = Recording.build(
        image.ei,
        image.fs,
        array,
        curves=known,
        units=units or image.units,  # type: ignore[arg-type]
        noise=image.noise if noise is None else noise,
    )
    given = {k: v for k, v in (("steps", steps), ("lr", lr)) if v is not None}
    options = DescentOptions(restarts=restarts, features=features, seed=run.seed, **given)  # type: ignore[arg-type]
    refine = replace(REFINE, **given)  # type: ignore[arg-type]
    problem = FitProblem(recording, options=options)
    flow = None if npe is None else _flow(npe, recording.electrodes)
    if flow is None and method != "gd":
        flow = _trained(run, recording, simulations)
    total = {"gd": options.steps + 1, "npe": 1, "npe+refine": refine.steps + 1}[method]
    with run.progress("fit", total=total) as bar:

        def report(step: int, loss: float) -> None:
            if step % 10 == 0:
                run.log(step, loss=loss)
            bar.advance(1, loss=loss)

        solver = NeuronFit(
            method,
            npe=flow,
            refine=refine,
            report=report,
            checkpoint=run.file(CHECKPOINT),
            resume=run.resumed,
            seed=run.seed,
        )
        found = solver.solve(problem)
    with run.path(POSTERIOR) as temporary:
        found.save(temporary)
    names = found.cell.bounds.names
    low, high = found.theta.min(0).values.tolist(), found.theta.max(0).values.tolist()
    rows = zip(
        names, found.best[0].tolist(), low, high, found.cell.bounds.low, found.cell.bounds.high, strict=True
    )
    _write(run, "parameters.csv", ("parameter", "best", "least", "largest", "bound_low", "bound_high"), rows)
    if picture:
        for name, draw in (
            ("cell.png", lambda path: figures.cell_on_array(found, path)),
            ("image.png", lambda path: figures.image_against_fit(found, path)),
            ("curves.png", lambda path: figures.activation_curves(found, known, path)),
        ):
            if name != "curves.png" or known:
                with run.path(name) as temporary:
                    draw(temporary)
    return {"loss": float(found.losses.min()), "effective_particles": found.effective, **found.diagnostics}


def predict(
    *, run: Run, posterior: Path, patterns: Path, timing: bool = True, picture: bool = True
) -> dict[str, Any]:
    """Predict what patterns of currents do to a fitted neuron; where outcomes are known, score the
    predictions.

    Writes predictions.csv (pattern, p, spike, threshold_scale, latency_ms, site) and outcomes.png.

    Args:
        posterior: what hhmea.fit wrote.
        patterns: CSV with pattern,electrode,uA and, where known, trials,spikes.
        timing: find latencies and where spikes begin.
        picture: draw.
    """
    import torch

    from icml_hhmea import figures
    from icml_hhmea.evaluation import scores
    from icml_hhmea.posterior import NeuronPosterior
    from icml_hhmea.user_files import read_patterns

    neuron = NeuronPosterior.load(posterior)
    given = read_patterns(patterns, len(neuron.electrodes))
    found = neuron.predict(given.patterns, timing=timing)
    level = found.level
    regions = [neuron.cell.regions[int(neuron.cell.region[k])] if k >= 0 else "" for k in found.site.tolist()]
    rows = zip(
        given.names,
        found.p.tolist(),
        found.spike.int().tolist(),
        level.exp().tolist(),
        found.latency.tolist(),
        regions,
        strict=True,
    )
    _write(run, "predictions.csv", ("pattern", "p", "spike", "threshold_scale", "latency_ms", "site"), rows)
    known = given.trials > 0
    summary: dict[str, Any] = {"patterns": len(given.names), "predicted_spikes": int(found.spike.sum())}
    summary["undecided"] = int(torch.isnan(found.p).sum())
    if known.any():
        mask = torch.from_numpy(known)
        outcome = torch.from_numpy(given.spikes[known] / given.trials[known])
        summary |= scores(found.p[mask], level[mask], outcome)
        if picture:
            with run.path("outcomes.png") as temporary:
                figures.outcomes(found.p[mask], level[mask], outcome > 0.5, temporary)
    return summary


def optimize_stimulus(
    *,
    run: Run,
    targets: list[Path],
    avoid: list[Path] | None = None,
    most: int = 3,
    uc_per_cm2: float = 100.0,
    area_um2: float = 78.54,
    total_ua: float = 100.0,
    steps: int = 30,
    picture: bool = True,
) -> dict[str, Any]:
    """Find currents that fire some fitted neurons and spare others.

    Writes pattern.csv (electrode, uA) and cell.png.

    Args:
        targets: posteriors of the neurons to fire.
        avoid: posteriors of the neurons to spare.
        most: electrodes used at once.
        uc_per_cm2: limit of charge a phase.
        area_um2: of an electrode.
        total_ua: limit of the sum of currents.
        steps: of the search.
        picture: draw.
    """
    from icml_hhmea import figures
    from icml_hhmea.posterior import NeuronPosterior
    from icml_hhmea.selective import optimize_stimulus as search
    from icml_hhmea.stimulus import ChargeLimit

    wanted = [NeuronPosterior.load(p) for p in targets]
    spared = [NeuronPosterior.load(p) for p in avoid or ()]
    limit = ChargeLimit(uc_per_cm2, area_um2, total_ua)
    found = search(wanted, spared, limit=limit, most=most, steps=steps, seed=run.seed)
    used = found.amplitudes.nonzero()[:, 0].tolist()
    _write(run, "pattern.csv", ("electrode", "uA"), [(e, float(found.amplitudes[e])) for e in used])
    if picture:
        with run.path("cell.png") as temporary:
            figures.cell_on_array(wanted[0], temporary, pattern=found.amplitudes)
    return {
        "electrodes": used,
        "p_targets": found.p_targets.tolist(),
        "p_avoid": found.p_avoid.tolist(),
        "selectivity": found.selectivity,
    }


def simulate(
    *,
    run: Run,
    swc: Path,
    current: float = 1.0,
    delay: float = 1.0,
    duration: float = 5.0,
    time: float = 20.0,
    dt: float = 0.025,
    max_len: float = 20.0,
    units: Literal["um", "nm", "auto"] = "auto",
    soma: Literal["neuron", "graph"] = "neuron",
    channels: Literal["squid", "rgc"] = "squid",
    picture: bool = True,
) -> dict[str, Any]:
    """Simulate a cell from an SWC file with a current clamp in its first compartment.

    Writes voltage.csv (ms, mV at the first and the last compartment) and voltage.png.

    Args:
        swc: the morphology.
        current: nA.
        delay: ms.
        duration: of the clamp, ms.
        time: of the simulation, ms.
        dt: ms.
        max_len: longest compartment, µm.
        units: of lengths in the file.
        soma: how somata are read: as NEURON does, or as the bare graph.
        channels: Hodgkin and Huxley's, or those of retinal ganglion cells.
        picture: draw.
    """
    import torch

    from icml_hhmea.cell import Cell
    from icml_hhmea.channels import retinal_ganglion, squid
    from icml_hhmea.simulation import simulate as run_cell
    from icml_hhmea.stimulus import IClamp

    table = {"na": 120.0, "k": 36.0, "leak": 0.3}
    if channels == "rgc":
        table = {"na": 150.0, "k": 90.0, "ca": 0.75, "kca": 0.17, "leak": 0.1}
    kinds = squid() if channels == "squid" else retinal_ganglion()
    cell = Cell.from_swc(
        swc, max_len=max_len, units=units, soma=soma, channels=kinds, conductances=table
    ).double()
    with torch.no_grad(), run.progress("simulation", total=1) as bar:
        sites = [0, cell.nodes - 1]
        found = run_cell(cell, None, IClamp(0, current, delay, duration), time, dt, record=sites)
        bar.advance(1)
    v = found.v[0]
    _write(run, "voltage.csv", ("ms", "first", "last"), zip(found.t.tolist(), *v.T.tolist(), strict=True))
    if picture:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 3), layout="constrained")
        axes = figure.subplots()
        axes.plot(found.t, v[:, 0], color="black", label="first compartment")
        axes.plot(found.t, v[:, 1], color="tab:blue", label="last compartment")
        axes.set(xlabel="ms", ylabel="mV")
        axes.legend(fontsize=8)
        with run.path("voltage.png") as temporary:
            figure.savefig(temporary, dpi=120)
    spikes = [float(x) for x in found.spikes[0] if x == x]
    return {"nodes": cell.nodes, "largest_mv": float(v.max()), "first_spike_ms": min(spikes, default=None)}


def npe(
    *,
    run: Run,
    electrodes: Path | None = None,
    rings: int = 4,
    pitch: float | None = None,
    noise: float = 2.0,
    count: int = 5,
    simulations: int = 20_000,
    epochs: int = 200,
    checks: int = 200,
    picture: bool = True,
) -> dict[str, Any]:
    """Train a neural posterior for all neurons under one array, and check its calibration.

    Writes npe.safetensors, calibration.csv and ranks.png.

    Args:
        electrodes: CSV with electrode,x,y in µm; a hexagonal array by default.
        rings: of the hexagonal array.
        pitch: of the array, µm; 30 for the hexagonal one, for others found from the places.
        noise: of images, µV.
        count: electrodes with thresholds.
        simulations: for training.
        epochs: at most.
        checks: further simulations, for calibration; 0 for none.
        picture: draw.
    """
    from icml_hhmea import figures
    from icml_hhmea.amortised import Simulator
    from icml_hhmea.calibration import calibrate
    from icml_hhmea.electrodes import ElectrodeArray
    from icml_hhmea.npe import AmortisedPosterior, NPEOptions
    from icml_hhmea.rgc import RGC
    from icml_hhmea.user_files import read_electrodes

    array = (
        ElectrodeArray.hexagon(rings, 30.0 if pitch is None else pitch)
        if electrodes is None
        else read_electrodes(electrodes, **({} if pitch is None else {"pitch": pitch}))
    )
    simulator = Simulator(RGC(), array, noise, count)
    total = simulations + checks
    with run.progress("simulations", total=total) as bar:
        done = 0

        def told(k: int, n: int) -> None:
            nonlocal done
            bar.advance(k - done)
            done = k

        theta, features = simulator.draw(total, run.seed, report=told)
    model = AmortisedPosterior(
        simulator.bounds, features.shape[1], NPEOptions(epochs=epochs, seed=run.seed), simulator.names
    )
    with run.progress("flow", total=epochs) as bar:

        def learned(epoch: int, value: float) -> None:
            run.log(epoch, negative_log_likelihood=value)
            bar.advance(1, loss=value)

        model.train(theta[:simulations], features[:simulations], report=learned)
    with run.path("npe.safetensors") as temporary:
        model.save(temporary)
    summary: dict[str, Any] = {"held_out": model.held_out, "epochs": len(model.history)}
    if checks >= 10:
        found = calibrate(model, theta[simulations:], features[simulations:], seed=run.seed)
        rows = zip(found.names, found.p.tolist(), found.coverage.tolist(), strict=True)
        _write(run, "calibration.csv", ("parameter", "p_uniform", "coverage_90"), rows)
        summary |= {"least_p": float(found.p.min()), "least_coverage": float(found.coverage.min())}
        if picture:
            with run.path("ranks.png") as temporary:
                figures.rank_histograms(found, 99, temporary)
    return summary


def cell(
    *, run: Run, patterns: int = 60, rings: int = 4, curves: int = 5, noise: float = 2.0
) -> dict[str, Any]:
    """Draw a hidden neuron of the synthetic retina and write what an experiment would measure of it.

    Writes ei.npz, curves.csv and patterns.csv, which hhmea.fit and hhmea.predict take.

    Args:
        patterns: of three electrodes, one trial each.
        rings: of the hexagonal array.
        curves: electrodes with activation curves.
        noise: of the image, µV.
    """
    import numpy as np

    from icml_hhmea.retina import RetinaOptions, hidden_neuron, triplets

    neuron = hidden_neuron(run.seed, RetinaOptions(rings=rings, curves=curves, noise=noise))
    recording = neuron.recording
    with run.path("ei.npz") as temporary:
        xy = recording.electrodes.xyz.numpy()
        np.savez(temporary, ei=recording.ei, fs=recording.fs, xy=xy, noise=noise, units="uV")
    rows = [
        (c.electrode, a, n, round(p * n))
        for c in neuron.curves
        for a, p, n in zip(c.amplitudes, c.p, c.trials or (), strict=True)
    ]
    _write(run, "curves.csv", ("electrode", "uA", "trials", "spikes"), rows)
    unseen = triplets(neuron, patterns, run.seed + 1)
    entries = [
        (k, e, float(unseen.patterns[k, e]), 1, int(unseen.fired[k]))
        for k in range(len(unseen.patterns))
        for e in unseen.patterns[k].nonzero()[:, 0].tolist()
    ]
    _write(run, "patterns.csv", ("pattern", "electrode", "uA", "trials", "spikes"), entries)
    return {
        "largest_trough_uv": float(-recording.ei.min()),
        "electrodes": list(neuron.chosen),
        "ceiling": unseen.ceiling,
    }


def _trained(run: Run, recording: Recording, simulations: int) -> Any:
    """A flow for the recording's array, kept in the run's directory for a fit that goes on."""
    from icml_hhmea.amortised import Simulator, train_amortised
    from icml_hhmea.recordings import observe
    from icml_hhmea.rgc import RGC

    file = run.file("npe.safetensors")
    if run.resumed and file.is_file():
        return _flow(file, recording.electrodes)
    observation = observe(recording)
    cathodic = int((observation.patterns.sum(1) < 0).sum())
    if not cathodic:
        raise ValueError("the amortised posterior needs cathodic thresholds; give --curves")
    simulator = Simulator(RGC(), recording.electrodes, observation.noise, min(5, cathodic))
    done = {"simulations": 0, "epochs": 0}
    with run.progress("training", total=simulations) as bar:

        def told(what: str, k: int, n: int) -> None:
            if what == "simulations":
                bar.advance(k - done[what])
            done[what] = k

        flow = train_amortised(simulator, simulations, seed=run.seed, report=told)
    with run.path("npe.safetensors") as temporary:
        flow.save(temporary)
    return flow


def _flow(path: Path, array: ElectrodeArray) -> Any:
    from icml_hhmea.amortised import Simulator
    from icml_hhmea.npe import AmortisedPosterior
    from icml_hhmea.rgc import RGC
    from icml_hhmea.stored import options_of

    count, options = options_of(path)
    simulator = Simulator(RGC(), array, count=count)
    return AmortisedPosterior(simulator.bounds, len(simulator.names), options, simulator.names).load(path)


def _write(run: Run, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
