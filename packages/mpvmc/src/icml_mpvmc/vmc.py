"""Variational Monte Carlo with each part in a precision of its own (the policy LPS of arXiv 2601.20782).

W̃ = cast(W);  x ← Metropolis chains of |ψ_W̃|² in low precision, kept between iterations
E(x) = Σ_x' ⟨x|H|x'⟩ ψ(x')/ψ(x);  g = 2 Re⟨conj(O - Ō)(E - Ē)⟩   with W in full precision
(S + λ) d = g;  W ← W - lr d
"""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from icml_core.checkpoint import load_state, save_state
from torch import nn

from icml_mpvmc import bounds
from icml_mpvmc.chains import estimate
from icml_mpvmc.derivatives import log_derivatives, refuse_complex, trained_parameters
from icml_mpvmc.hamiltonian import Hamiltonian, conserves
from icml_mpvmc.local_energy import CHUNK, MAX_BYTES, local_energies
from icml_mpvmc.metropolis import Metropolis
from icml_mpvmc.models import RBM
from icml_mpvmc.policy import EVERY, next_precision, safety_check
from icml_mpvmc.precision import DTYPES, ladder, precision_name
from icml_mpvmc.reconfiguration import (
    LARGEST_MATRIX,
    METHODS,
    Method,
    Step,
    centred_rows,
    gradient,
    reconfigure,
    reconfigure_machine,
)

KIND = "icml-mpvmc-vmc"


@dataclass
class History:
    """What each iteration gave; all lists have one entry an iteration, ``events`` as many as there were.

    Attributes:
        energy: mean local energy.
        err: its standard error.
        variance: of the local energies; 0 for an eigenstate.
        sigma: standard deviation of δ on the samples.
        bound: largest bias of the energy that σ allows, ‖E - Ē‖∞ σ; 0 where averages are corrected.
        acceptance: of proposals.
        tau: correlation time of local energies, in draws.
        r_hat: split R̂ of local energies.
        proposals: made in all chains together.
        used: samples that the averages are made of.
        t_sample, t_eloc, t_solve: seconds.
        dtype: precision of sampling.
        events: what was escalated, regularised or left out, with its iteration.
    """

    energy: list[float] = field(default_factory=list)
    err: list[float] = field(default_factory=list)
    variance: list[float] = field(default_factory=list)
    sigma: list[float] = field(default_factory=list)
    bound: list[float] = field(default_factory=list)
    acceptance: list[float] = field(default_factory=list)
    tau: list[float] = field(default_factory=list)
    r_hat: list[float] = field(default_factory=list)
    proposals: list[int] = field(default_factory=list)
    used: list[int] = field(default_factory=list)
    t_sample: list[float] = field(default_factory=list)
    t_eloc: list[float] = field(default_factory=list)
    t_solve: list[float] = field(default_factory=list)
    dtype: list[str] = field(default_factory=list)
    events: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.energy)

    def rows(self) -> list[dict[str, Any]]:
        """One mapping an iteration, for tables."""
        return [self.row(k) for k in range(len(self))]

    def row(self, k: int) -> dict[str, Any]:
        """What iteration k gave."""
        names = [f.name for f in fields(self) if f.name != "events"]
        return {"iteration": range(len(self))[k], **{n: getattr(self, n)[k] for n in names}}

    def last(self, count: int = 20) -> tuple[float, float]:
        """Mean energy of the last iterations, and its error from their spread and correlation time.

        Weights of 1/error² would pull the mean down: low energies come with small variances.
        """
        energy = np.array(self.energy[-count:])
        if len(energy) < 2:
            return (float(energy[0]), float(self.err[-1])) if len(energy) else (float("nan"), float("nan"))
        found = estimate(energy, 1)
        return float(np.real(found.mean)), found.error


