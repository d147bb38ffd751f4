"""What `icml run` runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run, resumable

if TYPE_CHECKING:
    from torch import Tensor


def sso(
    *,
    run: Run,
    steps: int = 200,
    lr: float = 0.02,
    radius_scale: float = 2.0,
    width: int = 64,
    solver: Literal["krylov", "bisection", "none"] = "krylov",
) -> dict[str, Any]:
    """Fit a small teacher network with SSO, and follow norms, multipliers and matrix signs.

    Writes metrics.jsonl (loss, largest sigma/R, largest |h|, matrix signs of each step) and
    weights.safetensors.

    Args:
        steps: Optimizer steps.
        lr: Learning rate.
        radius_scale: c of the radius R = c sqrt(d_out / d_in).
        width: Of the hidden layers.
        solver: Of the tangent multiplier; none is MuonSphere.
    """
    return _fit(run, steps, lr, radius_scale, width, solver)


def muonsphere(
    *, run: Run, steps: int = 200, lr: float = 0.02, radius_scale: float = 2.0, width: int = 64
) -> dict[str, Any]:
    """Fit a small teacher network with MuonSphere, and follow the norms.

    Writes what the job of sso.sso writes.

    Args:
        steps: Optimizer steps.
        lr: Learning rate.
        radius_scale: c of the radius R = c sqrt(d_out / d_in).
        width: Of the hidden layers.
    """
    return _fit(run, steps, lr, radius_scale, width, "none")


def _fit(run: Run, steps: int, lr: float, radius_scale: float, width: int, solver: str) -> dict[str, Any]:
    import torch
    from safetensors.torch import save_file

    from icml_sso.optimizer import SSO
    from icml_sso.spectral_init import spectral_mup_init_
    from icml_sso.teacher import teacher_task

    if steps < 1:
        raise ValueError(f"--steps {steps}; at least one is needed")
    model, batches = teacher_task(width, run.seed, run.device)
    generator = torch.Generator(run.device).manual_seed(run.seed)
    spectral_mup_init_(model, radius_scale, generator=generator)
    optimizer = SSO(model, lr=lr, radius_scale=radius_scale, solver=solver)
    loss = torch.zeros(())
    with run.progress("fitting", total=steps) as bar:
        for step in range(steps):
            x, y = batches(step)
            optimizer.zero_grad()
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            rows = {k: v for k, v in optimizer.stats().items() if k != "coverage"}
            figures = {
                "loss": float(loss.detach()),
                "largest sigma/R": max(max(r["sigma/R"]) for r in rows.values()),
                "largest |h|": max(max(r["|h|"]) for r in rows.values()),
                "msign calls": sum(sum(r["msign_calls"]) for r in rows.values()),
            }
            run.log(step, **figures)
            bar.advance(1, loss=figures["loss"])
    optimizer.retract_()
    with run.path("weights.safetensors") as temporary:
        save_file({k: v.detach().cpu().contiguous() for k, v in model.state_dict().items()}, str(temporary))
    return {"loss": float(loss.detach()), **optimizer.coverage()}


@resumable(may_change=("measure_every", "spectra_every", "evaluate_every", "checkpoint_every", "recompute"))
def pretrain(
    *,
    run: Run,
    recipe: str = "tiny",
    optimizer: str = "sso",
    corpus: Path | None = None,
    validation: Path | None = None,
    dtype: str = "auto",
    vocab_size: int | None = None,
    context: int | None = None,
    lr: float | None = None,
    steps: int | None = None,
    batch: int | None = None,
    micro_batch: int = 0,
    warmup: int | None = None,
    clip: float = 1.0,
    radius_scale: float = 1.0,
    weight_decay: float = 0.1,
    precision: Literal["recipe", "float32", "bfloat16"] = "recipe",
    recompute: bool = False,
    measure_every: int = 1,
    spectra_every: int | None = None,
    evaluate_every: int = 0,
    checkpoint_every: int = 0,
) -> dict[str, Any]:
    """Pre-train a decoder, and record loss, spectral norms, activations and load of experts at each step.

    Writes record.csv, training.png, health.json and checkpoint.safetensors; Ctrl-C leaves a checkpoint, and
    --resume goes on from it bit for bit.

    Args:
        recipe: tiny, tiny-moe, tiny-deep, small-25m, dense-1.7b, moe-8b-a1b or deepnet-200.
        optimizer: sso, muonsphere, muon, adamw, or plugin.component of an installed plug-in.
        corpus: .bin of tokens (raw, or Megatron's with an .idx), a folder with train.bin and val.bin, or
            text; by default Python's standard library.
        validation: .bin of held-out tokens.
        dtype: integer type of a raw .bin: auto, uint8, uint16, uint32, int32 or int64.
        vocab_size: tokens of the model, instead of the recipe's.
        context: tokens of a window, instead of the recipe's.
        lr: highest learning rate, instead of the recipe's.
        steps: instead of the recipe's.
        batch: windows a step, instead of the recipe's.
        micro_batch: windows in memory at once; 0 means the whole batch.
        warmup: steps of the linear warm-up, instead of the recipe's.
        clip: norm to which gradients are clipped; 0 means never.
        radius_scale: c in R = c sqrt(d_out / d_in); the paper's best is 2.
        weight_decay: of the AdamW groups, and of muon's matrices.
        precision: in which matrices are multiplied.
        recompute: compute activations again in the backward pass instead of keeping them.
        measure_every: steps between measurements of activations; 0 means never.
        spectra_every: steps between singular value decompositions of all matrices; 0 means never; by default
            20, and 500 where the model is 512 wide or wider.
        evaluate_every: steps between validations; 0 means at the end only.
        checkpoint_every: steps between checkpoints; 0 means at the end and on Ctrl-C only.
    """
    from icml_sso import pretraining_run

    return pretraining_run.pretrain(
        run,
        recipe=recipe,
        optimizer=optimizer,
        corpus=corpus,
        validation=validation,
        dtype=dtype,
        vocab_size=vocab_size,
        context=context,
        lr=lr,
        steps=steps,
        batch=batch,
        micro_batch=micro_batch,
        warmup=warmup,
        clip=clip,
        radius_scale=radius_scale,
        weight_decay=weight_decay,
        precision=precision,
        recompute=recompute,
        measure_every=measure_every,
        spectra_every=spectra_every,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
    )


def msign(
    *,
    run: Run,
    matrix: Path,
    steps: int = 8,
    dtype: Literal["bfloat16", "float16", "float32", "float64"] = "float32",
) -> dict[str, Any]:
    """Compute the polar factor of a matrix, or of a stack of matrices.

    Writes factor.npy.

    Args:
        matrix: A .npy file of numbers, (rows, columns) or (..., rows, columns).
        steps: Newton-Schulz steps.
        dtype: Of the arithmetic.
    """
    import numpy as np
    import torch

    from icml_sso.matrix_sign import MatrixSign

    problem = _read_matrix(matrix)
    found = MatrixSign(steps, "auto", getattr(torch, dtype)).solve(problem)
    gram = (
        found.factor @ found.factor.mT
        if problem.shape[-2] <= problem.shape[-1]
        else (found.factor.mT @ found.factor)
    )
    error = float((gram - torch.eye(gram.shape[-1], dtype=gram.dtype)).abs().max())
    with run.path("factor.npy") as temporary, temporary.open("wb") as file:
        np.save(file, found.factor.numpy())
    return {"shape": list(problem.shape), "largest entry of Phi Phi^T - I": error}


def tangent_lambda(
    *,
    run: Run,
    momentum: Path,
    weights: Path,
    solver: Literal["krylov", "bisection"] = "krylov",
    tol: float = 2e-4,
    dtype: Literal["bfloat16", "float16", "float32", "float64"] = "float32",
) -> dict[str, Any]:
    """Find the multiplier that makes the steepest direction tangent to the sphere through given weights.

    Writes direction.npy.

    Args:
        momentum: A .npy file, (rows, columns).
        weights: A .npy file of the same shape; its top singular vectors define the tangent plane.
        solver: Krylov (one to three matrix signs) or the paper's bisection.
        tol: Of |h|.
        dtype: Of the matrix signs.
    """
    import numpy as np
    import torch

    from icml_sso.tangent_multiplier import tangent_lambda as solve

    m, w = _read_matrix(momentum), _read_matrix(weights)
    if m.dim() != 2 or m.shape != w.shape:
        raise ValueError(
            f"momentum has shape {list(m.shape)} and weights {list(w.shape)}; expected one matrix each"
        )
    left, _, right = torch.linalg.svd(w, full_matrices=False)
    found = solve(m, left[:, 0], right[0], solver=solver, tol=tol, msign_dtype=getattr(torch, dtype))
    with run.path("direction.npy") as temporary, temporary.open("wb") as file:
        np.save(file, found.phi.numpy())
    return {
        "lambda": found.lam,
        "residual": found.residual,
        "msign_calls": found.calls,
        "failed": found.failed,
    }


def _read_matrix(path: Path) -> Tensor:
    """A matrix from a .npy file, never unpickled.

    Raises:
        ValueError: no readable array of real numbers.
    """
    import numpy as np
    import torch

    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, EOFError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as .npy: {error}") from error
    if (
        not isinstance(array, np.ndarray)
        or array.dtype.kind not in "fiu"
        or array.ndim < 2
        or array.size == 0
    ):
        raise ValueError(f"{path} holds no matrix of real numbers; expected (..., rows, columns)")
    return torch.from_numpy(np.array(array, dtype=np.float64 if array.dtype == np.float64 else np.float32))
