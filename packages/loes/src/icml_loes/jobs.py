"""What `icml run` runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, resumable

if TYPE_CHECKING:
    from icml_loes.result import LoesResult

Mode = Literal["paper", "loo"]
TaskName = Literal["auto", "classification", "regression", "label_free"]


def select(
    *,
    run: Run,
    embeddings: Path,
    k: int = 4,
    task: TaskName = "auto",
    mode: Mode = "paper",
    n_cal: int | None = None,
    reg: float = 1e-3,
    alpha: float = 1.0,
    gamma: float = 0.5,
    eta: float = 0.1,
    shrink: bool = False,
    normalize_terms: bool = False,
    pca: bool = False,
    balanced: bool = False,
    triangles: str = "sample:200",
    picture: bool = True,
) -> dict[str, Any]:
    """Choose layers from a file of embeddings and targets.

    Writes layers.json (for loes.extract), selection.json (every term of every candidate), layers.csv and
    selection.png.

    Args:
        embeddings: .npz or .safetensors with E [examples, layers, dim] (or layer_0, layer_1, …) and y.
        k: layers to choose.
        task: auto decides by y; label_free does without.
        mode: paper, or loo for least leave-one-out error.
        n_cal: choose on a stratified sample of so many examples.
        reg: ridge.
        alpha: weight of isotropy.
        gamma: weight of redundancy.
        eta: weight of triangles.
        shrink: shrink the orthogonal complement by leave-one-out, so that it is never empty.
        normalize_terms: divide each term by its spread over the layers.
        pca: keep n / (2 k) principal columns of each layer.
        balanced: weigh classes inversely to their frequency.
        triangles: sample:200 or all.
        picture: draw.
    """
    from icml_loes.calibration import calibration_split
    from icml_loes.embedding_files import read_embeddings
    from icml_loes.selection import select_layers

    found = read_embeddings(embeddings)
    given, targets = found.embeddings, None if task == "label_free" else found.targets
    if n_cal is not None and targets is not None:
        chosen, _ = calibration_split(targets, n_cal, seed=run.seed)
        given = [v[chosen] for v in given] if isinstance(given, list) else given[chosen]
        targets = targets[chosen]
    with ExitStack() as stack:
        bars: list[Any] = []

        def advance(step: int) -> None:
            # Opened at the first layer: what is wrong with the input is said before a run begins.
            if not bars:
                bars.append(stack.enter_context(run.progress("choosing layers", total=k)))
            bars[0].advance(1)

        result = select_layers(
            given,
            targets,
            k,
            task=task,
            mode=mode,
            reg=reg,
            alpha=alpha,
            gamma=gamma,
            eta=eta,
            orth_reg="auto" if shrink else 1e-6,
            normalize_terms=normalize_terms,
            pca="auto" if pca else None,
            class_weight="balanced" if balanced else None,
            triangles=triangles,
            generator=run.seed,
            device=run.device,
            progress=advance,
        )
    return _write_result(run, result, picture)


@resumable
def select_model(
    *,
    run: Run,
    texts: Path,
    model: str = "smollm2",
    k: int = 4,
    mode: Mode = "paper",
    n_cal: int = 2000,
    pooling: Literal["auto", "cls", "mean", "last"] = "auto",
    max_length: int = 128,
    batch: int = 16,
    final_norm: bool = False,
    balanced: bool = False,
    picture: bool = True,
) -> dict[str, Any]:
    """Choose layers of a language model from labelled texts; states are collected in one pass.

    Writes embeddings.safetensors (E and labels of the calibration texts) beside what loes.select writes.
    Interrupted, it goes on from the chunks in the folder states.

    Args:
        texts: CSV with the columns text and label.
        model: minilm, smollm2, or hf:PATH of a folder.
        k: layers to choose.
        mode: paper, or loo for least leave-one-out error.
        n_cal: texts that choose, taken at random with classes in proportion.
        pooling: of tokens; auto follows the paper's rule.
        max_length: tokens of a text.
        batch: texts a batch.
        final_norm: offer the state after the final norm as one more layer.
        balanced: weigh classes inversely to their frequency.
        picture: draw.
    """
    from safetensors.torch import save_file

    from icml_loes.cached_states import text_model
    from icml_loes.calibration import calibration_split
    from icml_loes.model_selection import ModelProblem
    from icml_loes.selection import LayerSelection
    from icml_loes.text_files import read_texts

    written, labels = read_texts(texts)
    if len(written) > n_cal:
        chosen, _ = calibration_split(labels, n_cal, seed=run.seed)
        written, labels = [written[i] for i in chosen], labels[chosen]
    network, tokenizer = text_model(model)
    network.to(run.device)
    batches = [(written[i : i + batch], labels[i : i + batch]) for i in range(0, len(written), batch)]
    with run.progress("reading texts", total=len(written)) as bar:
        done = 0

        def advance(seen: int) -> None:
            nonlocal done
            bar.advance(seen - done)
            done = seen

        collect = {
            "tokenizer": tokenizer, "max_length": max_length, "final_norm": final_norm, "progress": advance,
            "cache": run.file("states"),
        }  # fmt: skip
        problem = ModelProblem(
            network, batches, pooling=pooling, n_cal=len(written), seed=run.seed, collect=collect
        )
        states = problem.collected
    from dataclasses import replace

    weight = "balanced" if balanced else None
    solver = LayerSelection(k=k, mode=mode, class_weight=weight, seed=run.seed)
    result = solver.solve(problem)  # type: ignore[arg-type]
    result = replace(result, dropped=list(states.dropped), pooling=states.pooling)
    labels_read: Any = states.targets
    with run.path("embeddings.safetensors") as temporary:
        import numpy as np
        import torch

        classes, numbers = np.unique(labels_read, return_inverse=True)
        tensors = {f"layer_{i}": v.contiguous() for i, v in enumerate(states.layers)}
        tensors["y"] = torch.tensor(numbers)
        save_file(tensors, str(temporary), {"classes": "\n".join(map(str, classes))})
    return {
        **_write_result(run, result, picture),
        "examples": len(states.layers[0]),
        "dropped": len(result.dropped),
    }


def extract(*, run: Run, layers: Path, embeddings: Path) -> dict[str, Any]:
    """Write the fused features of chosen layers, for any program.

    Writes features.npz with X [examples, k D], and y where the embeddings have it.

    Args:
        layers: layers.json, from loes.select.
        embeddings: .npz or .safetensors with E, as for loes.select.
    """
    import numpy as np

    from icml_loes.embedding_files import read_embeddings
    from icml_loes.fused_layers import load_layers

    fused = load_layers(layers)
    found = read_embeddings(embeddings)
    features = fused.transform(found.embeddings)
    arrays = {"X": features}
    if found.targets is not None:
        arrays["y"] = found.targets
    with run.path("features.npz") as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)
    return {"examples": features.shape[0], "features": features.shape[1], "layers": list(fused.selected)}


def profile(*, run: Run, embeddings: Path, picture: bool = True) -> dict[str, Any]:
    """Show at which depth each label lives: left-out scores, isotropy, entropy, dimension and redundancy of
    layers.

    Writes profile.csv, redundancy.csv and profile.png.

    Args:
        embeddings: .npz or .safetensors with E; y and every other array of as many examples is a label.
        picture: draw.
    """
    from icml_loes.embedding_files import read_embeddings
    from icml_loes.profile import layer_profile

    found = read_embeddings(embeddings)
    labels = {**({} if found.targets is None else {"y": found.targets}), **found.labels}
    shown = layer_profile(found.embeddings, labels)
    rows = shown.table()
    _write(run, "profile.csv", list(rows[0]), ([row[c] for c in rows[0]] for row in rows))
    _write(run, "redundancy.csv", shown.names, shown.redundancy)
    if picture:
        from icml_loes.figures import draw_profile

        with run.path("profile.png") as temporary:
            draw_profile(shown, temporary)
    return {name: {"best_layer": shown.best(name), "depth": shown.depth(name)} for name in labels}


@resumable
def finetune(
    *,
    run: Run,
    embeddings: Path,
    layers: Path | None = None,
    k: int = 4,
    modality: Literal["text", "vision", "audio"] = "text",
    fusion: Literal["concat", "mean", "sum", "learnable"] = "concat",
    georeg: float = 0.1,
    epochs: int | None = None,
    batch: int | None = None,
    lr: float | None = None,
    validation: float = 0.2,
    proj_dim: int = 256,
    optimizer: str = "adamw",
    balanced: bool = False,
    picture: bool = True,
) -> dict[str, Any]:
    """Train the paper's head on chosen layers, with GeoReg.

    Writes head.safetensors, training.csv, training.png and checkpoint.safetensors, from which --resume goes
    on.

    Args:
        embeddings: .npz or .safetensors with E and y, as for loes.select.
        layers: layers.json, from loes.select; chosen here from the training examples where it is not given.
        k: layers to choose then.
        modality: whose schedule; text, vision or audio.
        fusion: of the projected layers.
        georeg: weight of the regulariser.
        epochs: instead of the schedule's.
        batch: instead of the schedule's.
        lr: instead of the schedule's.
        validation: share of the examples that choose the epoch.
        proj_dim: width of each projection.
        optimizer: adamw, another of torch's, or plugin.component.
        balanced: weigh classes inversely to their frequency.
        picture: draw.
    """
    import numpy as np
    import torch
    from safetensors.torch import save_file

    from icml_loes.calibration import calibration_split
    from icml_loes.embedding_files import read_embeddings
    from icml_loes.finetuning import FineTuning, FineTuningOptions
    from icml_loes.fused_layers import layer_arrays, load_layers
    from icml_loes.head import LoesHead
    from icml_loes.selection import select_layers

    found = read_embeddings(embeddings)
    if found.targets is None or found.targets.ndim != 1 or found.targets.dtype.kind == "f":
        raise ValueError(f"{embeddings} needs y with one class an example to train a head on")
    if not 0 < validation < 1:
        raise ValueError(f"--validation {validation}; expected a share between 0 and 1")
    arrays = layer_arrays(found.embeddings)
    classes, numbers = np.unique(found.targets, return_inverse=True)
    train, held = calibration_split(numbers, max(1, round((1 - validation) * len(numbers))), seed=run.seed)
    if layers is not None:
        selected = list(load_layers(layers).selected)
    else:
        chosen = select_layers([v[train] for v in arrays], numbers[train], k, generator=run.seed)
        chosen.save(run.file("layers.json"))
        selected = chosen.selected
    values = [torch.tensor(arrays[i], dtype=torch.float32) for i in selected]
    head = LoesHead([v.shape[1] for v in values], len(classes), proj_dim, fusion, seed=run.seed).to(
        run.device
    )
    given = {"epochs": epochs, "batch": batch, "lr": lr}
    changes = {name: value for name, value in given.items() if value is not None}
    options = FineTuningOptions.preset(
        modality, georeg=georeg, optimizer=optimizer, balanced=balanced, **changes
    )
    training = FineTuning(
        head,
        [v[train] for v in values],
        numbers[train],
        ([v[held] for v in values], numbers[held]) if len(held) else None,
        options,
        seed=run.seed,
    )
    checkpoint = run.file("checkpoint.safetensors")
    with run.progress("training", total=options.epochs) as bar:

        def shown(row: dict[str, float]) -> None:
            run.log(int(row["epoch"]), **{key: v for key, v in row.items() if key != "epoch"})
            bar.advance(1, **{key: v for key, v in row.items() if key in ("loss", "accuracy")})

        resume = run.resumed and checkpoint.is_file()
        done = training.fit(checkpoint=checkpoint, resume=resume, progress=shown)
    with run.path("head.safetensors") as temporary:
        save_file({key: v.cpu().contiguous() for key, v in head.state_dict().items()}, str(temporary))
    _write(run, "training.csv", list(done.rows[0]), ([row[c] for c in done.rows[0]] for row in done.rows))
    if picture:
        from icml_loes.figures import draw_training

        with run.path("training.png") as temporary:
            draw_training(done.rows, done.best_epoch, temporary)
    best = {key: v for key, v in done.rows[done.best_epoch].items() if key != "epoch"}
    return {"layers": selected, "classes": [c.item() for c in classes], "best_epoch": done.best_epoch, **best}


def _write_result(run: Run, result: LoesResult, picture: bool) -> dict[str, Any]:
    import json

    with run.path("layers.json") as temporary:
        result.save(temporary)
    with run.path("selection.json") as temporary:
        temporary.write_text(json.dumps(result.as_dict(), indent=1) + "\n", encoding="utf-8")
    rows = result.table()
    _write(run, "layers.csv", list(rows[0]), ([row[c] for c in rows[0]] for row in rows))
    if picture:
        from icml_loes.figures import draw_selection

        with run.path("selection.png") as temporary:
            draw_selection(result, temporary)
    return {
        "selected": result.selected,
        "names": [result.names[i] for i in result.selected],
        "exhausted": result.exhausted,
        **result.metrics,
    }


def _write(run: Run, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
