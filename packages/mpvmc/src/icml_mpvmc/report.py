"""May this log-density be sampled in low precision? What each precision does to it, measured on samples.

σ is the standard deviation of δ = log π̃ - log π under π, so the samples must be those of π (weights may say
so).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from icml_mpvmc import bounds
from icml_mpvmc.hamiltonian import MAX_ENUMERATED, Sector, enumerate_spins
from icml_mpvmc.lowered import LogDensity
from icml_mpvmc.policy import ALLOWANCE, LEAST_ESS
from icml_mpvmc.precision import precision_name

BATCHES = (1, 8, 1024)
"""Batch sizes whose rounding is compared."""
ROWS_FOR_BATCHES = 256
"""Samples on which batch sizes are compared."""


@dataclass(frozen=True)
class PrecisionRow:
    """What one precision does.

    Attributes:
        dtype: its name.
        sigma: standard deviation of δ.
        max_delta: largest |δ - mean δ| of the samples.
        acceptance_bound: bound on the mean change of an acceptance probability.
        worst_acceptance: the same from the largest |δ|, without an assumption.
        kl_bound: ‖f‖∞ σ.
        mcmc_bound: the Markov-chain bound, where the rate r is given.
        ess: share of effective samples after reweighting.
        batch_delta: largest difference of log π̃ of one state between batches of 1, 8 and 1024.
        total_variation: of π̃ from π, over all states, where they can be listed.
        kl: KL(π‖π̃), likewise.
        verdict: ``ok``, ``correct`` (use reweighting or delayed acceptance), ``no``, or ``overflow``.
        reason: in words.
    """

    dtype: str
    sigma: float
    max_delta: float
    acceptance_bound: float
    worst_acceptance: float
    kl_bound: float
    mcmc_bound: float | None
    ess: float
    batch_delta: float
    total_variation: float | None
    kl: float | None
    verdict: str
    reason: str


@dataclass(frozen=True)
class PrecisionReport:
    """One row a precision.

    Attributes:
        rows: in the order asked for.
        n_samples: on how many samples.
        f_max: largest |f| of the averages in question.
        tolerance: bias that is accepted: 3√2 f_max / √n by default.
    """

    rows: tuple[PrecisionRow, ...]
    n_samples: int
    f_max: float
    tolerance: float

    def __getitem__(self, dtype: str) -> PrecisionRow:
        name = precision_name(dtype)
        for row in self.rows:
            if row.dtype == name:
                return row
        raise KeyError(f"no row for {dtype!r}; there are {', '.join(r.dtype for r in self.rows)}")

    @property
    def fastest_ok(self) -> str | None:
        """The first precision whose verdict is ``ok``."""
        return next((row.dtype for row in self.rows if row.verdict == "ok"), None)

    def table(self) -> str:
        """As text."""
        names = (
            "dtype",
            "sigma",
            "max_delta",
            "kl_bound",
            "acceptance_bound",
            "ess",
            "batch_delta",
            "verdict",
        )
        lines = ["  ".join(f"{n:>16}" for n in names)]
        for row in self.rows:
            cells = [getattr(row, n) for n in names]
            lines.append("  ".join(f"{c:>16}" if isinstance(c, str) else f"{c:>16.3g}" for c in cells))
        return "\n".join(lines)

    def figures(self) -> dict[str, float | None]:
        """Named figures, null where there is none."""
        found: dict[str, float | None] = {}
        for row in self.rows:
            for name, value in asdict(row).items():
                if name not in ("dtype", "verdict", "reason"):
                    usable = isinstance(value, int | float) and math.isfinite(value)
                    found[f"{row.dtype}/{name}"] = float(value) if usable else None
            found[f"{row.dtype}/ok"] = float(row.verdict == "ok")
        return found


def precision_report(
    model_or_logp: nn.Module | Callable[[Tensor], Tensor],
    x: Shaped[Tensor, "n ..."],
    dtypes: Sequence[str | torch.dtype] = ("bf16", "f16", "f32"),
    f_max: float = 1.0,
    r: float | None = None,
    *,
    tolerance: float | None = None,
    upcast: bool = True,
    is_density: bool = False,
    weights: Float[Tensor, " n"] | None = None,
    sectors: Sequence[Sector] = (),
    enumerate_up_to: int = 14,
) -> PrecisionReport:
    """What bias each precision can cause in averages of functions bounded by ``f_max``.

    Args:
        model_or_logp: a module that gives log ψ of spins; or a module with ``is_density=True``, or any
            function, that gives log π of its rows, for the sampler of any field. Constants that a function
            refers to are rounded too.
        x: samples of π, [n, ...].
        dtypes: precisions.
        f_max: largest |f|; f may be centred.
        r: rate of geometric ergodicity of the exact chain, for the Markov-chain bound.
        tolerance: bias that is accepted; by default 3√2 f_max / √n, what n independent samples leave unseen.
        upcast: for modules that know ``upcast_sums``.
        is_density: a module gives log π.
        weights: of the samples, where they are not those of π.
        sectors: of spins, for the list of all states.
        enumerate_up_to: spins up to which total variation and KL are measured, at most 20.

    Raises:
        ValueError: fewer than two samples, log π that is not finite on a sample, or an unknown dtype.

    Example:
        >>> x = torch.randn(1000, 3, generator=torch.Generator().manual_seed(0))
        >>> precision_report(lambda x: -(x**2).sum(1) / 2, x)["f32"].verdict
        'ok'
    """
    if x.dim() < 1 or len(x) < 2:
        raise ValueError(f"x has shape {list(x.shape)}; a report needs two samples of π at least")
    if not f_max > 0 or (tolerance is not None and not tolerance > 0):
        raise ValueError(f"f_max={f_max}, tolerance={tolerance}; both must be positive")
    names = [precision_name(d) for d in dtypes]
    n = len(x)
    exact = LogDensity(model_or_logp, "f64", is_density=is_density)
    log_p = exact(x).double()
    if not bool(torch.isfinite(log_p).all()):
        raise ValueError(f"log π is not finite on {int((~torch.isfinite(log_p)).sum())} of {n} samples of π")
    w = torch.full((n,), 1.0 / n, dtype=torch.float64, device=x.device)
    if weights is not None:
        if weights.shape != (n,) or not bool((weights >= 0).all()) or float(weights.sum()) <= 0:
            raise ValueError(f"weights have shape {list(weights.shape)}; expected {n} numbers of 0 or more")
        w = weights.double() / weights.double().sum()
    effective = 1.0 / float((w * w).sum())
    allowed = ALLOWANCE * f_max / math.sqrt(effective) if tolerance is None else tolerance
    everything = _everything(x, sectors, min(enumerate_up_to, MAX_ENUMERATED))
    rows = []
    for name in names:
        low = LogDensity(model_or_logp, name, upcast=upcast, is_density=is_density)
        try:
            delta = low(x).double() - log_p
            if not bool(torch.isfinite(delta).all()):
                raise FloatingPointError(f"log π underflows {name} on a sample")
            rows.append(_row(name, delta, w, low, exact, x, everything, f_max, r, allowed))
        except FloatingPointError as error:
            inf = math.inf
            rows.append(
                PrecisionRow(
                    name,
                    inf,
                    inf,
                    1.0,
                    1.0,
                    2 * f_max,
                    None if r is None else inf,
                    0.0,
                    inf,
                    None,
                    None,
                    "overflow",
                    str(error),
                )
            )
    return PrecisionReport(tuple(rows), n, f_max, allowed)


def _row(
    name: str,
    delta: Tensor,
    w: Tensor,
    low: LogDensity,
    exact: LogDensity,
    x: Tensor,
    everything: Tensor | None,
    f_max: float,
    r: float | None,
    allowed: float,
) -> PrecisionRow:
    centred = delta - (w * delta).sum()
    sigma = float((w * centred**2).sum().sqrt())
    largest = float(centred.abs().max())
    weight = w * torch.exp(centred.min() - centred)
    ess = float(weight.sum() ** 2 / (weight**2 / w.clamp(min=1e-300)).sum())
    variation, divergence = _distances(low, exact, everything)
    least = bounds.bias(sigma, f_max, r)
    if least <= allowed:
        verdict, reason = "ok", f"the bias is at most {least:.2g}, and {allowed:.2g} is accepted"
    elif ess >= LEAST_ESS:
        verdict = "correct"
        reason = (
            f"the bias may be {least:.2g} and {allowed:.2g} is accepted: use correction='reweight' (keeps "
            f"{100 * ess:.0f} % of the samples) or 'delayed'"
        )
    else:
        verdict, reason = "no", f"σ = {sigma:.2g}: a correction would keep {100 * ess:.0f} % of the samples"
    return PrecisionRow(
        dtype=name,
        sigma=sigma,
        max_delta=largest,
        acceptance_bound=bounds.acceptance(sigma),
        worst_acceptance=bounds.worst_case(largest),
        kl_bound=bounds.kl(sigma, f_max),
        mcmc_bound=None if r is None else bounds.mcmc(sigma, f_max, r),
        ess=ess,
        batch_delta=_batch_delta(low, x[:ROWS_FOR_BATCHES]),
        total_variation=variation,
        kl=divergence,
        verdict=verdict,
        reason=reason,
    )


def _everything(x: Tensor, sectors: Sequence[Sector], limit: int) -> Tensor | None:
    """All states, where the samples are spins and few enough."""
    is_spins = x.dim() == 2 and not x.is_floating_point() and bool((x.abs() == 1).all())
    return enumerate_spins(x.shape[1], sectors).to(x.device) if is_spins and x.shape[1] <= limit else None


def _distances(
    low: LogDensity, exact: LogDensity, states: Tensor | None
) -> tuple[float | None, float | None]:
    """Total variation and KL(π‖π̃), normalised in float64."""
    if states is None:
        return None, None
    log_p = exact(states).double()
    return bounds.distances(log_p, low(states).double() - log_p)


def _batch_delta(low: LogDensity, x: Tensor) -> float:
    """Largest difference of log π̃ of one state between calls of 1, 8 and 1024 rows."""
    values = []
    for size in BATCHES:
        low.rows = size
        values.append(low(x[: min(len(x), 64)] if size == 1 else x).double())
    low.rows = None
    count = len(values[0])
    return float(max((v[:count] - values[0]).abs().max() for v in values[1:]))


class PrecisionEvaluator:
    """The report as an evaluator: ``evaluate(model, x=samples)`` gives figures such as ``"bf16/sigma"``.

    Args:
        dtypes: precisions.
        f_max: largest |f|.
        upcast: for modules that know ``upcast_sums``.
    """

    def __init__(
        self, dtypes: Sequence[str] = ("bf16", "f16", "f32"), f_max: float = 1.0, upcast: bool = True
    ) -> None:
        self.dtypes, self.f_max, self.upcast = tuple(dtypes), f_max, upcast

    def evaluate(self, subject: Any, *, x: Tensor, **options: Any) -> Mapping[str, float | None]:
        """See ``precision_report``."""
        found = precision_report(subject, x, self.dtypes, self.f_max, upcast=self.upcast, **options)
        return found.figures()
