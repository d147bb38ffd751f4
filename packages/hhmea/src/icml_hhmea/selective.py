"""Patterns that fire some neurons and spare others, within a charge limit.

The threshold's derivative by the currents (``icml_hhmea.thresholds``) gives a direction: Adam raises the
least margin of the targets and lowers that of the neurons to spare,

    minimise  sum_targets softplus((log lambda* + m) / t) + sum_avoid softplus((m - log lambda*) / t)

with the margin m = 2 rho and t = rho; candidates start from every electrode near a target, both signs.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor

from icml_hhmea.electrodes import ElectrodeArray
from icml_hhmea.posterior import NeuronPosterior
from icml_hhmea.simulation import activating, settle
from icml_hhmea.stimulus import ChargeLimit, Waveform
from icml_hhmea.thresholds import Lanes, Protocol, _LogThreshold, spontaneous

FAR = 3.0  # what counts as the log scale of a pattern that never fires


@dataclass(frozen=True)
class StimulusProblem:
    """What is wanted.

    Attributes:
        targets: neurons that shall fire.
        avoid: neurons that shall not.
        allowed: electrodes that may be used; all by default.
        most: electrodes used at once.
    """

    targets: Sequence[NeuronPosterior]
    avoid: Sequence[NeuronPosterior] = ()
    electrodes: ElectrodeArray | None = None
    limit: ChargeLimit = field(default_factory=ChargeLimit)
    allowed: Sequence[int] | None = None
    most: int = 3

    def array(self) -> ElectrodeArray:
        """The electrodes.

        Raises:
            ValueError: no target, neurons under different arrays, or fitted with different waveforms.
        """
        if not self.targets:
            raise ValueError("give at least one target neuron")
        array = self.electrodes or self.targets[0].electrodes
        for neuron in (*self.targets, *self.avoid):
            xyz = neuron.electrodes.xyz
            if xyz.shape != array.xyz.shape or not torch.allclose(xyz, array.xyz, atol=1e-6):
                raise ValueError("all neurons must lie under the same electrodes, at the same places")
            if neuron.waveform != self.targets[0].waveform:
                raise ValueError("all neurons must be fitted with the same waveform")
        wrong = [e for e in self.allowed or () if not 0 <= e < len(array)]
        if wrong or (self.allowed is not None and not len(self.allowed)):
            raise ValueError(
                f"allowed={list(self.allowed or ())}: name electrodes from 0 to {len(array) - 1}"
            )
        if not 1 <= self.most <= len(array):
            raise ValueError(f"most={self.most} must lie in 1 to {len(array)}")
        return array


@dataclass(frozen=True)
class SelectivePattern:
    """A pattern and what it does.

    Attributes:
        amplitudes: µA, [electrodes].
        p_targets, p_avoid: chances of a spike.
        loss: of the search; lower is better.
    """

    amplitudes: Float[Tensor, " electrodes"]
    p_targets: Float[Tensor, " targets"]
    p_avoid: Float[Tensor, " avoid"]
    loss: float

    @property
    def selectivity(self) -> float:
        """Least chance of a target less the largest of the others."""
        return float(self.p_targets.min()) - (float(self.p_avoid.max()) if len(self.p_avoid) else 0.0)

    def verify(self, problem: StimulusProblem) -> None:
        """The pattern keeps to the limit, and the chances are what the posteriors say.

        Raises:
            ValueError: it does not, or they differ by more than 0.02.
        """
        array = problem.array()
        if self.amplitudes.shape != (len(array),):
            raise ValueError(f"{len(self.amplitudes)} amplitudes for {len(array)} electrodes")
        used = int((self.amplitudes != 0).sum())
        if used > problem.most:
            raise ValueError(f"{used} electrodes are used; at most {problem.most} may be")
        problem.limit.require(self.amplitudes, problem.targets[0].waveform)
        for group, stated in ((problem.targets, self.p_targets), (problem.avoid, self.p_avoid)):
            for neuron, p in zip(group, stated.tolist(), strict=True):
                again = float(neuron.predict(self.amplitudes).p[0])
                if abs(again - p) > 0.02:
                    raise ValueError(f"a chance of {p:.3f} is stated; the posterior says {again:.3f}")


class StimulusSearch:
    """The search.

    Args:
        steps, lr: of Adam, on amplitudes as shares of the limit or of ``scale`` µA, whichever is less.
        starts: candidates that are followed at once.
    """

    def __init__(self, *, steps: int = 30, lr: float = 0.05, starts: int = 12, seed: int = 0) -> None:
        if steps < 0 or starts < 1 or not lr > 0:
            raise ValueError(f"steps={steps}, lr={lr}, starts={starts}: at least 0, above 0, at least 1")
        self.steps, self.lr, self.starts, self.seed = steps, lr, starts, seed

    def solve(self, problem: StimulusProblem) -> SelectivePattern:
        """Search.

        Raises:
            ValueError: no target, or arrays that differ.
        """
        array = problem.array()
        waveform = problem.targets[0].waveform
        limit = problem.limit.largest_ua(waveform)
        patterns = _project(self._starts(problem, array, limit), limit, problem.limit.total_ua)
        neurons = [(_Neuron(p, waveform), 1.0) for p in problem.targets]
        neurons += [(_Neuron(p, waveform), -1.0) for p in problem.avoid]
        rho = float(torch.stack([n.posterior.rho.mean() for n, _ in neurons]).mean())
        best_loss, best = torch.full((len(patterns),), torch.inf, dtype=torch.float64), patterns.clone()
        support = patterns != 0
        leaf = patterns.clone().requires_grad_()
        size = patterns.abs().max(1, keepdim=True).values
        optimizer = torch.optim.Adam([leaf], lr=1.0)
        for step in range(self.steps + 1):
            loss = self._loss(leaf, neurons, rho)
            better = loss.detach() < best_loss
            best_loss = torch.where(better, loss.detach(), best_loss)
            best = torch.where(better[:, None], leaf.detach(), best)
            if step == self.steps:
                break
            optimizer.zero_grad()
            loss.sum().backward()
            with torch.no_grad():
                leaf.grad = torch.nan_to_num(leaf.grad) * support
                before = leaf.clone()
            optimizer.step()
            with torch.no_grad():
                moved = before + self.lr * size * (leaf - before)
                leaf.copy_(_project(moved, limit, problem.limit.total_ua))
        chosen = best[int(best_loss.argmin())]
        problem.limit.require(chosen, waveform)
        chances = [
            torch.tensor([float(p.predict(chosen).p[0]) for p in group], dtype=torch.float64)
            for group in (problem.targets, problem.avoid)
        ]
        return SelectivePattern(chosen, chances[0], chances[1], float(best_loss.min()))

    @staticmethod
    def _loss(patterns: Tensor, neurons: Sequence[tuple[_Neuron, float]], rho: float) -> Tensor:
        total = patterns.new_zeros(len(patterns))
        for neuron, sign in neurons:
            level = neuron.log_scale(patterns)
            level = torch.where(torch.isfinite(level), level, FAR)
            total = total + torch.nn.functional.softplus((sign * level + 2 * rho) / rho)
        return total

    def _starts(self, problem: StimulusProblem, array: ElectrodeArray, limit: float) -> Tensor:
        """Single electrodes at the targets' thresholds, strongest images first, and neighbours of random
        sign."""
        target = problem.targets[0]
        allowed = list(range(len(array))) if problem.allowed is None else list(problem.allowed)
        unit = torch.zeros(2 * len(allowed), len(array), dtype=torch.float64)
        for k, e in enumerate(allowed):
            unit[2 * k, e], unit[2 * k + 1, e] = 1.0, -1.0
        level = target.predict(unit).log_scale.nan_to_num(nan=torch.inf, posinf=torch.inf).min(0).values
        order = level.argsort(stable=True)[: self.starts]
        generator = torch.Generator().manual_seed(self.seed)
        rows = []
        for k in order.tolist():
            size = min(float(level[k].exp()) * 1.15, limit) if bool(torch.isfinite(level[k])) else limit
            row = unit[k] * size
            e = int(unit[k].abs().argmax())
            distance = (array.xyz[allowed] - array.xyz[e]).norm(dim=1)
            near = [allowed[i] for i in distance.argsort(stable=True).tolist() if allowed[i] != e]
            for other in near[: problem.most - 1]:
                row[other] = size * 0.2 * float(2 * torch.rand(1, generator=generator) - 1)
            rows.append(row)
        return torch.stack(rows)


def _project(patterns: Tensor, limit: float, total: float) -> Tensor:
    """The patterns within the limit of each electrode, and scaled down to that of the sum."""
    inside = patterns.clamp(-limit, limit)
    size = inside.abs().sum(1, keepdim=True)
    return inside * (total / size.clamp(min=1e-12)).clamp(max=1.0)


class _Neuron:
    """The heaviest particle of a posterior, ready for many patterns."""

    def __init__(self, posterior: NeuronPosterior, waveform: Waveform) -> None:
        self.posterior = posterior
        self.cell, theta = posterior.cell, posterior.best
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.cable = self.cell.cable(theta)
            self.state = settle(self.cell, theta, self.cable)
            array = posterior.electrodes
            self.matrix = array.matrix(self.cell.segments(theta), self.cell.sigma(theta))[0]
        self.protocol = Protocol(waveform)
        if bool(spontaneous(self.cell, theta, self.protocol, self.state)):
            raise ValueError("a neuron's heaviest particle fires without a current: it has no threshold")
        self.current = posterior.log_current[int(posterior.weights.argmax())].exp()

    def log_scale(self, patterns: Tensor) -> Tensor:
        """log of the scale at threshold of each pattern, differentiable by the currents."""
        outside = 1e3 * (patterns * self.current) @ self.matrix
        lanes = torch.zeros(len(patterns), dtype=torch.int64)
        cable = self.cable.pick(lanes)
        drive = activating(self.cell.parent, cable.axial, outside.T)
        given = Lanes(cable, self.state.pick(lanes), drive)
        guess = patterns.new_zeros(len(patterns))
        return _LogThreshold.apply(self.cell, self.protocol, guess, 1.3, *given.tensors())


def optimize_stimulus(
    targets: Sequence[NeuronPosterior],
    avoid: Sequence[NeuronPosterior] = (),
    electrodes: ElectrodeArray | None = None,
    *,
    limit: ChargeLimit | None = None,
    most: int = 3,
    allowed: Sequence[int] | None = None,
    steps: int = 30,
    seed: int = 0,
) -> SelectivePattern:
    """A pattern of at most ``most`` electrodes that fires the targets and spares the others.

    Raises:
        ValueError: no target, or arrays that differ.
    """
    problem = StimulusProblem(targets, avoid, electrodes, limit or ChargeLimit(), allowed, most)
    return StimulusSearch(steps=steps, seed=seed).solve(problem)
