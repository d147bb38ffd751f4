"""Fit a cell by gradient descent through the simulator, on few designed features: the paper's best route.

    loss = mean_f ((f - f_obs) / s_f)^2 + mean_e ((log I*_e - log I*_obs,e) / s_e)^2 + mean_e (k_e / 0.2)^2

f are log amplitudes of the electrical image (with ``"full"`` durations and delays too), I* thresholds of
single electrodes, k_e the logarithm of a factor of each electrode's current, which absorbs shunting. All
parameters are real numbers (``icml_hhmea.parameters``); Adam moves several restarts from the prior at once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from icml_core.checkpoint import load_state, save_state
from jaxtyping import Float
from torch import Tensor

from icml_hhmea.cell import CellModel
from icml_hhmea.features import EIFeatures, electrical_image
from icml_hhmea.posterior import NeuronPosterior
from icml_hhmea.recordings import FEATURE_SETS, Observation
from icml_hhmea.simulation import settle
from icml_hhmea.thresholds import Protocol, log_thresholds

NO_SPIKE = 1e3  # loss of a cell that does not fire
NO_THRESHOLD = 3.0  # log excess that counts where a pattern cannot fire the cell
CURRENT_SPREAD = 0.2
Report = Callable[[int, float], None]


@dataclass(frozen=True)
class DescentOptions:
    """How the descent goes.

    Attributes:
        restarts: from draws of the prior; the best of ``screen`` times as many.
        steps, lr: of Adam.
        features: ``"amp+thr"`` or ``"full"``.
        prior: weight of minus the log prior, divided by the number of features; 0 for none.
        window: of a spike after a pulse in fits, ms; thresholds are found to ``tolerance``.
        duration: of the simulated image, ms.
    """

    restarts: int = 8
    steps: int = 200
    lr: float = 0.03
    features: Literal["amp+thr", "full"] = "amp+thr"
    screen: int = 4
    prior: float = 0.0
    window: float = 3.0
    tolerance: float = 0.01
    duration: float = 3.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.features not in FEATURE_SETS:
            raise ValueError(f"features={self.features!r} are none of {', '.join(FEATURE_SETS)}")
        if min(self.restarts, self.screen) < 1 or self.steps < 0 or not self.lr > 0:
            raise ValueError(f"{self}: restarts and screen of at least 1, steps of at least 0, a positive lr")


class GradientDescent:
    """The fit of one cell.

    Args:
        cell: with its pose; all its parameters are fitted.
        observation: what ``icml_hhmea.recordings.observe`` gives.
        start: theta [restarts, parameters] instead of draws from the prior.
    """

    def __init__(
        self,
        cell: CellModel,
        observation: Observation,
        options: DescentOptions | None = None,
        *,
        start: Float[Tensor, "restarts parameters"] | None = None,
    ) -> None:
        self.cell, self.observation = cell, observation
        self.options = options or DescentOptions()
        self.start = start
        self.rows: list[dict[str, float]] = []
        self.electrodes = observation.recording.electrodes
        self.channels = torch.unique(observation.channel)
        self.protocol = Protocol(
            observation.recording.waveform,
            self.options.window,
            observation.dt,
            self.options.tolerance,
            low=0.01,
            high=300.0,
        )
        self.extract = EIFeatures(observation.dt * observation.every)

    def losses(
        self,
        theta: Float[Tensor, "particles parameters"],
        log_current: Float[Tensor, "particles electrodes"],
        guess: Float[Tensor, "particles thresholds"] | None = None,
        spread: float = 2.0,
        hard: bool = False,
    ) -> tuple[Float[Tensor, " particles"], Float[Tensor, "particles thresholds"]]:
        """The loss of each particle, and its log thresholds."""
        image, fired, gaps, levels = self._residuals(theta, log_current, guess, spread, hard)
        total = torch.where(fired, (image**2).mean(1), NO_SPIKE)
        if not gaps.shape[1]:
            return total, levels
        total = total + (gaps**2).mean(1)
        return total + ((log_current[:, self.channels] / CURRENT_SPREAD) ** 2).mean(1), levels.detach()

    def chi2(
        self, theta: Float[Tensor, "particles parameters"], log_current: Float[Tensor, "particles electrodes"]
    ) -> tuple[Float[Tensor, " particles"], int]:
        """Sum of squares of all hard features and thresholds in units of their errors, and how many they are;
        a cell that does not fire has ``NO_SPIKE`` for each of its features."""
        with torch.no_grad():
            image, fired, gaps, _ = self._residuals(theta, log_current, None, 2.0, True)
        size = torch.where(fired, (image**2).sum(1), NO_SPIKE * image.shape[1])
        return size + (gaps**2).sum(1), image.shape[1] + gaps.shape[1]

    def _residuals(
        self, theta: Tensor, log_current: Tensor, guess: Tensor | None, spread: float, hard: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of image and thresholds in units of their errors, which cells fire, and log thresholds."""
        o, cell = self.observation, self.cell
        state = settle(cell, theta, cell.cable(theta), dt=o.dt)
        phi, fired = electrical_image(
            cell, theta, self.electrodes, dt=o.dt, every=o.every, duration=self.options.duration, state=state
        )
        extract = EIFeatures(self.extract.dt, "hard") if hard else self.extract
        found = extract(phi)
        parts = [((found.log() - o.log_amplitude) / o.amplitude_error)[:, o.amplitude_mask]]
        if self.options.features == "full":
            parts.append(((found.delays() - o.delay) / o.delay_error)[:, o.time_mask])
            parts.append(((found.duration - o.duration) / o.duration_error)[:, o.time_mask])
        image = torch.cat(parts, 1)
        if not len(o.patterns):
            none = theta.new_zeros(len(theta), 0)
            return image, fired, none, none
        levels = log_thresholds(
            cell, theta, self.electrodes, o.patterns, self.protocol, guess=guess, spread=spread, state=state
        )
        own = log_current[:, o.channel]
        gap = torch.where(levels < torch.inf, levels - own - o.log_threshold, NO_THRESHOLD)
        return image, fired, gap / o.threshold_error, levels

    def fit(
        self,
        *,
        until: int | None = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        report: Report | None = None,
        save_every: int = 20,
    ) -> NeuronPosterior:
        """Descend to step ``until`` (all steps by default); the best state of each restart is kept.

        Raises:
            ValueError: a checkpoint of another fit.
        """
        opt, bounds = self.options, self.cell.bounds
        if resume and checkpoint is not None:
            state = load_state(checkpoint, kind="icml-hhmea-descent", identity=self._identity())
        else:
            state = self._begin()
        u, k = state["u"].requires_grad_(), state["k"].requires_grad_()
        optimizer = torch.optim.Adam([u, k], lr=opt.lr)
        if state["optimizer"] is not None:
            optimizer.load_state_dict(state["optimizer"])
        self.rows = list(state["rows"])
        best, best_u, best_k = state["best"], state["best_u"], state["best_k"]
        guess = state["guess"]
        last = opt.steps if until is None else min(until, opt.steps)
        for step in range(int(state["step"]), last + 1):
            cold = step == 0
            loss, levels = self.losses(bounds.values(u), k, guess=guess, spread=2.0 if cold else 1.1)
            better = loss.detach() < best
            best = torch.where(better, loss.detach(), best)
            best_u, best_k = (
                torch.where(better[:, None], new.detach(), old) for new, old in ((u, best_u), (k, best_k))
            )
            guess = torch.where(levels < torch.inf, levels, guess)
            self.rows.append({"step": float(step), "loss": float(best.min())})
            if report is not None:
                report(step, float(best.min()))
            if step == last:
                break
            total = loss.sum()
            if opt.prior:
                total = total - opt.prior * bounds.log_prior(u).sum() / self._count()
            optimizer.zero_grad()
            total.backward()
            with torch.no_grad():
                for leaf in (u, k):
                    if leaf.grad is None:  # no threshold was measured
                        continue
                    # A lane that failed or a slope that overflowed must not move its particle.
                    leaf.grad = torch.nan_to_num(leaf.grad, nan=0.0, posinf=0.0, neginf=0.0)
                    norm = leaf.grad.norm(dim=1, keepdim=True)
                    leaf.grad *= (1e3 / norm.clamp(min=1e3)).to(leaf.grad)
            optimizer.step()
            done = step + 1
            if checkpoint is not None and (done % save_every == 0 or done == last):
                self._save(checkpoint, done, u, k, optimizer, best, best_u, best_k, guess)
        return self._posterior(best_u, best_k, best)

    def _count(self) -> int:
        o = self.observation
        times = 2 * int(o.time_mask.sum()) if self.options.features == "full" else 0
        return int(o.amplitude_mask.sum()) + times + len(o.patterns)

    def _begin(self) -> dict[str, Any]:
        opt, bounds = self.options, self.cell.bounds
        electrodes = len(self.electrodes)
        if self.start is not None:
            theta = self.start.detach().double()
        else:
            generator = torch.Generator().manual_seed(opt.seed)
            theta = bounds.sample(opt.restarts * opt.screen, generator)
            location = [bounds.index(n) for n in ("along", "across", "turn", "bend") if n in bounds.names]
            # The pose is an estimate already: begin near it.
            theta[:, location] *= 0.3
            if opt.screen > 1:
                with torch.no_grad():
                    loss, _ = self.losses(theta, theta.new_zeros(len(theta), electrodes))
                theta = theta[loss.argsort(stable=True)[: opt.restarts]]
        u = bounds.real(theta)
        k = theta.new_zeros(len(theta), electrodes)
        start = self.observation.log_threshold.expand(len(theta), -1)
        return {
            "u": u,
            "k": k,
            "optimizer": None,
            "rows": [],
            "best": theta.new_full((len(theta),), math.inf),
            "best_u": u.clone(),
            "best_k": k.clone(),
            "guess": start.clone(),
            "step": 0,
        }

    def _save(self, path: Path, step: int, u: Tensor, k: Tensor, optimizer: Any, *rest: Tensor) -> None:
        names = ("best", "best_u", "best_k", "guess")
        state = {"u": u.detach(), "k": k.detach(), "optimizer": optimizer.state_dict(), "step": step}
        state |= {"rows": self.rows, **dict(zip(names, rest, strict=True))}
        save_state(path, state, kind="icml-hhmea-descent", identity=self._identity())

    def _identity(self) -> dict[str, Any]:
        o = self.observation
        described = {k: v for k, v in asdict(self.options).items() if k != "steps"}
        return {
            "cell": self.cell.fingerprint(),
            "options": described,
            "data": _digest([getattr(o, f.name) for f in fields(o) if torch.is_tensor(getattr(o, f.name))]),
            "array": _digest([self.electrodes.xyz]),
            "pose": _digest([p for p in (getattr(self.cell, "pose", None),) if isinstance(p, Tensor)]),
            "start": _digest([] if self.start is None else [self.start]),
            "waveform": [list(p) for p in o.recording.waveform.phases],
        }

    def _posterior(self, u: Tensor, k: Tensor, loss: Tensor) -> NeuronPosterior:
        weights = torch.softmax(-0.5 * max(1, len(self.observation.patterns)) * (loss - loss.min()), 0)
        rho = loss.new_full((len(loss),), self.observation.recording.rho)
        diagnostics = {"loss": float(loss.min()), "steps": float(len(self.rows))}
        with torch.no_grad():
            theta = self.cell.bounds.values(u)
            exact, _ = self.losses(theta, k)
        return NeuronPosterior(
            self.cell,
            self.electrodes,
            theta,
            weights,
            k,
            rho,
            exact,
            "gd",
            self.observation.recording.waveform,
            diagnostics,
            self.observation,
        )


def _digest(tensors: Sequence[Tensor]) -> str:
    """A hash of numbers, to ten digits."""
    digest = hashlib.sha256()
    for tensor in tensors:
        values = tensor.detach().double().ravel().tolist()
        digest.update(("/" + " ".join(f"{x:.9e}" for x in values)).encode())
    return digest.hexdigest()[:16]
