"""A trained masked sampler: independent draws with weights, bounds of log Z, coverage, and one file to keep
it in.
"""

from __future__ import annotations

import math
import warnings
from pathlib import Path as File
from typing import Any, NamedTuple

import torch
from icml_core.checkpoint import load_state, save_state, stored_identity
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers import mcmc
from icml_discrete_samplers.checks import Energy, evaluate, generator_of, require_states
from icml_discrete_samplers.masked import (
    Path,
    Steps,
    path_log_prob,
    random_order,
    roll_back,
    rollout,
    schedule,
)
from icml_discrete_samplers.moves import Kernel
from icml_discrete_samplers.networks import MaskedModel, from_config

KIND = "icml-discrete-samplers-masked"
BATCH = 2048  # paths at once
QUANTILE, COVERED = (
    0.001,
    0.95,
)  # of the model's own log-probabilities; share of chain states that must be above


class LogZ(NamedTuple):
    """Bounds of log Z, the standard errors of the two sides, and the effective share of the draws.

    Attributes:
        elbo: mean of log_rnd over the sampler's paths; below log Z.
        elbo_se: its standard error.
        iwelbo: log mean exp of log_rnd; below log Z on average, and close to it where the weights are even.
        eubo: mean of log_rnd over paths noised back from true samples, above log Z; without true samples the
            self-normalised estimate from the draws, which sees only modes that the sampler has.
        eubo_se: its standard error; NaN for the estimate.
        ess: effective share of the draws, 0 to 1.
        from_truth: whether the upper side used true samples.
    """

    elbo: float
    elbo_se: float
    iwelbo: float
    eubo: float
    eubo_se: float
    ess: float
    from_truth: bool


class Bounds(NamedTuple):
    """Lower bounds of log p_model(x): the mean over orders, and the tighter log of the mean over orders."""

    mean: Float64[Tensor, " n"]
    tight: Float64[Tensor, " n"]


class Coverage(NamedTuple):
    """What share of Markov-chain states the sampler deems as likely as its own draws, and whether it is
    enough.

    Attributes:
        share: of the judged chain states; NaN where there are none.
        complete: whether it is 0.95 or more.
        judged: chain states whose density is among that of the sampler's own draws, which alone are judged.
    """

    share: float
    complete: bool
    judged: int = 0