class VMC:
    """Minimises the energy of a wavefunction.

    Args:
        H: a Hermitian operator.
        model: a module that gives log ψ; its parameters are changed.
        sampler: whose model this is.
        lr: learning rate.
        solver: ``"sr"`` (stochastic reconfiguration) or ``"adam"``.
        diag_shift: λ of S.
        eloc_dtype: precision of local energies; below f64 runs of the paper diverge for deep networks.
        gradient_dtype: precision of log-derivatives; the same holds.
        n_samples: of an iteration; a multiple of the chains.
        n_discard: sweeps before the first sample of an iteration.
        sr_method: see ``reconfigure``.
        max_change: largest lr √(dᵀg), by which the normalised state may move in one step; longer ones are
            shortened. None for no limit.
        chunk: rows of a forward pass.
        max_bytes: of intermediate results.

    Raises:
        ValueError: a Hamiltonian that is not Hermitian, a sampler of other spins or another model, a sampler
            that leaves the Hamiltonian's sectors or keeps one that the Hamiltonian leaves, a model that is
            complex and no ``AmplitudePhase``, an unknown solver, method or dtype, numbers that are not
            positive.
    """

    def __init__(
        self,
        H: Hamiltonian,
        model: nn.Module,
        sampler: Metropolis,
        lr: float = 1e-3,
        solver: Literal["sr", "adam"] = "sr",
        diag_shift: float = 1e-3,
        eloc_dtype: str = "f64",
        *,
        gradient_dtype: str = "f64",
        n_samples: int = 4096,
        n_discard: int = 5,
        sr_method: Method = "auto",
        max_change: float | None = None,
        chunk: int = CHUNK,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        if not H.is_hermitian:
            raise ValueError("the Hamiltonian is not Hermitian; its lowest energy is not a minimum")
        if sampler.n_spins != H.n_spins or sampler.model is not model:
            raise ValueError(
                f"the sampler has {sampler.n_spins} spins and the Hamiltonian {H.n_spins}; give a sampler "
                "of this model and these spins"
            )
        mine, theirs = ({(frozenset(s.sites), s.total) for s in o.sectors} for o in (H, sampler))
        if mine and mine != theirs:
            raise ValueError(
                "the Hamiltonian conserves total_sz (its sectors) and the sampler keeps other sums or none; "
                "use "
                "Metropolis.for_hamiltonian(H, model), or rule='exchange' with the same sectors"
            )
        if theirs and not mine and not conserves(H, sampler.sectors):
            raise ValueError(
                "the sampler keeps a sum (total_sz) that the Hamiltonian does not conserve: local energies "
                "would "
                "contain states that are never visited, and their average could fall below the ground energy"
            )
        if solver not in ("sr", "adam") or sr_method not in METHODS:
            raise ValueError(
                f"solver={solver!r}, sr_method={sr_method!r}; expected 'sr' or 'adam', and one of {METHODS}"
            )
        if not (lr > 0 and diag_shift > 0 and n_samples > 0 and n_discard >= 0):
            raise ValueError(
                f"lr={lr}, diag_shift={diag_shift}, n_samples={n_samples}, n_discard={n_discard}; all must "
                "be positive"
            )
        if n_samples % sampler.n_chains:
            raise ValueError(f"n_samples={n_samples} is no multiple of n_chains={sampler.n_chains}")
        self.H, self.model, self.sampler = H, model, sampler
        self.lr, self.solver, self.diag_shift, self.sr_method = lr, solver, diag_shift, sr_method
        self.eloc_dtype, self.gradient_dtype = precision_name(eloc_dtype), precision_name(gradient_dtype)
        self.n_samples, self.n_discard = n_samples, n_discard
        self.chunk, self.max_bytes, self.max_change = chunk, max_bytes, max_change
        self.history = History()
        self._copies: dict[str, nn.Module] = {}
        parameters = trained_parameters(model)
        if not parameters:
            raise ValueError("the model has no parameters to train")
        refuse_complex(model, sampler.x[:1])
        self._adam = torch.optim.Adam(parameters, lr=lr) if solver == "adam" else None

    def run(self, n_iter: int, *, progress: Callable[[dict[str, Any]], None] | None = None) -> History:
        """``n_iter`` iterations more; ``progress`` gets the row of each.

        Raises:
            FloatingPointError: the sampling precision cannot hold log ψ and there is no higher one to go to.
        """
        for _ in range(n_iter):
            self._iterate()
            if progress is not None:
                progress(self.history.row(-1))
        return self.history

    def fit(
        self,
        n_iter: int = 100,
        *,
        checkpoint: Path | None = None,
        resume: bool = False,
        every: int = 25,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> History:
        """Train until there are ``n_iter`` iterations in all, saving every few.

        Args:
            n_iter: in all.
            checkpoint: file of the state.
            resume: go on from it.
            every: iterations between two checkpoints.
            progress: gets the row of each iteration.
        """
        if resume:
            if checkpoint is None:
                raise ValueError("resume=True needs a checkpoint")
            self.load(checkpoint)
        while len(self.history) < n_iter:
            self.run(min(every, n_iter - len(self.history)), progress=progress)
            if checkpoint is not None:
                self.save(checkpoint)
        return self.history

    def _iterate(self) -> None:
        begin = time.perf_counter()
        samples = self._sample()
        sampled = time.perf_counter()
        energies = local_energies(
            self._at(self.eloc_dtype), self.H, samples.x, chunk=self.chunk, max_bytes=self.max_bytes
        )
        evaluated = time.perf_counter()
        found = samples.mean(energies)
        due = self.sampler.auto and len(self.history) % EVERY == 0
        structured = self._has_structured_gram(energies)
        if due or not structured:
            O = log_derivatives(self._at(self.gradient_dtype), samples.x, chunk=self.chunk)
            A, r = centred_rows(O, energies, samples.weights)
            if due:
                self._look_at_precision(samples, A, r, found.tau)
        if structured:
            step, g = reconfigure_machine(self.model, samples.x, energies, samples.weights, self.diag_shift)
            self._apply(step, g)
        elif self._adam is not None:
            g = gradient(A, r)
            self._apply(Step(g, "adam", 0.0), g)
        else:
            self._apply(reconfigure(A, r, self.diag_shift, self.sr_method), gradient(A, r))
        done = time.perf_counter()
        log = self.history
        corrected = self.sampler.correction is not None
        spread = float((energies - found.mean).abs().max())
        row = {
            "energy": float(np.real(found.mean)), "err": found.error, "variance": found.variance,
            "sigma": samples.sigma, "bound": 0.0 if corrected else bounds.kl(samples.sigma, spread),
            "acceptance": samples.acceptance, "tau": found.tau, "r_hat": found.r_hat,
            "proposals": samples.proposals, "used": len(samples), "t_sample": sampled - begin,
            "t_eloc": evaluated - sampled, "t_solve": done - evaluated, "dtype": samples.dtype,
        }  # fmt: skip
        for name, value in row.items():
            getattr(log, name).append(value)

    def _sample(self) -> Any:
        """Samples; a precision that overflows is escalated where the policy may."""
        while True:
            try:
                return self.sampler.sample(self.n_samples, self.n_discard)
            except FloatingPointError as error:
                if not self.sampler.auto or not self._escalate(str(error)):
                    raise

    def _look_at_precision(self, samples: Any, A: torch.Tensor, r: torch.Tensor, tau: float) -> None:
        terms = 2.0 * len(samples) * A * r[:, None]
        if len(terms) > len(samples):  # real and imaginary parts of one sample
            terms = terms[: len(samples)] + terms[len(samples) :]
        corrected = self.sampler.correction is not None
        found = safety_check(samples.delta, terms, tau=1.0 if np.isnan(tau) else tau, corrected=corrected)
        if not found.accepted:
            self._escalate(found.reason)

    def _escalate(self, reason: str) -> bool:
        """Go to the next precision that holds log ψ; whether there is one."""
        steps, before = ladder(self.sampler.device), self.sampler.dtype
        higher = next_precision(before, steps)
        while higher is not None:
            try:
                self.sampler.set_precision(higher)
            except FloatingPointError as error:
                reason += f"; {higher} was left out: {error}"
                higher = next_precision(higher, steps)
                continue
            self.history.events.append(
                f"iteration {len(self.history)}: sampling goes from {before} to {higher}; {reason}"
            )
            return True
        return False

    def _has_structured_gram(self, energies: torch.Tensor) -> bool:
        """Whether the Gram matrix of a Boltzmann machine, without its rows, is the cheapest way."""
        return (
            self._adam is None
            and type(self.model) is RBM
            and not energies.is_complex()
            and self.gradient_dtype == "f64"
            and self.sr_method in ("auto", "gram")
            and (self.sr_method == "gram" or self.n_samples < sum(p.numel() for p in self.model.parameters()))
            and all(p.requires_grad for p in self.model.parameters())
            and self.n_samples <= LARGEST_MATRIX
        )

    def _apply(self, step: Step, g: torch.Tensor) -> None:
        parameters = trained_parameters(self.model)
        self.history.events += [f"iteration {len(self.history)}: {event}" for event in step.events]
        direction = step.direction
        if self._adam is None:
            direction = direction * self._shortened(direction, g)
        if not bool(torch.isfinite(direction).all()):
            self.history.events.append(
                f"iteration {len(self.history)}: the step is not finite and was left out"
            )
            return
        pieces = direction.split([p.numel() for p in parameters])
        if self._adam is not None:
            for p, piece in zip(parameters, pieces, strict=True):
                p.grad = piece.reshape(p.shape).to(p.dtype)
            self._adam.step()
            self._adam.zero_grad()
            return
        with torch.no_grad():
            for p, piece in zip(parameters, pieces, strict=True):
                p -= (self.lr * piece).reshape(p.shape).to(p.dtype)

    def _shortened(self, d: torch.Tensor, g: torch.Tensor) -> float:
        """By which factor the step is too long."""
        length = self.lr * float((d @ g).clamp(min=0.0).sqrt())
        return 1.0 if self.max_change is None or length <= self.max_change else self.max_change / length

    def _at(self, name: str) -> nn.Module:
        """The model in a precision: itself, or a copy with today's parameters."""
        kind = DTYPES[name]
        if all(p.dtype == kind for p in self.model.parameters()):
            return self.model
        if name not in self._copies:
            self._copies[name] = copy.deepcopy(self.model).to(kind)
        with torch.no_grad():
            copied = self._copies[name]
            for kind_of in ("parameters", "buffers"):
                pairs = zip(getattr(copied, kind_of)(), getattr(self.model, kind_of)(), strict=True)
                for mine, theirs in pairs:
                    mine.copy_(theirs)
        return copied

    def save(self, path: Path | str) -> None:
        """Write all that a run depends on: parameters, optimizer, chains, counters, precision, history."""
        state = {
            "model": dict(self.model.state_dict()),
            "optimizer": self._adam.state_dict() if self._adam is not None else None,
            "sampler": self.sampler.state_dict(),
            "history": {f.name: list(getattr(self.history, f.name)) for f in fields(self.history)},
            "options": self._options(),
        }
        save_state(Path(path), state, kind=KIND, identity=self._identity())

    def load(self, path: Path | str) -> None:
        """Go on from a saved state: the next iterations are bit for bit those that would have come.

        Another number of samples or chains, shift or precision is used as given now, with a warning. The
        learning rate is the one given now.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it belongs to another run: another Hamiltonian, model, solver, rule, sweep, block or
                correction.
        """
        state = load_state(Path(path), kind=KIND, identity=self._identity())
        self.model.load_state_dict(state["model"])
        if self._adam is not None:
            self._adam.load_state_dict(state["optimizer"])
            for group in self._adam.param_groups:
                group["lr"] = self.lr
        self.sampler.load_state_dict(state["sampler"])
        self.history = History(**state["history"])
        for name, value in self._options().items():
            if (stored := state["options"].get(name)) != value:
                warnings.warn(f"{name} was {stored} and is {value} from here on", stacklevel=2)

    def _options(self) -> dict[str, Any]:
        names = (
            "n_samples",
            "n_discard",
            "diag_shift",
            "max_change",
            "eloc_dtype",
            "gradient_dtype",
            "sr_method",
        )
        return {name: getattr(self, name) for name in names}

    def _identity(self) -> dict[str, Any]:
        shapes = {name: list(t.shape) for name, t in self.model.state_dict().items()}
        sampler = self.sampler
        return {
            "n_spins": self.H.n_spins,
            "solver": self.solver,
            "shapes": shapes,
            "hamiltonian": self.H.fingerprint(),
            "rule": sampler.rule.name,
            "sweep": sampler.sweep,
            "block": sampler.block if sampler.correction == "delayed" else 0,
            "correction": sampler.correction or "none",
            "upcast": sampler.upcast,
        }
