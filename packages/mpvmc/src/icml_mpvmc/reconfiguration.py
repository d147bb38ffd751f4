"""Stochastic reconfiguration: (S + λ) d = g, with S the covariance of the log-derivatives.

With rows A = √w (O - Ō), real and imaginary parts one below the other, and r = √w (E - Ē) likewise, S = AᵀA
and g = 2 Aᵀr. Three ways give the same d: the matrix S itself, conjugate gradients that never form it, and
the Gram matrix of the samples, d = 2 Aᵀ (A Aᵀ + λ)⁻¹ r, for more parameters than samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from jaxtyping import Float, Int8, Num
from torch import Tensor

from icml_mpvmc.models import RBM

Method = Literal["auto", "dense", "cg", "gram", "pinv"]
METHODS = ("auto", "dense", "cg", "gram", "pinv")
LARGEST_MATRIX = 5000
"""Parameters, or samples where they are fewer, up to which a matrix is formed and factored."""
CG_TOLERANCE = 1e-8
"""Relative residual at which conjugate gradients stop."""
RAISES = 3
"""How often the shift grows tenfold before eigenvalues are cut."""
CUT = 1e-10
"""Eigenvalues below this share of the largest one are left out."""
SMOOTH_CUT = 1e-6
"""Of the smooth pseudo-inverse: eigenvalues below this share of the largest fade out as (s/cut)⁶."""


@dataclass
class Step:
    """A direction, and what happened on the way.

    Attributes:
        direction: d, float64.
        method: which way was taken.
        shift: λ in the end.
        iterations: of conjugate gradients.
        events: failures and what was done about them.
    """

    direction: Float[Tensor, " parameters"]
    method: str
    shift: float
    iterations: int = 0
    events: list[str] = field(default_factory=list)


def centred_rows(
    O: Num[Tensor, "samples parameters"],
    e: Num[Tensor, " samples"],
    weights: Float[Tensor, " samples"] | None = None,
) -> tuple[Float[Tensor, "rows parameters"], Float[Tensor, " rows"]]:
    """A and r in float64; twice as many rows where O or e is complex."""
    w = (
        torch.full((len(O),), 1.0 / len(O), dtype=torch.float64, device=O.device)
        if weights is None
        else weights
    )
    is_complex = O.is_complex() or e.is_complex()
    kind = torch.complex128 if is_complex else torch.float64
    O, e = O.to(kind), e.to(kind)
    root = w.sqrt().to(kind)
    O = root[:, None] * (O - (w.to(kind) @ O))
    e = root * (e - (w.to(kind) * e).sum())
    if not is_complex:
        return O, e
    return torch.cat([O.real, O.imag]), torch.cat([e.real, e.imag])


def gradient(A: Float[Tensor, "rows parameters"], r: Float[Tensor, " rows"]) -> Float[Tensor, " parameters"]:
    """g = 2 Re ⟨conj(O - Ō) (E - Ē)⟩ = 2 Aᵀ r."""
    return 2.0 * (A.T @ r)


def reconfigure(
    A: Float[Tensor, "rows parameters"],
    r: Float[Tensor, " rows"],
    shift: float = 1e-3,
    method: Method = "auto",
) -> Step:
    """Solve (S + λ) d = g.

    Args:
        A: centred rows.
        r: centred energies.
        shift: λ.
        method: ``"dense"``, ``"cg"``, ``"gram"``, ``"pinv"`` (smooth pseudo-inverse, without λ), or
            ``"auto"``: the Gram matrix where there are fewer rows than parameters, else S, up to a side of
            5000; conjugate gradients beyond.

    Raises:
        ValueError: an unknown method, or a shift that is not positive.
    """
    if method not in METHODS:
        raise ValueError(f"method={method!r}; expected one of {', '.join(METHODS)}")
    if not shift > 0:
        raise ValueError(f"shift={shift}; S is singular without a positive one")
    rows, parameters = A.shape
    if method == "auto":
        small = min(rows, parameters) <= LARGEST_MATRIX
        method = "cg" if not small else "gram" if rows < parameters else "dense"
    if method == "cg":
        return _conjugate_gradients(A, gradient(A, r), shift)
    if method == "gram":
        step = solve_shifted(A @ A.T, r, shift)
        return Step(2.0 * (A.T @ step.direction), "gram", step.shift, events=step.events)
    S = A.T @ A
    if method == "pinv":
        return Step(smooth_pseudo_inverse(S, gradient(A, r)), "pinv", 0.0)
    return solve_shifted(S, gradient(A, r), shift)


def reconfigure_machine(
    machine: RBM,
    x: Int8[Tensor, "samples spins"],
    e: Float[Tensor, " samples"],
    weights: Float[Tensor, " samples"],
    shift: float = 1e-3,
) -> tuple[Step, Float[Tensor, " parameters"]]:
    """The same step by the Gram matrix for a Boltzmann machine, whose rows O are never formed; and g.

    With t = tanh θ, O = (x ⊗ t, t, x), so that O Oᵀ = (x xᵀ) ∘ (t tᵀ) + t tᵀ + x xᵀ costs samples² (spins +
    hidden) instead of samples² · spins · hidden.
    """
    with torch.no_grad():
        w, root = weights.double(), weights.double().sqrt()
        weight, bias = machine.weight.double(), machine.hidden_bias.double()
        spins = x.double()
        t = torch.tanh(spins @ weight + bias)
        of_spins, of_units = spins @ spins.T, t @ t.T
        gram = torch.addcmul(of_units, of_spins, of_units)
        if machine.visible_bias is not None:
            gram += of_spins
        row = gram @ w
        one = torch.ones_like(row)
        # - row_i - row_k + w·row, in one pass
        gram.addmm_(torch.stack([row, one], 1), torch.stack([one, row - w @ row]), alpha=-1.0)
        gram.mul_(root[:, None]).mul_(root[None, :])

        def transposed(v: Tensor) -> Tensor:
            """(O - Ō)ᵀ v."""
            v = v - w * v.sum()
            parts = [(spins.T @ (v[:, None] * t)).flatten(), t.T @ v]
            return torch.cat([*parts, *([] if machine.visible_bias is None else [spins.T @ v])])

        r = root * (e.double() - (w * e.double()).sum())
        step = solve_shifted(gram, r, shift)
        direction = 2.0 * transposed(root * step.direction)
        return Step(direction, "gram", step.shift, events=step.events), 2.0 * transposed(root * r)


def solve_shifted(S: Float[Tensor, "n n"], g: Float[Tensor, " n"], shift: float) -> Step:
    """(S + λ) d = g by Cholesky's factor; a matrix that rounding made indefinite does not end the run.

    Where the factor fails or d is not finite, λ grows tenfold up to three times; then eigenvalues below 1e-10
    of the largest are left out. Every such event is reported. Entries that are not finite give d = 0.
    """
    S, g = S.double(), g.double()
    events: list[str] = []
    if not (bool(torch.isfinite(S.sum())) and bool(torch.isfinite(g.sum()))):
        return Step(torch.zeros_like(g), "none", shift, events=["S or g is not finite: no step was made"])
    for _ in range(RAISES + 1):
        shifted = S.clone()
        shifted.diagonal().add_(shift)
        factor, failed = torch.linalg.cholesky_ex(shifted)  # reads one triangle
        if not int(failed):
            d = torch.cholesky_solve(g[:, None], factor)[:, 0]
            if bool(torch.isfinite(d).all()):
                return Step(d, "dense", shift, events=events)
        events.append(f"S + {shift:.1e} is not positive definite: the shift grows tenfold")
        shift *= 10.0
    values, vectors = torch.linalg.eigh(S)
    kept = values > CUT * values.abs().max()
    events[-1] = (
        f"S + {shift / 10:.1e} is not positive definite: {int((~kept).sum())} eigenvalues are left out"
    )
    inverse = torch.where(kept, 1.0 / torch.where(kept, values, 1.0), 0.0)
    return Step(vectors @ (inverse * (vectors.T @ g)), "cut", shift / 10, events=events)


def smooth_pseudo_inverse(S: Float[Tensor, "n n"], g: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """Σ v vᵀg / s / (1 + (cut / s)⁶): small eigenvalues s fade out."""
    values, vectors = torch.linalg.eigh(0.5 * (S + S.T).double())
    cut = SMOOTH_CUT * values.abs().max().clamp(min=1e-300)
    safe = torch.where(values > 1e-3 * cut, values, 1.0)
    inverse = torch.where(values > 1e-3 * cut, 1.0 / (safe * (1.0 + (cut / safe) ** 6)), 0.0)
    return vectors @ (inverse * (vectors.T @ g.double()))


def _conjugate_gradients(A: Tensor, g: Tensor, shift: float) -> Step:
    """Hestenes and Stiefel's method on v ↦ Aᵀ(A v) + λ v; stops at a relative residual of 1e-8."""
    d = torch.zeros_like(g)
    residual, direction = g.clone(), g.clone()
    square = residual @ residual
    goal = CG_TOLERANCE**2 * square
    iterations, limit = 0, 10 * len(g) + 100
    while float(square) > float(goal) and iterations < limit:
        image = A.T @ (A @ direction) + shift * direction
        length = square / (direction @ image)
        d = d + length * direction
        residual = residual - length * image
        new = residual @ residual
        direction = residual + (new / square) * direction
        square, iterations = new, iterations + 1
        if not math.isfinite(float(square)):
            return Step(
                torch.zeros_like(g), "none", shift, iterations, ["S or g is not finite: no step was made"]
            )
    events = (
        [] if float(square) <= float(goal) else [f"conjugate gradients stopped after {iterations} iterations"]
    )
    return Step(d, "cg", shift, iterations, events)
