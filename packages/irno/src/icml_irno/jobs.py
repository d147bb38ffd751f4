"""What `icml run` runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, resumable

if TYPE_CHECKING:
    from icml_irno.field_files import FieldFile
    from icml_irno.operator import IRNO
    from icml_irno.statistics import Statistics

RefinerName = Literal["unet", "resnet", "convnext", "fno"]
Mode = Literal["detached", "unroll", "curriculum"]


@resumable
def train_base(
    *,
    run: Run,
    data: Path,
    history: int = 1,
    lead: int = 1,
    modes: int = 16,
    hidden_channels: int = 32,
    layers: int = 4,
    epochs: int = 100,
    batch: int = 16,
    lr: float = 1e-3,
    holdout: float = 0.2,
    picture: bool = True,
) -> dict[str, Any]:
    """Train an FNO on pairs of fields, to be refined afterwards.

    Writes base.safetensors (for irno.train), training.csv, training.png and checkpoint.safetensors, from
    which --resume goes on.

    Args:
        data: .npz, .safetensors or .nc with x and y, or .h5 in the Well's format.
        history: frames of the input, for trajectories.
        lead: frames from the last of the input to the target, for trajectories.
        modes: Fourier modes along each axis.
        hidden_channels: width.
        layers: Fourier layers.
        epochs: passes over the data.
        batch: samples a step.
        lr: learning rate.
        holdout: share of the samples, the last ones, that validates.
        picture: draw.
    """
    from icml_irno.base_training import fit_base
    from icml_irno.checkpoints import save_fno
    from icml_irno.field_files import read_fields
    from icml_irno.fno import FNO
    from icml_irno.reports import write_table

    fields = read_fields(data, history=history, lead=lead)
    if fields.x.shape[2:] != fields.y.shape[2:]:
        raise ValueError(
            f"x has the grid {list(fields.x.shape[2:])} and y {list(fields.y.shape[2:])}; an FNO keeps "
            "the grid"
        )
    (train, valid), x_stats, y_stats = _normalized(fields, holdout, None)
    model = FNO(
        (modes,) * (fields.x.dim() - 2),
        fields.x.shape[1],
        fields.y.shape[1],
        hidden_channels,
        layers,
        seed=run.seed,
    ).to(run.device)
    checkpoint = run.file("checkpoint.safetensors")
    with run.progress("training the base", total=epochs) as bar:

        def shown(row: dict[str, float]) -> None:
            run.log(int(row["epoch"]), **{k: v for k, v in row.items() if k != "epoch"})
            bar.advance(1, **{k: v for k, v in row.items() if k in ("loss", "vrmse")})

        resume = run.resumed and checkpoint.is_file()
        options: dict[str, Any] = {"epochs": epochs, "batch": batch, "lr": lr, "seed": run.seed}
        rows = fit_base(
            model, train, valid, checkpoint=checkpoint, resume=resume, callbacks=[shown], **options
        )
    with run.path("base.safetensors") as temporary:
        save_fno(model, temporary, x=x_stats, y=y_stats, history=fields.history)
    write_table(run, "training.csv", rows)
    if picture:
        from icml_irno import plots

        with run.path("training.png") as temporary:
            plots.training(rows, len(rows) - 1, temporary)
    return {"vrmse": rows[-1].get("vrmse"), "parameters": sum(p.numel() for p in model.parameters())}


@resumable
def train(
    *,
    run: Run,
    data: Path,
    base: str = "none",
    mode: Mode = "detached",
    alpha: float | None = None,
    steps: int | None = None,
    beta_spec: float | None = None,
    beta_fp: float = 0.01,
    epochs: int = 150,
    batch: int = 16,
    lr: float = 3e-4,
    refiner: RefinerName = "unet",
    base_channels: int = 16,
    depth: int = 4,
    padding: list[str] | None = None,
    shift: bool = False,
    residual_scale: bool = False,
    expected_base: float | None = None,
    history: int = 1,
    lead: int = 1,
    holdout: float = 0.2,
    amp: bool = False,
    picture: bool = True,
) -> dict[str, Any]:
    """Train a corrector around a frozen base.

    Writes irno.safetensors (for irno.operator and irno.spectrum), training.csv, steps.csv (errors at every
    step, the base alone first, the corrector alone last), training.png, refinement.png, sample.png and
    checkpoint.safetensors, from which --resume goes on.

    Args:
        data: .npz, .safetensors or .nc with x and y, or .h5 in the Well's format.
        base: base.safetensors of irno.fno; well:MODEL:FOLDER of a model of the_well.benchmark; interpolate,
            for a coarse x; none trains the corrector alone.
        mode: detached, unroll (the paper's) or curriculum.
        alpha: step size; the mode's by default.
        steps: K; the mode's by default.
        beta_spec: weight of the spectral loss; the mode's by default.
        beta_fp: weight of the fixed-point loss.
        epochs: passes over the data.
        batch: samples a step.
        lr: learning rate.
        refiner: unet, resnet, convnext or fno.
        base_channels: width of the corrector.
        depth: halvings of the U-Net, blocks of the others.
        padding: circular, zeros or reflect; one for all axes or one for each.
        shift: roll batches along circular axes at random.
        residual_scale: scale corrections by the standard deviation of the base's error, channel by channel.
        expected_base: VRMSE that the base is said to reach; more than 10 % off ends the run before training.
        history: frames of the input, for trajectories.
        lead: frames from the last of the input to the target, for trajectories.
        holdout: share of the samples, the last ones, that validates.
        amp: bfloat16.
        picture: draw.
    """
    from icml_irno.backbones import make_refiner
    from icml_irno.checkpoints import save_irno
    from icml_irno.field_files import read_fields
    from icml_irno.operator import IRNO
    from icml_irno.reports import write_steps, write_table
    from icml_irno.training import Training, TrainingOptions

    network, known, resize = _base(base, run.device)
    if known and known.get("history", 1) > history:
        history = int(known["history"])
    fields = read_fields(data, history=history, lead=lead)
    (train_set, valid), x_stats, y_stats = _normalized(fields, holdout, known)
    dims = fields.y.dim() - 2
    options: dict[str, Any] = {"base_channels": base_channels, "depth": depth, "dims": dims, "seed": run.seed}
    if padding is not None and refiner != "fno":
        options["padding"] = padding[0] if len(padding) == 1 else padding
    corrector = make_refiner(refiner, fields.x.shape[1], fields.y.shape[1], **options).to(run.device)
    if network == "interpolate":
        network = _interpolation(tuple(fields.y.shape[2:]))
    model = IRNO(network, corrector, alpha, steps, resize=resize, resample="spectral")
    chosen = TrainingOptions(
        mode=mode, beta_spec=beta_spec, beta_fp=beta_fp, epochs=epochs, batch=batch, lr=lr,
        augment="shift" if shift else None, residual_scale=residual_scale, amp=amp,
    )  # fmt: skip
    training = Training(
        model, train_set, valid, chosen, expected_base=expected_base, spacing=fields.spacing, seed=run.seed
    )
    checkpoint = run.file("checkpoint.safetensors")
    with run.progress("training the corrector", total=epochs) as bar:

        def shown(row: dict[str, float]) -> None:
            run.log(int(row["epoch"]), **{k: v for k, v in row.items() if k != "epoch"})
            bar.advance(1, **{k: v for k, v in row.items() if k in ("loss", "vrmse")})

        resume = run.resumed and checkpoint.is_file()
        done = training.fit(checkpoint=checkpoint, resume=resume, callbacks=[shown])
    with run.path("irno.safetensors") as temporary:
        save_irno(model, temporary, x=x_stats, y=y_stats, history=history)
    write_table(run, "training.csv", done.rows)
    figures = write_steps(run, model, valid, picture, spacing=fields.spacing)
    if picture:
        from icml_irno import plots

        with run.path("training.png") as temporary:
            plots.training(done.rows, done.best_epoch, temporary, done.base_vrmse)
    return {
        "base_vrmse": figures["vrmse/0"],
        "vrmse": figures[f"vrmse/{model.K}"],
        "best_epoch": done.best_epoch,
        "headroom": done.headroom,
        "alpha": model.alpha,
        "K": model.K,
    }


def refine(
    *,
    run: Run,
    model: Path,
    data: Path,
    base: str = "stored",
    steps: int | None = None,
    tol: float = 1e-3,
    max_iter: int | None = None,
    anderson: int = 0,
    lead: int = 1,
    picture: bool = True,
) -> dict[str, Any]:
    """Refine the base's outputs for the inputs of a file, until they converge; targets are not needed.

    Writes refined.npz (h, the base's h0, and how many steps each sample took), in the units of the data and
    NaN where the file's mask has no point; and sample.png where the file has targets.

    Args:
        model: irno.safetensors, from irno.train.
        data: as for irno.train.
        base: stored in the model, or as for irno.train.
        steps: take exactly so many, instead of stopping at the tolerance.
        tol: relative length of the last step.
        max_iter: most steps; 2 K by default.
        anderson: earlier iterates that a step is mixed from, such as 3.
        lead: frames to the target, for trajectories.
        picture: draw.
    """
    import numpy as np
    import torch

    operator, known, fields = _loaded(model, data, base, lead, run.device, targets=False)
    batch, spacing = 16, fields.spacing
    refined: list[Any] = []
    first: list[Any] = []
    calls: list[int] = []
    statuses: list[str] = []
    with run.progress("refining", total=len(fields.x)) as bar:
        for begin in range(0, len(fields.x), batch):
            x = fields.x[begin : begin + batch].to(run.device)
            x = x if known["x"] is None else known["x"].normalize(x)
            mask = None if fields.mask is None else fields.mask[begin : begin + batch].to(run.device)
            with torch.no_grad():
                first.append(operator(x, K=0, mask=mask))
                if steps is None:
                    h, info = operator.solve(x, tol, max_iter, anderson, mask, spacing)
                    calls += info.calls.tolist()
                    statuses += info.statuses
                else:
                    h = operator(x, steps, mask, spacing)
                    calls += [steps] * len(x)
                    statuses += ["max_iter"] * len(x)
            refined.append(h)
            bar.advance(len(x))
    h, h0 = (torch.cat(parts).cpu() for parts in (refined, first))
    if known["y"] is not None:
        h, h0 = known["y"].denormalize(h), known["y"].denormalize(h0)
    with run.path("refined.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, h=h.numpy(), h0=h0.numpy(), calls=np.array(calls))
    if picture and h.shape == fields.y.shape:
        from icml_irno import plots

        with run.path("sample.png") as temporary:
            plots.sample(h0[0], h[0], fields.y[0], temporary)
    return {
        "samples": len(h),
        "converged": sum(s == "converged" for s in statuses),
        "diverged": sum(s == "diverged" for s in statuses),
        "mean_calls": float(np.mean(calls)),
    }


def spectrum(
    *,
    run: Run,
    model: Path,
    data: Path,
    base: str = "stored",
    steps: int | None = None,
    lead_times: int = 0,
    certificate: int = 16,
    lead: int = 1,
    picture: bool = True,
) -> dict[str, Any]:
    """Errors of a model's base and of every refinement step, by band; contraction; and bands over lead time.

    Writes steps.csv, spectrum.json and refinement.png; with lead times also lead_times.csv and
    lead_times.png. The base alone and the corrector alone, started from 0, stand beside both together.

    Args:
        model: irno.safetensors, from irno.train.
        data: as for irno.train; lead times need .h5 in the Well's format.
        base: stored in the model, or as for irno.train.
        steps: go so far; 3 K by default, since what is trained to K may drift beyond.
        lead_times: forecast so many frames, refined at each.
        certificate: samples whose contraction factor is measured; 0 for none.
        lead: frames to the target, for trajectories.
        picture: draw.
    """
    from icml_core.run import write_json

    from icml_irno.reports import write_lead_times, write_steps

    operator, known, fields = _loaded(model, data, base, lead, run.device)
    x = fields.x if known["x"] is None else known["x"].normalize(fields.x)
    y = fields.y if known["y"] is None else known["y"].normalize(fields.y)
    pairs = (x, y) if fields.mask is None else (x, y, fields.mask)
    figures = write_steps(run, operator, pairs, picture, steps, certificate, fields.spacing)
    if lead_times:
        figures |= write_lead_times(run, operator, known, data, lead_times, picture)
    write_json(run.file("spectrum.json"), figures)
    return figures


def _base(base: str, device: str) -> tuple[Any, dict[str, Any] | None, str | None]:
    """The network, what is known of its data, and whether x must be brought to its grid."""
    from icml_irno.checkpoints import load_fno, load_well_base

    if base == "none":
        return None, None, None
    if base == "interpolate":
        return "interpolate", None, "bilinear"
    if base.startswith("well:"):
        parts = base.split(":", 2)
        if len(parts) != 3:
            raise ValueError(
                f"--base {base}; expected well:MODEL:FOLDER, such as well:FNO:models/active_matter"
            )
        return load_well_base(Path(parts[2]), parts[1]).to(device), None, None
    model, known = load_fno(Path(base), device)
    return model, known, None


def _interpolation(shape: tuple[int, ...]) -> Any:
    import torch

    mode = {1: "linear", 2: "bicubic", 3: "trilinear"}[len(shape)]

    def interpolate(x: Any) -> Any:
        return torch.nn.functional.interpolate(x, size=shape, mode=mode, align_corners=False)

    return interpolate


def _loaded(
    model: Path, data: Path, base: str, lead: int, device: str, targets: bool = True
) -> tuple[IRNO, dict[str, Any], FieldFile]:
    from icml_irno.checkpoints import load_irno
    from icml_irno.field_files import read_fields

    network, _, resize = (None, None, None) if base == "stored" else _base(base, device)
    shape = None
    if network == "interpolate":
        operator, _ = load_irno(model, None, device)
        shape = operator.shape
        network = _interpolation(shape or ())
    operator, known = load_irno(model, network, device)
    operator.resize = operator.resize or resize
    fields = read_fields(data, history=known["history"], lead=lead, targets=targets)
    expected = operator.refiner.in_channels
    if fields.x.shape[1] != expected:
        raise ValueError(f"{data} has {fields.x.shape[1]} input channels; {model} was trained on {expected}")
    return operator, known, fields


def _normalized(
    fields: FieldFile, holdout: float, known: Mapping[str, Any] | None
) -> tuple[tuple[Any, Any], Statistics, Statistics]:
    """(train, valid) as z-scores, by the base's own statistics where known, else by the training part's."""
    import torch

    from icml_irno.statistics import Statistics

    if not 0 < holdout < 1:
        raise ValueError(f"--holdout {holdout}; expected a share between 0 and 1")
    n = len(fields.x)
    count = n - max(1, round(holdout * n))
    if count < 1:
        raise ValueError(f"{n} samples leave none to train on with --holdout {holdout}")
    mask = None if fields.mask is None else fields.mask[:count]
    same_grid = fields.x.shape[2:] == fields.y.shape[2:]
    x_stats = (known or {}).get("x") or Statistics.of(fields.x[:count], mask if same_grid else None)
    y_stats = (known or {}).get("y") or Statistics.of(fields.y[:count], mask)
    x, y = x_stats.normalize(fields.x), y_stats.normalize(fields.y)
    parts = []
    for rows in (torch.arange(count), torch.arange(count, n)):
        part = (x[rows], y[rows])
        parts.append(part if fields.mask is None else (*part, fields.mask[rows]))
    return (parts[0], parts[1]), x_stats, y_stats