class MaskedSampler:
    """Draws independent states by revealing sites in random order.

    Args:
        model: the network.
        energy: the target; weights, bounds and coverage need it.
        log_z_learned: what training took log Z to be, where the loss learns it.
        history: figures of training.
    """

    def __init__(
        self,
        model: MaskedModel,
        energy: Energy | None = None,
        *,
        log_z_learned: float | None = None,
        history: list[dict[str, float]] | None = None,
    ) -> None:
        self.model, self.energy = model, energy
        self.D, self.V = model.D, model.V
        self.log_z_learned = log_z_learned
        self.history = history or []
        self.coverage_: Coverage | None = None

    @property
    def device(self) -> torch.device:
        """Where it draws."""
        return self.model.device

    @property
    def fingerprint(self) -> str | None:
        """The hash of a labelled problem."""
        return getattr(self.energy, "fingerprint", None)

    def sample(self, n: int, k: Steps = 1, seed: int | None = None) -> Int64[Tensor, "n D"]:
        """n independent states in about D / k network calls.

        Raises:
            ValueError: n < 0, or an impossible k.
        """
        return self._paths(n, k, seed)[0].x

    def sample_weighted(
        self, n: int, k: Steps = 1, seed: int | None = None
    ) -> tuple[Int64[Tensor, "n D"], Float64[Tensor, " n"]]:
        """States with log w = log rho(x) - log F(path): E[w] = Z, and weighted means are those of the
        target.
        """
        path, log_prob = self._paths(n, k, seed)
        return path.x, evaluate(self._energy(), path.x) - log_prob

    def labelled(self, n: int, k: Steps = 1, seed: int | None = None) -> dict[str, Any]:
        """Draws of a labelled problem, in its domain: ``samples`` by label, ``energies``, ``fingerprint``.

        Raises:
            TypeError: the energy has no labels.
        """
        energy: Any = self._energy()
        if not hasattr(energy, "labelled"):
            raise TypeError(f"{type(energy).__name__} has no labels; QUBO and Polynomial have")
        x = self.sample(n, k, seed)
        return {
            "samples": energy.labelled(x),
            "energies": energy.energy(x).tolist(),
            "fingerprint": energy.fingerprint,
        }

    def best(self, n: int, draws: int = 4096, k: Steps = 1, seed: int | None = None) -> tuple[Tensor, Tensor]:
        """The n most probable distinct states of so many draws, with their energies, the most probable first.

        The energy is E of a problem that has one, as in :meth:`labelled`, and else -log rho.
        """
        energy: Any = self._energy()
        x = self.sample(draws, k, seed).unique(dim=0)
        log_rho = evaluate(energy, x)
        order = log_rho.argsort(descending=True, stable=True)[:n]
        x, log_rho = x[order], log_rho[order]
        return x, (energy.energy(x).double() if hasattr(energy, "energy") else -log_rho)

    def log_z(
        self, n: int = 4096, seed: int | None = None, truth: Int64[Tensor, "m D"] | None = None
    ) -> LogZ:
        """Two-sided bounds of log Z from n draws, one site a step, and true samples where there are some."""
        _, log_rnd = self.sample_weighted(n, 1, seed)
        if n < 2 or not bool((log_rnd > -torch.inf).any()):
            raise ValueError(f"{n} draws of positive density are too few for bounds; draw more")
        finite = log_rnd.clamp(min=-1e300)
        weights = finite.softmax(0)
        eubo, eubo_se = float((weights * finite).sum()), math.nan
        if truth is not None:
            above = self.log_rnd(truth, seed=None if seed is None else seed + 1)
            eubo, eubo_se = float(above.mean()), float(above.std() / math.sqrt(len(above)))
        return LogZ(
            float(finite.mean()),
            float(finite.std() / math.sqrt(n)),
            float(finite.logsumexp(0) - math.log(n)),
            eubo,
            eubo_se,
            float(1 / weights.square().sum() / n),
            truth is not None,
        )

    @torch.no_grad()
    def log_rnd(self, x: Int64[Tensor, "n D"], seed: int | None = None) -> Float64[Tensor, " n"]:
        """log rho(x) - log F(path) of states noised back in a fresh random order, one site a step."""
        x = require_states(x, self.D, self.V).to(self.device)
        generator = generator_of(seed, self.device)
        found = []
        for part in x.split(self._batch()):
            path = roll_back(part, 1, generator)
            found.append(evaluate(self._energy(), part) - path_log_prob(self.model, path).double())
        return torch.cat(found) if found else torch.zeros(0, dtype=torch.float64)

    @torch.no_grad()
    def log_prob_bounds(self, x: Int64[Tensor, "n D"], n_perm: int = 8, seed: int | None = None) -> Bounds:
        """Bounds from below of log p_model(x) = log E_order[p(x | order)], from ``n_perm`` random orders
        each.
        """
        if n_perm < 1:
            raise ValueError(f"n_perm={n_perm} must be positive")
        x = require_states(x, self.D, self.V).to(self.device)
        generator = generator_of(seed, self.device)
        sizes = schedule(self.D, 1, generator)
        parts = []
        for part in x.split(max(1, self._batch() // n_perm)):
            copies = part.repeat_interleave(n_perm, 0)
            path = Path(copies, random_order(len(copies), self.D, generator), sizes)
            parts.append(path_log_prob(self.model, path).double().view(-1, n_perm))
        logs = torch.cat(parts) if parts else torch.zeros(0, n_perm, dtype=torch.float64)
        return Bounds(logs.mean(1), logs.logsumexp(1) - math.log(n_perm))

    def coverage(
        self,
        kernel: str | Kernel = "hamming_ball",
        chains: int = 200,
        n_steps: int = 2000,
        seed: int = 0,
        n_perm: int = 4,
        initial: Int64[Tensor, "m D"] | None = None,
    ) -> Coverage:
        """Share of states of independent chains that the sampler deems likelier than its own least 0.1 %.

        The chains begin at random states (or at ``initial``) and know nothing of the sampler. Chains that
        ended in poor optima, less dense than the sampler's own least 0.1 %, show nothing and are left out.
        Below 0.95 a warning says that modes are missing: a loss that has converged on a few modes does not
        show it.
        """
        energy = self._energy()
        drawn = self.sample(2000, 1, seed)
        own = self.log_prob_bounds(drawn, n_perm, seed + 1).tight
        limit = own.quantile(QUANTILE)
        dense = evaluate(energy, drawn).clamp(min=-1e300).quantile(QUANTILE)
        start: Any = chains if initial is None else initial
        states = mcmc.run(
            energy, start, kernel, n_steps, n_steps, seed=seed + 2, diagnose=False, device=self.device
        )
        possible = states.log_density > -torch.inf
        judged = states.x[possible & (states.log_density >= dense)]
        others = self.log_prob_bounds(judged, n_perm, seed + 3).tight
        share = float((others >= limit).double().mean()) if len(others) else math.nan
        self.coverage_ = Coverage(share, share >= COVERED, len(judged))
        if not len(judged):
            found = (
                "possible state" if not bool(possible.any()) else "state as dense as the sampler's own draws"
            )
            warnings.warn(
                f"coverage is not known: none of {len(states.x)} Markov chains found a {found} in {n_steps} "
                "steps; give more n_steps, another kernel, or initial= states",
                RuntimeWarning,
                stacklevel=2,
            )
        elif not self.coverage_.complete:
            warnings.warn(
                f"modes missing: {1 - share:.0%} of the states of independent Markov chains are less "
                "likely under the "
                "sampler than its own draws are; train longer, or with a buffer and MCMC exploration",
                RuntimeWarning,
                stacklevel=2,
            )
        return self.coverage_

    def save(self, path: str | File) -> None:
        """Write weights and configuration into one safetensors file; no code is pickled.

        Raises:
            TypeError: the network is the user's own and has no ``config``.
        """
        config = getattr(self.model, "config", None)
        if config is None:
            raise TypeError(
                f"{type(self.model).__name__} has no configuration to rebuild it from; keep its "
                "state_dict yourself"
            )
        state = {"model": dict(self.model.state_dict()), "log_z": self.log_z_learned}
        save_state(File(path), state, kind=KIND, identity={"network": config})

    @classmethod
    def load(
        cls, path: str | File, energy: Energy | None = None, device: str | torch.device = "cpu"
    ) -> MaskedSampler:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: another kind of file, or an energy of another size.
        """
        config = saved_network(File(path))
        state = load_state(File(path), kind=KIND, identity={"network": config}, device=device)
        model = from_config(config)
        if not isinstance(model, MaskedModel):
            raise ValueError(f"{path} holds the network {config.get('name')!r}, which is no masked model")
        if energy is not None and (energy.D, energy.V) != (model.D, model.V):
            raise ValueError(
                f"{path} holds a sampler of D={model.D}, V={model.V}; the energy has D={energy.D}, "
                f"V={energy.V}"
            )
        model = model.to(next(iter(state["model"].values())).dtype).to(device)
        model.load_state_dict(state["model"])
        return cls(model, energy, log_z_learned=state["log_z"])

    def _energy(self) -> Energy:
        if self.energy is None:
            raise ValueError("this needs the energy; load(path, energy=...) or set .energy")
        return self.energy

    def _batch(self) -> int:
        return max(1, min(BATCH, 4_000_000 // max(1, self.D * 16)))

    @torch.no_grad()
    def _paths(self, n: int, k: Steps, seed: int | None) -> tuple[Path, Float64[Tensor, " n"]]:
        if n < 0:
            raise ValueError(f"n={n} must not be negative")
        generator = generator_of(seed, self.device)
        sizes = schedule(self.D, k, generator)
        parts = [
            rollout(self.model, min(BATCH, n - first), sizes, generator)
            for first in range(0, max(n, 1), BATCH)
        ]
        x, order = (torch.cat([getattr(p, name) for p, _ in parts]) for name in ("x", "order"))
        return Path(x, order, sizes), torch.cat([log_prob for _, log_prob in parts])


def saved_network(path: File, kind: str = KIND) -> dict[str, Any]:
    """The configuration of the network in a saved file.

    Raises:
        FileNotFoundError: no such file.
        ValueError: it is none of ours.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no saved sampler {path}")
    try:
        config = stored_identity(path, kind=kind)["network"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no saved sampler of icml-discrete-samplers: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path}: the network's configuration is damaged")
    return config
