"""How good samples are: bounds of log Z, distances to true samples, lattice observables, exact total
variation.

A high ELBO proves nothing about coverage, since a sampler of one mode has the best one: methods are ranked
by EUBO - ELBO, by Sinkhorn's distance to true samples, and by the masses of modes.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from icml_discrete_samplers.checks import Energy, require_states
from icml_discrete_samplers.exact import ExactLaw, enumerate_law, index_of, sampler_law
from icml_discrete_samplers.sampler import MaskedSampler

SAMPLES = 500  # rows that distances are computed from, of each side
EPSILON, ITERATIONS = 1e-3, 100  # of Sinkhorn's distance, as the official evaluation has them
EXACT = 1 << 20  # most states that are enumerated; beyond, shares among a few thousand draws say nothing
MASKED = 2_000_000  # most partly masked states for a sampler's exact law


class Sinkhorn(NamedTuple):
    """Cost of the entropic plan, its iterations, and the plan's marginal error: at small epsilon it has not
    converged.
    """

    cost: float
    iterations: int
    marginal_error: float


def sinkhorn(
    a: Tensor,
    b: Tensor,
    cost: str = "l2",
    epsilon: float = EPSILON,
    iterations: int = ITERATIONS,
    *,
    relative: bool = False,
) -> Sinkhorn:
    """Entropic transport between equal weights on two sets of points, in log domain.

    Args:
        a, b: points [n, d] and [m, d].
        cost: ``l2``, squared Euclidean distance, or ``hamming``, the number of differing coordinates.
        epsilon: of the entropy, in the cost's units as in the official evaluation.
        relative: epsilon is a share of the largest cost instead.
        iterations: of both scalings.

    Raises:
        ValueError: an unknown cost or an empty side.
    """
    c = _distances(a, b, cost)
    if not c.numel():
        raise ValueError(f"transport between {len(a)} and {len(b)} points is not defined")
    scale = epsilon * (max(float(c.max()), 1e-300) if relative else 1.0)
    log_a, log_b = -math.log(len(a)), -math.log(len(b))
    f, g = torch.zeros(len(a), dtype=c.dtype), torch.zeros(len(b), dtype=c.dtype)
    k = -c / scale
    for _ in range(iterations):
        f = log_a - (k + g).logsumexp(1)
        g = log_b - (k + f[:, None]).logsumexp(0)
    plan = (k + f[:, None] + g).exp()
    error = float((plan.sum(1) - 1 / len(a)).abs().sum())
    return Sinkhorn(float((plan * c).sum()), iterations, error)


def _distances(a: Tensor, b: Tensor, cost: str) -> Float64[Tensor, "n m"]:
    if cost == "l2":
        return torch.cdist(a.double(), b.double()).square()
    if cost == "hamming":
        return torch.cdist(a.double(), b.double(), p=0)
    raise ValueError(f"unknown cost {cost!r}; there are l2 and hamming")


def mmd(a: Float[Tensor, "n d"], b: Float[Tensor, "m d"]) -> float:
    """Maximum mean discrepancy with a Gaussian kernel whose width is the median distance in b (the true
    samples).

    Raises:
        ValueError: fewer than two points on a side.
    """
    if len(a) < 2 or len(b) < 2:
        raise ValueError(f"{len(a)} and {len(b)} points are too few for a discrepancy")
    a, b = a.double(), b.double()
    width = torch.pdist(b).median().clamp(min=1e-12)

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        return torch.exp(-0.5 * (torch.cdist(x, y) / width).square())

    n, m = len(a), len(b)
    own = (kernel(a, a).sum() - n) / (n * (n - 1)) + (kernel(b, b).sum() - m) / (m * (m - 1))
    return math.sqrt(max(0.0, float(own - 2 * kernel(a, b).mean())))


def total_variation(p: Float64[Tensor, " S"], q: Float64[Tensor, " S"]) -> float:
    """Half the sum of absolute differences."""
    return 0.5 * float((p - q).abs().sum())


def empirical_law(x: Int64[Tensor, "n D"], D: int, V: int) -> Float64[Tensor, " S"]:
    """Shares of all V^D states."""
    return torch.bincount(index_of(x, V), minlength=V**D).double() / max(1, len(x))


def two_point(x: Int64[Tensor, "n D"], L: int, V: int) -> Float64[Tensor, " half"]:
    """Share of sites that agree with the one r steps along a row or column, less 1 / V, for r up to L / 2."""
    square = x.view(-1, L, L)
    return torch.stack(
        [
            0.5 * sum((square == square.roll(-r, axis)).double().mean() for axis in (1, 2)) - 1 / V
            for r in range(1, L // 2 + 1)
        ]
    )


class SamplerMetrics:
    """Figures of a sampler, or of samples, against a target.

    Args:
        energy: the target.
        truth: true samples, for EUBO and distances.
        n: draws of a sampler.
        seed: of these.
        exact: most states that are enumerated.
        device: where the energy wants its states; by default where the sampler is, or the samples are.
    """

    def __init__(
        self,
        energy: Energy,
        truth: Int64[Tensor, "m D"] | None = None,
        *,
        n: int = 2000,
        seed: int = 0,
        exact: int = EXACT,
        device: str | torch.device | None = None,
    ) -> None:
        self.energy, self.n, self.seed, self.exact, self.device = energy, n, seed, exact, device
        self.truth = None if truth is None else require_states(truth, energy.D, energy.V, "truth")
        self._law: ExactLaw | None = None

    def evaluate(self, subject: MaskedSampler | Int64[Tensor, "n D"], **_: Any) -> dict[str, float]:
        """ELBO, EUBO, IWELBO, ESS (of a sampler); MMD, Sinkhorn, order parameter and two-point errors, total
        variation.

        ``eubo`` and ``gap`` are there with true samples alone; without them ``eubo_estimate`` is no bound,
        since it sees only modes that the sampler has, and ranks a collapsed sampler best. ``tv`` is exact: of
        the law of a masked sampler small enough for it. Of samples it is ``tv_of_samples``, which is to be
        held against ``tv_floor``, that of as many true draws.

        Raises:
            TypeError: neither a sampler nor states.
            ValueError: states of another size.
        """
        figures: dict[str, float] = {}
        if isinstance(subject, MaskedSampler):
            if subject.energy is None:
                subject = MaskedSampler(subject.model, self.energy)
            bounds = subject.log_z(self.n, self.seed, self.truth)
            figures |= {"elbo": bounds.elbo, "iwelbo": bounds.iwelbo, "ess": bounds.ess}
            figures["from_truth"] = float(bounds.from_truth)
            if bounds.from_truth:
                figures |= {"eubo": bounds.eubo, "gap": bounds.eubo - bounds.elbo}
            else:
                figures["eubo_estimate"] = bounds.eubo
            x = subject.sample(self.n, seed=self.seed)
        else:
            x = require_states(subject, self.energy.D, self.energy.V, "samples")
        device = self.device if self.device is not None else x.device
        x = x.cpu()
        if self.truth is not None and len(x) > 1:
            figures |= self._distances(x)
        count = self.energy.V**self.energy.D
        if count <= self.exact:
            if self._law is None:
                self._law = enumerate_law(self.energy, self.exact, device)
            figures |= self._variation(subject, x, self._law)
            figures["log_z"] = self._law.log_z
        return figures

    def _variation(self, subject: Any, x: Tensor, law: ExactLaw) -> dict[str, float]:
        D, V = self.energy.D, self.energy.V
        p = law.log_prob.exp()
        if isinstance(subject, MaskedSampler) and (V + 1) ** D <= MASKED:
            return {"tv": total_variation(sampler_law(subject.model, MASKED), p)}
        floor = empirical_law(law.sample(len(x), self.seed + 1), D, V)
        return {
            "tv_of_samples": total_variation(empirical_law(x, D, V), p),
            "tv_floor": total_variation(floor, p),
        }

    def _distances(self, x: Tensor) -> dict[str, float]:
        assert self.truth is not None
        energy: Any = self.energy
        truth = self.truth.cpu()
        decode = getattr(energy, "decode", lambda s: s)
        a, b = decode(x[:SAMPLES]).double(), decode(truth[:SAMPLES]).double()
        cost = "l2" if a.shape[1] != energy.D else "hamming"
        transport = sinkhorn(a, b, cost)
        figures = {
            "mmd": mmd(a, b),
            "sinkhorn": transport.cost,
            "sinkhorn_marginal_error": transport.marginal_error,
        }
        if hasattr(energy, "order_parameter"):
            wanted = 0.0 if getattr(energy, "h", 0.0) == 0 else float(energy.order_parameter(truth).mean())
            figures["magnetisation_error"] = abs(float(energy.order_parameter(x).mean()) - wanted)
            gap = two_point(x, energy.L, energy.V) - two_point(truth, energy.L, energy.V)
            figures["two_point_error"] = float(gap.abs().mean())
        return figures
