"""Run Markov chains on an energy: refine states, anneal, temper in parallel, and say whether the chains
agree.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float64, Int64
from numpy import ndarray
from torch import Tensor

from icml_discrete_samplers.checks import Energy, evaluate, generator_of, require_states
from icml_discrete_samplers.diagnostics import AGREE, Diagnosis
from icml_discrete_samplers.diagnostics import diagnose as diagnose_draws
from icml_discrete_samplers.moves import KERNELS as KERNELS
from icml_discrete_samplers.moves import (
    Categorical as Categorical,
)
from icml_discrete_samplers.moves import (
    Gibbs as Gibbs,
)
from icml_discrete_samplers.moves import (
    HammingBall as HammingBall,
)
from icml_discrete_samplers.moves import Kernel as Kernel
from icml_discrete_samplers.moves import (
    OneHot as OneHot,
)
from icml_discrete_samplers.moves import (
    Swap as Swap,
)
from icml_discrete_samplers.moves import (
    SwendsenWang as SwendsenWang,
)
from icml_discrete_samplers.moves import kernel_of

FEWEST_CHAINS, FEWEST_DRAWS = 4, 8  # from which R-hat is judged


@dataclass(frozen=True)
class Chains:
    """The end of a run; unpacks as ``x, log_density, accept_rate``.

    Attributes:
        x: the states at the end, at the target's temperature.
        log_density: log rho of them.
        accept_rate: moves that changed a state, of all.
        betas: the inverse temperature of every step as it was executed, relative to the energy's own.
        trace: log density of each chain at every ``thin``-th step.
        kept: the states then, where they were asked for.
        diagnoses: R-hat, autocorrelation time and effective size of log density and order parameter.
        swap_rates: (tempering) accepted exchanges between neighbouring rungs.
        log_z: (tempering down to beta = 0) log Z by thermodynamic integration, over the states that the
            kernel reaches: those of the constraint that it keeps. None where an impossible state was met,
            whose share of all states is not known, or where the chains keep different constraints.
        log_z_se: its standard error over chains.
    """

    x: Int64[Tensor, "n D"]
    log_density: Float64[Tensor, " n"]
    accept_rate: float
    betas: Float64[ndarray, " steps"]
    trace: Float64[ndarray, "draws n"]
    kept: Int64[Tensor, "draws n D"] | None = None
    diagnoses: dict[str, Diagnosis] = field(default_factory=dict)
    swap_rates: tuple[float, ...] = ()
    log_z: float | None = None
    log_z_se: float | None = None

    def __iter__(self) -> Iterator[object]:
        return iter((self.x, self.log_density, self.accept_rate))

    @property
    def rhat(self) -> float:
        """The worst R-hat; NaN where too little was recorded."""
        return max((d.rhat for d in self.diagnoses.values()), default=math.nan)

    @property
    def autocorrelation_time(self) -> float:
        """The longest, in recorded draws."""
        return max((d.autocorrelation_time for d in self.diagnoses.values()), default=math.nan)

    @property
    def ess(self) -> float:
        """The least effective sample size."""
        return min((d.ess for d in self.diagnoses.values()), default=math.nan)


def run(
    energy: Energy,
    x: Int64[Tensor, "n D"] | int | None = None,
    kernel: str | Kernel = "hamming_ball",
    n_steps: int = 1000,
    thin: int = 1,
    seed: int = 0,
    *,
    init: Int64[Tensor, "n D"] | None = None,
    burn_in: int = 0,
    betas: Sequence[float] | None = None,
    temperatures: Sequence[float] | None = None,
    keep: bool = False,
    diagnose: bool = True,
    device: str | torch.device | None = None,
    callback: Callable[[int], None] | None = None,
) -> Chains:
    """Take ``n_steps`` of a kernel from the states ``x`` (or from so many random ones).

    Args:
        energy: what is sampled.
        x: states, left as they are; or how many chains begin at random states.
        kernel: ``hamming_ball``, ``categorical``, ``swendsen_wang``, ``single_site_mh``, ``gibbs``,
            ``swap``, or an object from :mod:`moves`, such as ``OneHot(groups)``.
        n_steps: recorded steps.
        thin: steps between two recorded draws; divides ``n_steps``.
        seed: of everything random.
        init: another name for ``x``, for kernels that keep a constraint.
        burn_in: steps before the recorded ones.
        betas: annealing: inverse temperatures relative to the energy's, spread evenly over the steps; their
            number divides ``n_steps``, and the last is 1.
        temperatures: parallel tempering: T of the rungs, the first 1, rising; infinity gives log Z.
        keep: keep the recorded states.
        diagnose: R-hat and its like, with a warning above 1.05 from four chains on.
        device: of random starts.
        callback: called after every ``thin`` steps, also of the burn-in, with how many were taken.

    Raises:
        ValueError: counts that do not fit, a schedule that does not end at 1, states out of range, or a
            kernel that does not fit the energy.
    """
    start = _start(energy, x if init is None else init, seed, device)
    generator = generator_of(seed, start.device)
    moves = kernel_of(kernel)
    if thin < 1 or n_steps < 0 or burn_in < 0 or n_steps % thin:
        raise ValueError(f"thin={thin} must divide n_steps={n_steps} (and burn_in={burn_in} not be negative)")
    executed = _schedule(betas, n_steps, thin)
    rungs = _rungs(temperatures, betas)
    moves.check(energy, start)
    n, draws = len(start), n_steps // thin
    state = start.repeat(len(rungs), 1)
    inverse = torch.tensor(rungs, dtype=torch.float64, device=start.device).repeat_interleave(n)
    log_density = evaluate(energy, state)
    moved = torch.zeros(len(state), dtype=torch.int64, device=start.device)
    swaps = torch.zeros(max(0, len(rungs) - 1), 2, dtype=torch.float64)
    first = float(executed[0]) if len(executed) else 1.0
    for number, length in enumerate(_parts(burn_in, thin)):
        found = moves.advance(energy, state, log_density, inverse * first, length, generator)
        state, log_density = found.x, found.log_density
        state, log_density = _exchange(state, log_density, rungs, n, swaps, False, generator, odd=number % 2)
        if callback is not None:
            callback(length)
    traces, orders, kept = [], [], []
    for draw in range(draws):
        scale = float(executed[draw * thin])
        found = moves.advance(energy, state, log_density, inverse * scale, thin, generator)
        state, log_density = found.x, found.log_density
        moved += found.moved
        state, log_density = _exchange(state, log_density, rungs, n, swaps, True, generator, odd=draw % 2)
        traces.append(log_density.cpu())
        orders.append(_order(energy, state[:n]).cpu())
        if keep:
            kept.append(state[:n].clone())
        if callback is not None:
            callback(thin)
    every = torch.stack(traces).view(draws, len(rungs), n) if draws else torch.zeros(0, len(rungs), n)
    trace = every[:, 0].numpy()
    log_z, se = _thermodynamic(every, rungs, moves.log_reached(energy, start))
    return Chains(
        state[:n].clone(),
        log_density[:n].clone(),
        float(moved[:n].double().mean()) / max(1, n_steps) if n else 0.0,
        executed,
        trace,
        torch.stack(kept) if keep and kept else None,
        _diagnosed(trace, orders, betas, n) if diagnose else {},
        tuple((swaps[:, 0] / swaps[:, 1].clamp(min=1)).tolist()),
        log_z,
        se,
    )


def random_states(energy: Energy, n: int, generator: torch.Generator) -> Int64[Tensor, "n D"]:
    """Even states."""
    return torch.randint(0, energy.V, (n, energy.D), generator=generator, device=generator.device)


def _start(energy: Energy, x: Tensor | int | None, seed: int, device: object) -> Int64[Tensor, "n D"]:
    if x is None:
        raise ValueError("give the states to begin with as x (or init=), or how many random ones")
    if isinstance(x, int):
        if x < 0:
            raise ValueError(f"{x} chains: the number must not be negative")
        return random_states(energy, x, generator_of(seed + 1, device or "cpu"))
    return require_states(x, energy.D, energy.V).clone()


def _schedule(betas: Sequence[float] | None, n_steps: int, thin: int) -> Float64[ndarray, " steps"]:
    if betas is None:
        return np.ones(n_steps)
    values = np.asarray(betas, dtype=np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all() or (values < 0).any():
        raise ValueError(f"betas={betas!r} must be finite numbers that are not negative")
    if values[-1] != 1.0:
        raise ValueError(f"the last of betas is {values[-1]}; it must be 1, the target's own temperature")
    if n_steps % len(values) or (n_steps // len(values)) % thin:
        raise ValueError(
            f"{len(values)} betas do not divide n_steps={n_steps} into equal parts of a multiple of "
            f"thin={thin}"
        )
    return np.repeat(values, n_steps // len(values))


def _rungs(temperatures: Sequence[float] | None, betas: object) -> list[float]:
    if temperatures is None:
        return [1.0]
    values = [float(t) for t in temperatures]
    if betas is not None:
        raise ValueError("give betas (annealing) or temperatures (tempering), not both")
    if not values or values[0] != 1.0 or any(b <= a for a, b in pairwise(values)):
        raise ValueError(f"temperatures={temperatures!r} must begin at 1 and rise; infinity may be the last")
    return [0.0 if math.isinf(t) else 1.0 / t for t in values]


def _parts(steps: int, thin: int) -> list[int]:
    return [thin] * (steps // thin) + ([steps % thin] if steps % thin else [])


def _exchange(
    state: Tensor,
    log_density: Tensor,
    rungs: list[float],
    n: int,
    swaps: Tensor,
    count: bool,
    generator: torch.Generator,
    odd: int = 0,
) -> tuple[Tensor, Tensor]:
    """Exchange states of neighbouring rungs, alternately of even and of odd pairs."""
    if len(rungs) < 2:
        return state, log_density
    x, values = state.view(len(rungs), n, -1).clone(), log_density.view(len(rungs), n).clone()
    for low in range(odd, len(rungs) - 1, 2):
        high = low + 1
        ratio = (rungs[low] - rungs[high]) * (values[high] - values[low])
        u = torch.rand(n, generator=generator, device=x.device, dtype=torch.float64)
        accept = u < torch.exp(ratio.nan_to_num(0.0).clamp(max=0.0))
        for part, flag in ((x, accept[:, None]), (values, accept)):
            part[low], part[high] = (
                torch.where(flag, part[high], part[low]),
                torch.where(flag, part[low], part[high]),
            )
        if count:
            swaps[low] += torch.tensor([float(accept.sum()), float(n)])
    return x.view(len(rungs) * n, -1), values.view(-1)


def _order(energy: Energy, x: Tensor) -> Float64[Tensor, " n"]:
    """The energy's order parameter, or the mean symbol from -1 to 1."""
    if hasattr(energy, "order_parameter"):
        return energy.order_parameter(x).double()
    return (2.0 * x.double() / (energy.V - 1) - 1.0).mean(1)


