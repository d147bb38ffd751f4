"""Simulations as a solver, and the score of predictions: what is checked and reported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from icml_hhmea.balance import ionic_currents
from icml_hhmea.cell import CellModel
from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.posterior import NeuronPosterior
from icml_hhmea.simulation import SimResult, Stimulus, resting, simulate

NEAR = math.log(1.2)  # around threshold


@dataclass(frozen=True)
class SimulationProblem:
    """What ``simulate`` is asked, as one object."""

    cell: CellModel
    stim: Stimulus | None
    params: Mapping[str, Tensor | float] | Tensor | None = None
    T: float = 5.0
    dt: float = 0.01
    electrodes: ElectrodeArray | None = None


@dataclass(frozen=True)
class Simulation:
    """Voltages and membrane currents of all nodes.

    Attributes:
        result: with ``v`` at all nodes and ``im``.
    """

    result: SimResult

    def verify(self, problem: SimulationProblem) -> None:
        """Voltages are finite and those of a second run; membrane currents are those through capacitance and
        channels, and those of that run, to 1e-9 of the largest.

        Raises:
            ValueError: they are not.
        """
        v, im = self.result.v, self.result.im
        if im is None or v.shape != im.shape:
            raise ValueError("voltages and membrane currents of all nodes are needed")
        if not bool(torch.isfinite(v).all()):
            raise ValueError("a voltage is not finite")
        theta = problem.cell.batch(problem.params).expand(len(v), -1)
        cable = problem.cell.cable(theta)
        size = max(float(im.abs().max()), 1e-6)
        found = ionic_currents(
            problem.cell, cable, v.permute(1, 2, 0), resting(problem.cell, theta), problem.dt
        ).permute(2, 0, 1)
        if float((found - im[:, 1:]).abs().max()) > 1e-9 * size:
            raise ValueError("membrane currents are not those of capacitance and channels at these voltages")
        again = simulate(
            problem.cell, problem.params, problem.stim, problem.T, problem.dt, record="all",
            electrodes=problem.electrodes, currents=True,
        )  # fmt: skip
        assert again.im is not None
        if float((again.v - v).abs().max()) > 1e-9 * float(v.abs().max()):
            raise ValueError("voltages are not those of this problem")
        if float((again.im - im).abs().max()) > 1e-9 * size:
            raise ValueError("membrane currents are not the axial and injected ones")


class CableSolver:
    """``simulate`` as a solver: all nodes, with membrane currents."""

    def solve(self, problem: SimulationProblem) -> Simulation:
        """Run; see :func:`icml_hhmea.simulation.simulate`."""
        return Simulation(
            simulate(
                problem.cell,
                problem.params,
                problem.stim,
                problem.T,
                problem.dt,
                record="all",
                electrodes=problem.electrodes,
                currents=True,
            )
        )


@dataclass(frozen=True)
class PatternEvaluator:
    """Scores predicted responses to patterns."""

    options: Mapping[str, Any] = field(default_factory=dict)

    def evaluate(
        self, posterior: NeuronPosterior, patterns: Tensor, fired: Tensor
    ) -> dict[str, float | None]:
        """Accuracy, balanced accuracy, accuracy within 20 % of the predicted threshold, log loss.

        Args:
            patterns: µA, [patterns, electrodes].
            fired: outcome of one trial of each, or shares of trials.

        Raises:
            ValueError: outcomes for another number of patterns, or outside 0 to 1.
        """
        outcome = torch.as_tensor(fired, dtype=torch.float64)
        if outcome.shape != (len(patterns),) or not bool(((outcome >= 0) & (outcome <= 1)).all()):
            raise ValueError(
                f"{list(outcome.shape)} outcomes for {len(patterns)} patterns; expected 0 to 1 each"
            )
        found = posterior.predict(patterns)
        return scores(found.p, found.level, outcome)


def scores(
    p: Float[Tensor, " patterns"], log_scale: Float[Tensor, " patterns"], outcome: Float[Tensor, " patterns"]
) -> dict[str, float | None]:
    """Figures of predictions; None where a class or the neighbourhood of threshold is empty. A chance of NaN
    counts as one half, and as no call of a spike."""
    p = p.nan_to_num(nan=0.5)
    call = p > 0.5
    right = torch.where(call, outcome, 1 - outcome)
    fires, silent = outcome.sum(), (1 - outcome).sum()
    near = log_scale.abs() < NEAR
    clipped = p.clamp(1e-6, 1 - 1e-6)
    loss = -(outcome * clipped.log() + (1 - outcome) * (1 - clipped).log()).mean()
    balanced = None
    if float(fires) > 0 and float(silent) > 0:
        hit = (outcome * call).sum() / fires
        quiet = ((1 - outcome) * ~call).sum() / silent
        balanced = float((hit + quiet) / 2)
    return {
        "accuracy": float(right.mean()) if len(right) else None,
        "balanced_accuracy": balanced,
        "accuracy_near_threshold": float(right[near].mean()) if bool(near.any()) else None,
        "log_loss": float(loss) if len(right) else None,
        "share_fired": float(outcome.mean()) if len(right) else None,
    }


def accuracy(level: np.ndarray, fired: np.ndarray) -> float:
    """Share of right calls where a spike is called for a log scale below 0."""
    return float(((np.asarray(level) < 0) == np.asarray(fired)).mean())
