"""What `icml run` runs."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from icml_core import Run, resumable

Backend = Literal["auto", "slice", "cirr", "feast", "ssm"]
FamilyName = Literal["plate", "piezo", "waveguide", "graph"]


@resumable
def eigs(
    *,
    run: Run,
    matrices: Path,
    k: int | None = None,
    low: float | None = None,
    high: float | None = None,
    near: float | None = None,
    predictor: Path | None = None,
    fields: Path | None = None,
    backend: Backend = "auto",
    tol: float = 1e-8,
    certify: bool = True,
    workers: int = 1,
    max_bytes: float | None = None,
    warm: bool = True,
    picture: bool = True,
) -> dict[str, Any]:
    """Certified eigenpairs of one pencil, or of a folder of them.

    Writes NAME.npz (eigenvalues, eigenvectors), instances.csv (counts, residuals, seconds), and for one
    pencil
    eigenvalues.csv and spectrum.png, for a folder sweep.png. Interrupted, it goes on after the last instance.

    Args:
        matrices: a file NAME_A.mtx, .mtx.gz or .npz with NAME_B beside it, or a folder of such pairs.
        k: the k smallest; with --near the k nearest to it.
        low: lower end of an interval [low, high).
        high: its upper end; alone, everything below.
        near: a point.
        predictor: predictor.safetensors, from deepcontour.fit.
        fields: npz with fields [n, c, H, W] in the order of the names.
        backend: auto, slice, cirr, feast or ssm.
        tol: largest residual.
        certify: count by inertia, and look on until nothing is missing.
        workers: slices at the same time.
        max_bytes: refuse factors that are predicted to be larger.
        warm: the eigenvalues of the last pencil predict those of the next (for --k without --near), and its
            order of elimination serves again (slices, pencils of the same size).
        picture: draw.
    """
    import json

    import numpy as np

    from icml_deepcontour.eigensolver import eigs as solve
    from icml_deepcontour.figures import draw_spectrum, draw_sweep
    from icml_deepcontour.matrix_files import find_pairs, read_fields, read_matrix
    from icml_deepcontour.predictor import Predictor

    which = _which(k, low, high, near)
    pairs = find_pairs(matrices) if matrices.is_dir() else _one_pair(matrices)
    model = None if predictor is None else Predictor.load(predictor)
    if (model is None) != (fields is None):
        raise ValueError("--predictor and --fields go together")
    inputs = None if fields is None else read_fields(fields)["fields"]
    if inputs is not None and len(inputs) != len(pairs):
        raise ValueError(f"{fields} holds {len(inputs)} fields for {len(pairs)} pencils")
    done_file = run.file("instances.jsonl")
    rows = (
        [json.loads(line) for line in done_file.read_text().splitlines()]
        if run.resumed and done_file.is_file()
        else []
    )
    finished = {row["name"] for row in rows}
    previous: dict[str, Any] = {"order": None, "n": -1, "values": None}
    pencils = ((pair, read_matrix(pair.a), None if pair.b is None else read_matrix(pair.b)) for pair in pairs)
    first = next(pencils)  # what is wrong with the files is said before a run begins

    def remaining() -> Iterable[Any]:
        yield first
        yield from pencils

    with run.progress("solving", total=len(pairs)) as bar:
        for at, (pair, A, B) in enumerate(remaining()):
            if pair.name in finished:
                bar.advance(1)
                continue
            options: dict[str, Any] = {}
            if model is not None and inputs is not None:
                options = {"predictor": model, "fields": inputs[at]}
            elif warm and which[0] == "SA" and previous["n"] == A.shape[0]:
                options = {"predictor": previous["values"]}
            if warm and previous["order"] is not None and previous["n"] == A.shape[0]:
                options["ordering"] = previous["order"]
            values, vectors, stats = solve(
                A, B, which, backend=backend, tol=tol, certify=certify, workers=workers, max_bytes=max_bytes,
                random_state=run.seed, return_stats=True, **options,
            )  # fmt: skip
            previous = {"order": stats.ordering, "n": A.shape[0], "values": values}
            with run.path(f"{pair.name}.npz") as temporary:
                np.savez(temporary, eigenvalues=values, eigenvectors=vectors)
            row = {
                "name": pair.name,
                "rows": A.shape[0],
                "eigenvalues": len(values),
                "certified": bool(stats.count is not None and stats.count.exact),
                "residual": float(stats.residuals.max(initial=0.0)),
                "orthogonality": stats.orthogonality,
                "backend": stats.backend,
                "infinite": stats.infinite,
                "factorizations": stats.factorizations,
                "solves": stats.solves,
                "seconds": stats.seconds["total"],
            }
            rows.append(row)
            with run.path("instances.jsonl") as temporary:
                temporary.write_text("".join(json.dumps(r) + "\n" for r in rows), encoding="utf-8")
            bar.advance(1, seconds=row["seconds"])
    _write(run, "instances.csv", list(rows[0]), ([row[c] for c in rows[0]] for row in rows))
    if len(pairs) == 1 and not finished:
        table = ([i + 1, v, r] for i, (v, r) in enumerate(zip(values, stats.residuals, strict=True)))
        _write(run, "eigenvalues.csv", ["index", "eigenvalue", "residual"], table)
        if picture and len(values):
            with run.path("spectrum.png") as temporary:
                draw_spectrum(values, stats, temporary)
    elif picture:
        with run.path("sweep.png") as temporary:
            draw_sweep(rows, temporary)
    return {
        "pencils": len(rows),
        "eigenvalues": sum(row["eigenvalues"] for row in rows),
        "certified": all(row["certified"] for row in rows),
        "residual": max(row["residual"] for row in rows),
        "seconds": sum(row["seconds"] for row in rows),
    }


@resumable
def fit(
    *,
    run: Run,
    data: Path | None = None,
    family: FamilyName = "plate",
    count: int = 200,
    grid: int = 30,
    k: int = 40,
    width: int = 32,
    modes: int = 12,
    layers: int = 4,
    epochs: int = 300,
    batch: int = 16,
    lr: float = 1e-3,
    picture: bool = True,
) -> dict[str, Any]:
    """Train a predictor of eigenvalues, and calibrate its errors.

    Writes predictor.safetensors, training.csv, training.png, errors.png, and for a simulated family data.npz.

    Args:
        data: npz with fields [n, c, H, W] or [n, features], eigenvalues [n, M], and perhaps groups [n];
            without it
            a family is simulated and solved.
        family: plate, piezo, waveguide or graph.
        count: instances of the family.
        grid: points along an edge; a graph has grid^2 points.
        k: eigenvalues of each instance.
        width: channels of the network.
        modes: Fourier modes.
        layers: of the network.
        epochs: of training.
        batch: instances a step.
        lr: step length to begin with.
        picture: draw.
    """
    import numpy as np

    from icml_deepcontour.figures import draw_errors, draw_training
    from icml_deepcontour.matrix_files import read_fields
    from icml_deepcontour.predictor import Predictor
    from icml_deepcontour.training import FitOptions

    options = FitOptions(width=width, modes=modes, layers=layers, epochs=epochs, batch=batch, lr=lr)
    if data is not None:
        found = read_fields(data)
        if "eigenvalues" not in found:
            raise ValueError(f"{data} holds no array called eigenvalues")
    elif run.resumed and run.file("data.npz").is_file():
        found = read_fields(run.file("data.npz"))
    else:
        if count < 3 or k < 1:
            raise ValueError(f"--count {count} --k {k}; expected at least 3 instances and 1 eigenvalue")
        found = _simulated(run, family, count, grid, k)
        with run.path("data.npz") as temporary:
            np.savez(temporary, **found)
    model = Predictor(options, seed=run.seed, device=run.device)
    checkpoint = run.file("checkpoint.safetensors")
    with run.progress("training", total=epochs) as bar:

        def shown(row: dict[str, float]) -> None:
            run.log(int(row["epoch"]), loss=row["loss"], validation=row["validation"])
            bar.advance(1, loss=row["loss"], validation=row["validation"])

        model.fit(
            found["fields"],
            found["eigenvalues"],
            groups=found.get("groups"),
            checkpoint=checkpoint,
            resume=run.resumed and checkpoint.is_file(),
            progress=shown,
        )
    with run.path("predictor.safetensors") as temporary:
        model.save(temporary)
    rows = model.history_
    _write(run, "training.csv", list(rows[0]), ([row[c] for c in rows[0]] for row in rows))
    if picture:
        held = model.split_.test if len(model.split_.test) else model.split_.calibration
        predicted, q95 = model.predict(np.asarray(found["fields"])[held])
        with run.path("training.png") as temporary:
            draw_training(rows, temporary)
        with run.path("errors.png") as temporary:
            draw_errors(np.asarray(found["eigenvalues"])[held], predicted, q95, temporary)
    return {"instances": len(found["fields"]), "epochs": len(rows), **model.test_error_}


def contours(
    *,
    run: Run,
    eigenvalues: Path,
    max_per: int = 32,
    min_per: int = 4,
    picture: bool = True,
) -> dict[str, Any]:
    """Place contours around predicted eigenvalues.

    Writes contours.csv and contours.png.

    Args:
        eigenvalues: a text file with one a line, real or complex (1+2j).
        max_per: most in a contour.
        min_per: fewest.
        picture: draw.
    """
    import numpy as np

    from icml_deepcontour.density import kde_contours
    from icml_deepcontour.figures import draw_contours

    try:
        values = np.loadtxt(eigenvalues, dtype=complex, ndmin=1, comments="#").ravel()
    except (ValueError, OSError) as error:
        raise ValueError(f"{eigenvalues}: expected one number a line: {error}") from error
    values = values.real if (values.imag == 0).all() else values
    found = kde_contours(values, max_per=max_per, min_per=min_per)
    table = ([c.center.real, complex(c.center).imag, c.radius, c.aspect, c.angle, c.expected] for c in found)
    _write(
        run, "contours.csv", ["center_real", "center_imag", "radius", "aspect", "angle", "expected"], table
    )
    if picture:
        with run.path("contours.png") as temporary:
            draw_contours(values, found, temporary)
    return {"contours": len(found), "largest": max(c.expected for c in found), "predictions": len(values)}


def certify(
    *,
    run: Run,
    matrices: Path,
    low: float | None = None,
    high: float | None = None,
    eigenvalues: Path | None = None,
    max_bytes: float | None = None,
) -> dict[str, Any]:
    """Count the eigenvalues in [low, high) by inertia, without computing one.

    Writes count.csv.

    Args:
        matrices: a file NAME_A.mtx, .mtx.gz or .npz with NAME_B beside it, or a folder of such pairs.
        low: lower end; everything below --high without it.
        high: upper end.
        eigenvalues: npz with eigenvalues, from deepcontour.eigs or another solver: what it missed is counted.
        max_bytes: refuse factors that are predicted to be larger.
    """
    import math

    import numpy as np

    from icml_deepcontour.inertia import certify as count_eigenvalues
    from icml_deepcontour.matrix_files import find_pairs, read_matrix

    if low is None and high is None:
        raise ValueError("give --low, --high or both")
    given = None
    if eigenvalues is not None:
        try:
            with np.load(eigenvalues, allow_pickle=False) as file:
                given = file["eigenvalues"]
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{eigenvalues}: expected an npz with eigenvalues: {error}") from error
    pairs = find_pairs(matrices) if matrices.is_dir() else _one_pair(matrices)
    if given is not None and len(pairs) > 1:
        raise ValueError("--eigenvalues belongs to one pencil; give its file")
    a, b = -math.inf if low is None else low, math.inf if high is None else high
    rows = []
    for pair in pairs:
        A, B = read_matrix(pair.a), None if pair.b is None else read_matrix(pair.b)
        found = count_eigenvalues(A, B, a, b, eigenvalues=given, max_bytes=max_bytes)
        rows.append(
            [pair.name, A.shape[0], found.n, found.exact, found.missed, found.duplicates, found.reason]
        )
    _write(run, "count.csv", ["name", "rows", "count", "exact", "missed", "duplicates", "reason"], rows)
    return {
        "count": sum(row[2] for row in rows),
        "exact": all(row[3] for row in rows),
        "missed": sum(row[4] for row in rows),
    }


def _which(k: int | None, low: float | None, high: float | None, near: float | None) -> tuple[Any, ...]:
    if near is not None:
        if low is not None or high is not None:
            raise ValueError("--near goes with --k, not with --low or --high")
        return ("nearest", near, 6 if k is None else k)
    if high is not None:
        if k is not None:
            raise ValueError("give --k, or --low and --high, not both")
        return ("below", high) if low is None else ("range", low, high)
    if low is not None:
        raise ValueError("--low needs --high")
    return ("SA", 6 if k is None else k)


def _one_pair(path: Path) -> list[Any]:
    """The pair that a file NAME_A belongs to, or the file alone with B = I."""
    from icml_deepcontour.matrix_files import SUFFIXES, MatrixPair

    if not path.is_file():
        raise FileNotFoundError(f"no matrix {path}")
    stem = path.name
    for suffix in SUFFIXES:
        if path.name.endswith(suffix):
            stem = path.name.removesuffix(suffix)
            break
    name = stem.removesuffix("_A")
    beside = None
    if stem == "A" or stem.endswith("_A"):
        for suffix in SUFFIXES:
            candidate = path.with_name(stem[:-1] + "B" + suffix)
            if candidate.is_file():
                beside = candidate
                break
    return [MatrixPair(name, path, beside)]


def _simulated(run: Run, family: str, count: int, grid: int, k: int) -> dict[str, Any]:
    """Fields and eigenvalues of a family that is made and solved here."""
    import numpy as np

    from icml_deepcontour import datasets
    from icml_deepcontour.eigensolver import eigs as solve

    makers = {
        "plate": lambda seed: datasets.plate(grid, seed),
        "piezo": lambda seed: datasets.piezo(grid, seed),
        "waveguide": lambda seed: datasets.waveguide(grid, seed),
        "graph": lambda seed: datasets.graph_laplacian(grid**2, seed),
    }
    inputs, found = [], []
    last: Any = None
    with run.progress("solving instances", total=count) as bar:
        for instance in datasets.family(makers[family], count, run.seed):
            values, _ = solve(instance.A, instance.B, ("SA", k), predictor=last, certify=True)
            last = values
            inputs.append(instance.fields)
            found.append(values)
            bar.advance(1)
    return {"fields": np.array(inputs, dtype=np.float32), "eigenvalues": np.array(found)}


def _write(run: Run, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with run.path(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream)
        writer.writerow(header)
        writer.writerows(rows)
