"""Ground states as a solver: from a Hamiltonian to an energy with its error, and a wavefunction."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from icml_mpvmc import exact
from icml_mpvmc.hamiltonian import Hamiltonian
from icml_mpvmc.measuring import measure
from icml_mpvmc.metropolis import Correction, Metropolis
from icml_mpvmc.networks import network
from icml_mpvmc.rules import CustomRule
from icml_mpvmc.vmc import VMC

DEVIATIONS = 6.0
"""Standard errors by which a verified energy may differ from a new measurement."""
ROUNDING = 1e-8
MAX_CHANGE = 0.3
"""How far the state may move in one step: far from the ground state S is small and steps are wild."""
SMALL = 12
"""Spins up to which the variational principle is checked against the exact energy."""


@dataclass(frozen=True)
class GroundStateResult:
    """What was found.

    Attributes:
        energy: measured after training on new samples.
        error: its standard error.
        variance: of the local energies; 0 for an eigenstate, so that equal energies tell converged runs
            apart.
        energy_per_spin: ``energy`` / spins.
        energies: of the iterations.
        dtype: precision of sampling in the end.
        sigma: standard deviation of δ in the end.
        events: what was escalated or regularised.
        parameters: of the wavefunction.
        config: what ``network`` builds it from.
        proposals: made in all, those of the measurement included.
    """

    energy: float
    error: float
    variance: float
    energy_per_spin: float
    energies: tuple[float, ...]
    dtype: str
    sigma: float
    events: tuple[str, ...]
    parameters: dict[str, Tensor] = field(repr=False)
    config: dict[str, Any]
    proposals: int

    @property
    def model(self) -> nn.Module:
        """The wavefunction."""
        options = {k: v for k, v in self.config.items() if k not in ("network", "shape")}
        model = network(self.config["network"], tuple(self.config["shape"]), **options)
        model.load_state_dict(self.parameters)
        return model

    def verify(self, problem: Hamiltonian) -> None:
        """Measure the energy again with new float64 chains, exactly where all states can be listed.

        Raises:
            ValueError: the energy differs by more than six standard errors, or lies below the exact one of a
                small system.
        """
        model = self.model
        if math.prod(self.config["shape"]) != problem.n_spins:
            raise ValueError(
                f"the wavefunction has {math.prod(self.config['shape'])} spins, not {problem.n_spins}"
            )
        if problem.n_spins <= SMALL:
            again, spread = exact.energy(model, problem)[0], 0.0
            least = exact.ground_energy(problem)
            if self.energy < least - DEVIATIONS * self.error - ROUNDING:
                raise ValueError(f"the energy {self.energy:.6f} lies below the lowest eigenvalue {least:.6f}")
        else:
            sampler = Metropolis.for_hamiltonian(problem, model, n_chains=256, dtype="f64", seed=987654321)
            found = measure(model, problem, sampler, 4096, discard=50)
            again, spread = float(np.real(found.mean)), found.error
        allowed = DEVIATIONS * math.hypot(self.error, spread) + ROUNDING * max(1.0, abs(again))
        if not abs(self.energy - again) <= allowed:
            raise ValueError(f"the energy is {again:.6f} and not {self.energy:.6f} (within {allowed:.2g})")


class GroundState:
    """Trains a wavefunction by stochastic reconfiguration and measures its energy.

    Args:
        network_name: ``"rbm"``, ``"complex_rbm"`` (ground states with signs or phases) or ``"rescnn"``.
        shape: of the lattice; by default the Hamiltonian's, or a chain of its spins.
        alpha: hidden units per spin of a Boltzmann machine.
        n_iter: iterations.
        n_samples: of an iteration.
        n_chains: chains.
        lr: learning rate; falls to a tenth of it over the iterations as a cosine.
        diag_shift: λ of S.
        dtype: precision of sampling; ``"auto"`` starts with the fastest and goes up where the bias would
            show.
        correction: None, ``"reweight"`` or ``"delayed"``.
        rule: of proposals; by default flips, exchanges where a sum is conserved, one or two exchanges where
            several are (molecules).
        measure_samples: on which the energy is measured in the end, exactly weighted.
        seed: of everything.
        options: more of ``network`` (``filters``, ``blocks``, ``std``).
    """

    def __init__(
        self,
        network_name: str = "rbm",
        shape: tuple[int, ...] | None = None,
        *,
        alpha: float = 2,
        n_iter: int = 300,
        n_samples: int = 2048,
        n_chains: int = 512,
        lr: float = 0.03,
        diag_shift: float = 1e-3,
        dtype: str = "auto",
        correction: Correction | None = None,
        rule: str | CustomRule | None = None,
        measure_samples: int | None = None,
        seed: int = 0,
        **options: Any,
    ) -> None:
        self.network_name, self.shape, self.alpha = network_name, shape, alpha
        self.n_iter, self.n_samples, self.n_chains = n_iter, n_samples, n_chains
        self.lr, self.diag_shift, self.dtype, self.correction = lr, diag_shift, dtype, correction
        self.rule = rule
        self.measure_samples = measure_samples or 4 * n_samples
        self.seed, self.options = seed, options

    def training(self, problem: Hamiltonian, device: str = "cpu") -> tuple[VMC, dict[str, Any]]:
        """The training that ``solve`` runs, and the configuration of its network.

        Raises:
            TypeError: the problem is no Hamiltonian.
            ValueError: a lattice of another number of spins, or options that the parts refuse.
        """
        if not isinstance(problem, Hamiltonian):
            raise TypeError(
                f"expected a Hamiltonian such as TFIM(12) or from_scipy(matrix), got {type(problem).__name__}"
            )
        shape = tuple(self.shape or getattr(problem, "shape", None) or (problem.n_spins,))
        if math.prod(shape) != problem.n_spins:
            raise ValueError(
                f"shape={shape} has {math.prod(shape)} sites and the Hamiltonian {problem.n_spins} spins"
            )
        config = {"network": self.network_name, "shape": list(shape), "alpha": self.alpha, **self.options}
        build = {k: v for k, v in config.items() if k not in ("network", "shape")}
        model = network(self.network_name, shape, seed=self.seed, **build).to(device)
        sampler = Metropolis.for_hamiltonian(
            problem,
            model,
            n_chains=self.n_chains,
            dtype=self.dtype,
            correction=self.correction,
            seed=self.seed,
            **({} if self.rule is None else {"rule": self.rule}),
        )
        vmc = VMC(
            problem,
            model,
            sampler,
            lr=self.lr,
            diag_shift=self.diag_shift,
            n_samples=self.n_samples,
            max_change=MAX_CHANGE,
        )
        return vmc, config

    def solve(
        self,
        problem: Hamiltonian,
        *,
        device: str = "cpu",
        checkpoint: Path | None = None,
        resume: bool = False,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> GroundStateResult:
        """Train and measure.

        Args:
            problem: the Hamiltonian.
            device: where.
            checkpoint: file of the training's state, written every 25 iterations.
            resume: go on from it.
            progress: gets the row of each iteration.
        """
        vmc, config = self.training(problem, device)
        self.train(vmc, checkpoint=checkpoint, resume=resume, progress=progress)
        return self.result(vmc, config)

    def train(
        self,
        vmc: VMC,
        *,
        checkpoint: Path | None = None,
        resume: bool = False,
        progress: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        """Train what ``training`` gave; arguments as in ``solve``."""
        if resume and checkpoint is not None:
            vmc.load(checkpoint)
        while len(vmc.history) < self.n_iter:
            done = len(vmc.history)
            vmc.lr = self.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * done / self.n_iter)))
            vmc.run(1, progress=progress)
            if checkpoint is not None and ((done + 1) % 25 == 0 or done + 1 == self.n_iter):
                vmc.save(checkpoint)

    def result(self, vmc: VMC, config: dict[str, Any]) -> GroundStateResult:
        """Measure the energy of a trained wavefunction, with weights that make it exact."""
        sampler, before = vmc.sampler, vmc.sampler.correction
        count = max(1, round(self.measure_samples / sampler.n_chains)) * sampler.n_chains
        step = sampler.step
        sampler.correction = before or "reweight"
        try:
            found = measure(vmc.model, vmc.H, sampler, count, discard=20)
        finally:
            sampler.correction = before
        history = vmc.history
        return GroundStateResult(
            energy=float(np.real(found.mean)),
            error=found.error,
            variance=found.variance,
            energy_per_spin=float(np.real(found.mean)) / vmc.H.n_spins,
            energies=tuple(history.energy),
            dtype=sampler.dtype,
            sigma=history.sigma[-1] if history.sigma else 0.0,
            events=tuple(history.events),
            parameters={k: v.detach().cpu().clone() for k, v in vmc.model.state_dict().items()},
            config=config,
            proposals=int(sum(history.proposals)) + (sampler.step - step) * sampler.n_chains,
        )
