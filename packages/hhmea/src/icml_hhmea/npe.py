"""Neural posterior estimation: a conditional density of parameters given features, trained on simulations.

A neural spline flow (zuko) gives q(u | features); u are real numbers, so that no mass leaves the bounds. It
is trained by maximum conditional log-likelihood on draws from the prior. Where simulations fail (no spike),
the flow learns from the valid ones alone, and a classifier cuts off what leaks out of them, as in G. Deistler
et al., NeurIPS 35 (2022): at a level below which fewer than 0.1 % of valid parameters lie.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from icml_core.checkpoint import load_state, save_state
from icml_core.randomness import seeded
from jaxtyping import Float
from scipy.stats import chi2
from torch import Tensor, nn

from icml_hhmea.parameters import Bounds

UNLIKELY = 1e-3
FEWEST = 200  # valid simulations below which a classifier would cut by what it has learnt by heart
LOST = 1e-3  # share of valid parameters that the classifier may cut off
ACCEPTANCE_DRAWS = 512  # from which a posterior's mass inside the cut is found
KIND = "icml-hhmea-npe"


@dataclass(frozen=True)
class NPEOptions:
    """How the flow is built and trained.

    Attributes:
        transforms, hidden, bins: of the flow: 5 transforms, two layers of 64, 8 bins.
        epochs: at most; training ends when ``patience`` epochs bring nothing on the held-out share.
    """

    transforms: int = 5
    hidden: int = 64
    bins: int = 8
    epochs: int = 200
    batch: int = 256
    lr: float = 1e-3
    patience: int = 15
    held_out: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.transforms, self.hidden, self.bins, self.epochs, self.batch, self.patience) < 1:
            raise ValueError(f"{self}: all numbers must be at least 1")
        if not 0 < self.held_out < 1 or not self.lr > 0:
            raise ValueError(f"held_out={self.held_out} must lie in 0 to 1 and lr={self.lr} be positive")


class AmortisedPosterior:
    """q(theta | features), once trained.

    Attributes:
        bounds: of theta.
        names: of the features, for warnings.
        history: negative log-likelihood after each epoch of the share on which training stops.
        held_out: the same, at the end, of a share that training never saw.
    """

    def __init__(
        self, bounds: Bounds, features: int, options: NPEOptions | None = None, names: Sequence[str] = ()
    ) -> None:
        import zuko

        self.bounds, self.options = bounds, options or NPEOptions()
        self.names = tuple(names) or tuple(f"feature {k}" for k in range(features))
        if len(self.names) != features:
            raise ValueError(f"{len(self.names)} names for {features} features")
        width = (self.options.hidden, self.options.hidden)
        with seeded(self.options.seed):
            self.flow = zuko.flows.NSF(
                len(bounds),
                features,
                bins=self.options.bins,
                transforms=self.options.transforms,
                hidden_features=width,
            )
            self.validity = nn.Sequential(nn.Linear(len(bounds), 32), nn.ReLU(), nn.Linear(32, 1))
        self.shift, self.scale = torch.zeros(features), torch.ones(features)
        self.u_shift, self.u_scale = torch.zeros(len(bounds)), torch.ones(len(bounds))
        self.covariance = torch.eye(features)
        self.restricted, self.cut = False, 0.0
        self.history: list[float] = []
        self.held_out = math.nan
        self.observation: Tensor | None = None

    def train(
        self,
        theta: Float[Tensor, "simulations parameters"],
        features: Float[Tensor, "simulations features"],
        valid: Tensor | None = None,
        *,
        report: Callable[[int, float], None] | None = None,
    ) -> AmortisedPosterior:
        """Train on simulations; those that are not valid, or whose features are not finite, train the
        classifier, from 200 valid ones on.

        Raises:
            ValueError: shapes that do not fit, theta outside the bounds, fewer than ten valid simulations, or
                a loss that is not finite.
        """
        if features.dim() != 2 or features.shape[1] != len(self.names) or len(theta) != len(features):
            raise ValueError(
                f"features have shape {list(features.shape)} for {len(theta)} simulations; expected "
                f"[{len(theta)}, {len(self.names)}]"
            )
        self.bounds.require(theta)
        good = torch.isfinite(features).all(1) if valid is None else valid & torch.isfinite(features).all(1)
        u = self.bounds.real(theta.double()).float()
        if int(good.sum()) < 10:
            raise ValueError(
                f"{int(good.sum())} of {len(theta)} simulations are valid; at least 10 are needed"
            )
        generator = torch.Generator().manual_seed(self.options.seed)
        if not bool(good.all()) and int(good.sum()) >= FEWEST:
            self._train_classifier(u, good, generator)
        u, x = u[good], features[good].float()
        self.shift, self.scale = x.mean(0), x.std(0).clamp(min=1e-4)
        self.u_shift, self.u_scale = u.mean(0), u.std(0).clamp(min=1e-4)
        x, u = self._standard(x), (u - self.u_shift) / self.u_scale
        self.covariance = torch.cov(x.T).reshape(len(self.names), -1) + 1e-3 * torch.eye(x.shape[1])
        order = torch.randperm(len(x), generator=generator)
        held = max(1, round(self.options.held_out * len(x)))
        test, stop, train = order[:held], order[held : 2 * held], order[2 * held :]
        optimizer = torch.optim.Adam(self.flow.parameters(), lr=self.options.lr)
        best, waited = math.inf, 0
        best_state = {k: v.clone() for k, v in self.flow.state_dict().items()}
        for epoch in range(self.options.epochs):
            for part in train[torch.randperm(len(train), generator=generator)].split(self.options.batch):
                loss = -self.flow(x[part]).log_prob(u[part]).mean()
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(self.flow.parameters(), 5.0)
                optimizer.step()
            with torch.no_grad():
                value = float(-self.flow(x[stop]).log_prob(u[stop]).mean())
            if not math.isfinite(value):
                raise ValueError(
                    f"the flow's loss is {value} after epoch {epoch + 1}; use an lr below {self.options.lr:g}"
                )
            self.history.append(value)
            if report is not None:
                report(epoch, value)
            waited += 1
            if value < best:
                best, waited = value, 0
                best_state = {k: v.clone() for k, v in self.flow.state_dict().items()}
            if waited >= self.options.patience:
                break
        self.flow.load_state_dict(best_state)
        with torch.no_grad():
            self.held_out = float(-self.flow(x[test]).log_prob(u[test]).mean())
        return self

    def condition(self, features: Float[Tensor, " features"]) -> AmortisedPosterior:
        """Set the observation that ``sample`` and ``log_prob`` refer to; warn where it lies outside the
        simulations (Mahalanobis distance with p below 1e-3), naming the worst features.

        Raises:
            ValueError: another number of features, or values that are not finite.
        """
        given = torch.as_tensor(features).float().reshape(-1)
        if len(given) != len(self.names) or not bool(torch.isfinite(given).all()):
            raise ValueError(f"{len(given)} features; expected {len(self.names)} that are finite")
        x = self._standard(given)
        square = float(x @ torch.linalg.solve(self.covariance, x))
        if chi2.sf(square, len(x)) < UNLIKELY:
            worst = x.abs().argsort(descending=True)[:3].tolist()
            listing = ", ".join(f"{self.names[k]} ({float(x[k]):+.1f} sd)" for k in worst)
            warnings.warn(
                "the observation lies outside the simulations (Mahalanobis distance "
                f"{math.sqrt(square):.1f}); furthest: {listing}",
                stacklevel=2,
            )
        self.observation = given
        return self

    def sample(
        self,
        n: int,
        *,
        seed: int,
        features: Float[Tensor, " features"] | None = None,
        max_seconds: float = 60.0,
    ) -> Float[Tensor, "n parameters"]:
        """Draws of theta, in float64. Draws that the classifier calls invalid are drawn again.

        Raises:
            ValueError: no observation, or n below 0.
            TimeoutError: too few accepted draws after ``max_seconds``; the acceptance rate is stated.
        """
        if n < 0:
            raise ValueError(f"n={n} must be at least 0")
        x = self._observed(features)
        generator = torch.Generator().manual_seed(seed)
        kept: list[Tensor] = [torch.zeros(0, len(self.bounds))]
        begin, drawn, accepted = time.monotonic(), 0, 0
        while accepted < n:
            z = torch.randn(max(64, n), len(self.bounds), generator=generator)
            with torch.no_grad():
                u = self.flow(x).transform.inv(z) * self.u_scale + self.u_shift
                fine = torch.isfinite(u).all(1) & self._is_valid(u)
            drawn += len(u)
            kept.append(u[fine])
            accepted += int(fine.sum())
            if accepted < n and time.monotonic() - begin > max_seconds:
                raise TimeoutError(
                    f"{accepted} of {n} draws after {max_seconds:g} s: the acceptance rate is "
                    f"{accepted / drawn:.2g}. The observation may lie outside the simulations"
                )
        return self.bounds.values(torch.cat(kept)[:n].double())

    def log_prob(
        self, theta: Float[Tensor, "n parameters"], features: Float[Tensor, " features"] | None = None
    ) -> Float[Tensor, " n"]:
        """Log density of theta, -inf where the classifier cuts it off; the rest integrates to one."""
        self.bounds.require(theta)
        s = self.bounds.to_unit(theta.double()).clamp(1e-6, 1 - 1e-6)
        u = torch.logit(s)
        x = self._observed(features)
        with torch.no_grad():
            inner = self.flow(x).log_prob(((u - self.u_shift) / self.u_scale).float()).double()
            fine = self._is_valid(u.float())
        slope = -torch.log(s * (1 - s)) - self.u_scale.double().log()
        low, high = (torch.tensor(v, dtype=torch.float64) for v in (self.bounds.low, self.bounds.high))
        log = torch.tensor(self.bounds.log)
        ratio = torch.where(log, torch.where(log, high / torch.where(log, low, 1.0), 2.0).log(), 1.0)
        by_theta = torch.where(log, -(theta.double() * ratio).abs().log(), -(high - low).log())
        found = inner + (slope + by_theta).sum(-1) - self._log_acceptance(x)
        return torch.where(fine, found, -torch.inf)

    def _log_acceptance(self, x: Tensor) -> float:
        """log of the flow's mass inside the cut."""
        if not self.restricted:
            return 0.0
        generator = torch.Generator().manual_seed(0)
        z = torch.randn(ACCEPTANCE_DRAWS, len(self.bounds), generator=generator)
        with torch.no_grad():
            u = self.flow(x).transform.inv(z) * self.u_scale + self.u_shift
        return math.log(max(float(self._is_valid(u).double().mean()), 1 / ACCEPTANCE_DRAWS))

    def save(self, path: Path) -> None:
        """Write weights and everything else that sampling needs."""
        names = (
            "shift",
            "scale",
            "u_shift",
            "u_scale",
            "covariance",
            "restricted",
            "cut",
            "history",
            "held_out",
        )
        state = {name: getattr(self, name) for name in names}
        state |= {"flow": dict(self.flow.state_dict()), "validity": dict(self.validity.state_dict())}
        save_state(path, state, kind=KIND, identity=self._identity())

    def load(self, path: Path) -> AmortisedPosterior:
        """Read what ``save`` wrote for the same bounds, features and options."""
        state = load_state(path, kind=KIND, identity=self._identity())
        self.flow.load_state_dict(state.pop("flow"))
        self.validity.load_state_dict(state.pop("validity"))
        for name, value in state.items():
            setattr(self, name, value)
        return self

    def _identity(self) -> dict[str, Any]:
        return {"bounds": asdict(self.bounds), "options": asdict(self.options), "names": list(self.names)}

    def _observed(self, features: Tensor | None) -> Tensor:
        given = self.observation if features is None else torch.as_tensor(features).float().reshape(-1)
        if given is None:
            raise ValueError("no observation; call condition(features) first, or pass features=")
        return self._standard(given)

    def _standard(self, x: Tensor) -> Tensor:
        return (x - self.shift) / self.scale

    def _is_valid(self, u: Tensor) -> Tensor:
        if not self.restricted:
            return torch.ones(len(u), dtype=torch.bool)
        return self.validity(u)[:, 0] >= self.cut

    def _train_classifier(self, u: Tensor, good: Tensor, generator: torch.Generator) -> None:
        optimizer = torch.optim.Adam(self.validity.parameters(), lr=1e-2)
        target = good.float()
        for _ in range(300):
            part = torch.randint(len(u), (min(512, len(u)),), generator=generator)
            loss = nn.functional.binary_cross_entropy_with_logits(self.validity(u[part])[:, 0], target[part])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        self.restricted = True
        with torch.no_grad():
            level = self.validity(u[good])[:, 0].sort().values
        # A logit of margin: valid parameters that training has not seen lie a little beyond those it has.
        self.cut = float(level[int(LOST * len(level))]) - 1.0


def bounds_of_prior(prior: Any, names: Sequence[str] | None = None) -> Bounds:
    """The box of a prior in the form of ``sbi``: a uniform distribution over a box.

    Raises:
        ValueError: no box can be read from it.
    """
    base = getattr(prior, "base_dist", prior)
    low, high = getattr(base, "low", None), getattr(base, "high", None)
    if low is None or high is None:
        raise ValueError(f"{type(prior).__name__} has no low and high; expected a uniform prior over a box")
    low, high = low.reshape(-1).double().tolist(), high.reshape(-1).double().tolist()
    called = tuple(names) if names is not None else tuple(f"theta{k}" for k in range(len(low)))
    return Bounds(called, tuple(low), tuple(high), (False,) * len(low))