def _diagnosed(trace: ndarray, orders: list[Tensor], betas: object, n: int) -> dict[str, Diagnosis]:
    if betas is not None or n < 1 or len(trace) < FEWEST_DRAWS or not np.isfinite(trace).all():
        return {}
    found = {
        "log_density": diagnose_draws(trace),
        "order_parameter": diagnose_draws(torch.stack(orders).numpy()),
    }
    if n >= FEWEST_CHAINS:
        for name, diagnosis in found.items():
            if diagnosis.rhat > AGREE:
                warnings.warn(
                    f"R-hat of the {name} is {diagnosis.rhat:.3f} over {n} chains: they have not "
                    "mixed; run longer, or "
                    "take another kernel or temperatures=",
                    RuntimeWarning,
                    stacklevel=3,
                )
    return found


def _thermodynamic(
    every: Float64[Tensor, "draws rungs n"], rungs: list[float], log_reached: float | None
) -> tuple[float | None, float | None]:
    """log Z = log (number of states) + integral over beta of E_beta[log rho], chain by chain.

    The trapezoid's error is corrected by the variances, which are the integrand's slopes (Friel, Hurn and
    Wyse, Improving power posterior estimation of statistical evidence, Statistics and Computing 24 (2014)
    709-723).
    """
    if rungs[-1] != 0.0 or log_reached is None or len(every) < 2 or every.shape[2] < 2:
        return None, None
    if not bool(torch.isfinite(every).all()):
        return None, None
    mean = every.mean(0)
    # Over all chains: within one, variances are too small by the correlation of its draws.
    slope = every.var((0, 2), correction=0)
    total = torch.full((every.shape[2],), log_reached, dtype=torch.float64)
    for k in range(len(rungs) - 1):
        h = rungs[k] - rungs[k + 1]
        total += 0.5 * h * (mean[k] + mean[k + 1]) - h * h / 12 * (slope[k] - slope[k + 1])
    return float(total.mean()), float(total.std() / math.sqrt(len(total)))


class MarkovChains:
    """A kernel on an energy as a sampler: the ends of independent chains from random states.

    Args:
        energy: what is sampled.
        kernel: by name or itself.
        n_steps: steps of each chain.
        temperatures: rungs of parallel tempering.
        device: where the chains run.
    """

    def __init__(
        self,
        energy: Energy,
        kernel: str | Kernel = "hamming_ball",
        n_steps: int = 1000,
        *,
        temperatures: Sequence[float] | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.energy, self.kernel, self.n_steps = energy, kernel_of(kernel), n_steps
        self.temperatures, self.device = temperatures, device

    def sample(self, n: int, *, seed: int, x: Int64[Tensor, "n D"] | None = None) -> Int64[Tensor, "n D"]:
        """The ends of n chains, from ``x`` where it is given."""
        if x is not None and len(x) != n:
            raise ValueError(f"{len(x)} states were given for n={n} chains")
        found = run(
            self.energy,
            n if x is None else x,
            self.kernel,
            self.n_steps,
            max(1, self.n_steps),
            seed,
            temperatures=self.temperatures,
            diagnose=False,
            device=self.device,
        )
        return found.x
