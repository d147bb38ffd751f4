"""What `icml run` runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from icml_core import Run

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
