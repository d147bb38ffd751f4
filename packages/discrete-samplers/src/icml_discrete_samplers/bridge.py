"""Data-to-energy Schrödinger bridges on discrete states: a forward and a backward chain that redraw all
sites.

Reference: every site stays with logit ``stay`` and else moves evenly. Iterative proportional fitting, round
after round: (a) the backward chain B learns, by likelihood, to undo forward paths from the data;
(b) the forward chain F learns to undo B from the energy, by the variance of

    log_rnd = sum_n [log B(x_n | x_{n+1}) - log F(x_{n+1} | x_n)] + alpha log rho_1(x_N)

within groups of paths that share x_0: the unknown constant of x_0 drops out, so that the density of the data
is never needed. Off-policy, most groups begin at ends that Markov chains on rho_1 found, rolled back by B.
(arXiv 2602.05961, section 5.)
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any

import torch
from icml_core.checkpoint import load_state, save_state
from icml_kernels import unmask_step
from jaxtyping import Float, Int64
from torch import Tensor, nn

from icml_discrete_samplers.checks import Energy, evaluate, generator_of, require_sizes, require_states
from icml_discrete_samplers.losses import grouped_log_variance
from icml_discrete_samplers.mcmc import random_states
from icml_discrete_samplers.moves import Kernel, kernel_of
from icml_discrete_samplers.networks import UniformMLP, from_config
from icml_discrete_samplers.sampler import saved_network
from icml_discrete_samplers.training_state import (
    Floor,
    History,
    hash_of,
    packed,
    probe,
    require_same_energy,
    unpacked,
)

KIND = "icml-discrete-samplers-bridge"
Data = Int64[Tensor, "m D"] | Callable[[int], Tensor]
Callback = Callable[[int, dict[str, float]], None]
# alpha from these shares of the rounds on: 0.4 to 1 by rounds 5, 10 and 15 of 50.
ALPHAS = ((0.0, 0.4), (0.1, 0.6), (0.2, 0.8), (0.3, 1.0))


@torch.no_grad()
def roll(
    model: UniformMLP,
    x: Int64[Tensor, "n D"],
    steps: int,
    generator: torch.Generator,
    *,
    backward: bool = False,
) -> Int64[Tensor, "N_1 n D"]:
    """The states of a chain at its times 0..N, whichever way it runs; x stands at its start."""
    path = [x]
    for n in range(steps):
        time = (steps - n) / steps if backward else n / steps
        logits = model.logits(path[-1], torch.full((len(x), 1), time, device=x.device))
        uniform = torch.rand(x.shape, generator=generator, device=x.device, dtype=torch.float64)
        path.append(unmask_step(logits, uniform, trusted=True).symbol)
    return torch.stack(path[::-1] if backward else path)


def path_log_prob(
    model: UniformMLP, path: Int64[Tensor, "N_1 n D"], *, backward: bool = False
) -> Float[Tensor, " n"]:
    """log-probability of the steps of known paths, given their start: all steps in one call."""
    steps, n = path.shape[0] - 1, path.shape[1]
    seen, next_ = (path[1:], path[:-1]) if backward else (path[:-1], path[1:])
    times = torch.arange(steps, device=path.device) + int(backward)
    t = (times / steps).repeat_interleave(n)[:, None]
    logp = model.logits(seen.flatten(0, 1), t).log_softmax(-1)
    return logp.gather(-1, next_.flatten(0, 1)[..., None])[..., 0].sum(1).view(steps, n).sum(0)


class Bridge:
    """A trained pair of chains between data (time 0) and an energy (time 1).

    Args:
        forward: network of the chain from the data.
        backward: network of the chain from the energy.
        steps: N of both.
        history: figures of training.
    """

    def __init__(
        self,
        forward: UniformMLP,
        backward: UniformMLP,
        steps: int,
        history: list[dict[str, float]] | None = None,
    ) -> None:
        self.forward_model, self.backward_model, self.steps = forward, backward, steps
        self.history = history or []
        self.D, self.V = forward.D, forward.V

    def transport(self, x0: Int64[Tensor, "n D"], seed: int | None = None) -> Int64[Tensor, "n D"]:
        """States at the energy's end, one for each given at the data's."""
        return self._moved(self.forward_model, x0, seed, backward=False)

    def reverse(self, x1: Int64[Tensor, "n D"], seed: int | None = None) -> Int64[Tensor, "n D"]:
        """States at the data's end, one for each given at the energy's."""
        return self._moved(self.backward_model, x1, seed, backward=True)

    def sample(self, n: int, *, seed: int, x0: Data | None = None) -> Int64[Tensor, "n D"]:
        """Transport n draws of the data: a callable, or rows of a tensor drawn with replacement.

        Raises:
            ValueError: no data.
        """
        if x0 is None:
            x0 = getattr(self, "data", None)
        if x0 is None:
            raise ValueError("give the data to transport as x0=")
        device = next(self.forward_model.parameters()).device
        return self.transport(_draw(x0, n, generator_of(seed, device), self.D, self.V), seed)

    def _moved(self, model: UniformMLP, x: Tensor, seed: int | None, *, backward: bool) -> Tensor:
        device = next(model.parameters()).device
        x = require_states(x, self.D, self.V).to(device)
        path = roll(model, x, self.steps, generator_of(seed, device), backward=backward)
        return path[0] if backward else path[-1]

    def save(self, path: str | File) -> None:
        """Write both networks and their configuration into one safetensors file."""
        config = {
            "forward": self.forward_model.config,
            "backward": self.backward_model.config,
            "steps": self.steps,
        }
        state = {
            "forward": dict(self.forward_model.state_dict()),
            "backward": dict(self.backward_model.state_dict()),
        }
        save_state(File(path), state, kind=KIND, identity={"network": config})

    @classmethod
    def load(cls, path: str | File, device: str | torch.device = "cpu") -> Bridge:
        """Read what :meth:`save` wrote.

        Raises:
            FileNotFoundError: no such file.
            ValueError: another kind of file.
        """
        config = saved_network(File(path), KIND)
        state = load_state(File(path), kind=KIND, identity={"network": config}, device=device)
        models: list[UniformMLP] = []
        if not isinstance(config.get("steps"), int) or config["steps"] < 1:
            raise ValueError(f"{path}: the number of steps is {config.get('steps')!r}, so it holds no bridge")
        for name in ("forward", "backward"):
            options, tensors = config.get(name), state.get(name)
            if not isinstance(options, dict) or options.get("name") != "uniform_mlp" or not tensors:
                raise ValueError(f"{path} holds no {name} network of a bridge")
            model = from_config(options)
            assert isinstance(model, UniformMLP)
            model = model.to(next(iter(tensors.values())).dtype).to(device)
            model.load_state_dict(tensors)
            models.append(model)
        return cls(*models, config["steps"])


@dataclass(frozen=True)
class BridgeOptions:
    """How a bridge is trained; the defaults are the official ones.

    Attributes:
        steps: N.
        rounds: of both halves.
        updates: of each half.
        off_policy: begin two of three groups at states of Markov chains on the energy.
        batch: paths an update.
        group: paths that share x_0.
        stay: logit of staying at the reference; None for 2.0 off-policy and 3.5 on-policy.
        lr_forward, lr_backward, weight_decay, clip: of AdamW.
        alphas: shares of the rounds, and alpha from there on.
        mcmc, chains, mcmc_steps: kernel, number and steps of the chains before each off-policy update.
        hidden, layers: of the networks.
    """

    steps: int = 20
    rounds: int = 50
    updates: int = 2500
    off_policy: bool = True
    batch: int = 256
    group: int = 2
    stay: float | None = None
    lr_forward: float = 1e-4
    lr_backward: float = 1e-3
    weight_decay: float = 1e-4
    clip: float = 1.0
    alphas: tuple[tuple[float, float], ...] = ALPHAS
    mcmc: str | Kernel = "hamming_ball"
    chains: int = 256
    mcmc_steps: int = 200
    hidden: int = 256
    layers: int = 4

    def __post_init__(self) -> None:
        for name in ("steps", "rounds", "updates", "batch", "chains", "mcmc_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if self.group < 2 or self.batch % self.group:
            raise ValueError(f"group={self.group} must be 2 or more and divide batch={self.batch}")
        if not self.alphas or self.alphas[0][0] != 0 or self.alphas[-1][1] != 1.0:
            raise ValueError(f"alphas={self.alphas} must begin at share 0 and end with alpha 1")
        kernel_of(self.mcmc)

    @property
    def bias(self) -> float:
        """The reference's logit of staying."""
        return (2.0 if self.off_policy else 3.5) if self.stay is None else self.stay

    def alpha(self, round_: int) -> float:
        """alpha of a round."""
        share = round_ / self.rounds
        return [value for start, value in self.alphas if start <= share + 1e-12][-1]


class BridgeTrainer:
    """Iterative proportional fitting from data to an energy; continues where it was stopped, between rounds.

    Args:
        p0: data: a tensor of states, or a function of a number that gives as many. A checkpoint knows a
            tensor again by its hash; the randomness of a function is its own and in no checkpoint.
        energy: rho_1.
        options: or as keyword arguments.
        seed: of everything random.
        device: where the networks lie.

    Raises:
        ValueError: options or data that do not fit.
    """

    def __init__(
        self,
        p0: Data,
        energy: Energy,
        options: BridgeOptions | None = None,
        *,
        seed: int = 0,
        device: str | torch.device = "cpu",
        **keywords: Any,
    ) -> None:
        if options is not None and keywords:
            raise ValueError(f"give options= or keywords, not both: {', '.join(keywords)}")
        require_sizes(energy.D, energy.V)
        self.p0, self.energy, self.options = p0, energy, options or BridgeOptions(**keywords)
        self.seed, self.device = seed, torch.device(device)
        self.generator = generator_of(seed, self.device)
        if isinstance(p0, Tensor):
            require_states(p0, energy.D, energy.V, "p0")
        self.x0(1)  # refuses data that do not fit
        self.forward, self.backward = self._network(seed), self._network(seed + 1)
        self.forward_optimizer = self._optimizer(self.forward, self.options.lr_forward)
        self.backward_optimizer = self._optimizer(self.backward, self.options.lr_backward)
        self.chains = random_states(energy, self.options.chains, self.generator)
        self.round_ = 0
        self.history: History = []
        self._floor = Floor()

    def _network(self, seed: int) -> UniformMLP:
        o = self.options
        model = UniformMLP(self.energy.D, self.energy.V, o.hidden, o.layers, o.bias, seed)
        return model.to(self.device)

    def _optimizer(self, model: nn.Module, lr: float) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=self.options.weight_decay)

    def x0(self, n: int) -> Int64[Tensor, "n D"]:
        """Draws of the data."""
        return _draw(self.p0, n, self.generator, self.energy.D, self.energy.V)

    def fit(
        self,
        rounds: int | None = None,
        callback: Callback | None = None,
        progress: Callable[[float], None] | None = None,
    ) -> Bridge:
        """Run so many rounds (by default all that remain), and give the bridge.

        Args:
            rounds: now.
            callback: called with the round and its figures.
            progress: called after every update of either half with its loss.

        Raises:
            ValueError: a negative number.
        """
        if rounds is not None and rounds < 0:
            raise ValueError(f"rounds={rounds} must not be negative")
        end = self.options.rounds if rounds is None else self.round_ + rounds
        while self.round_ < end:
            figures = self._round(progress or (lambda loss: None))
            self.round_ += 1
            self.history.append(figures)
            if callback is not None:
                callback(self.round_, figures)
        found = Bridge(self.forward, self.backward, self.options.steps, self.history)
        found.data = self.p0  # type: ignore[attr-defined]
        return found

    def _round(self, progress: Callable[[float], None]) -> dict[str, float]:
        o = self.options
        alpha = o.alpha(self.round_)
        if self.round_ and alpha != o.alpha(self.round_ - 1):
            self.backward = self._network(self.seed + 1 + self.round_)
            self.backward_optimizer = self._optimizer(self.backward, o.lr_backward)
        likelihoods, variances = [], []
        for _ in range(o.updates):
            likelihoods.append(self._backward_update())
            progress(likelihoods[-1])
        for step in range(o.updates):
            variances.append(self._forward_update(step, alpha))
            progress(variances[-1])
        last = max(1, o.updates // 10)
        return {
            "alpha": alpha,
            "nll_backward": sum(likelihoods[-last:]) / last,
            "variance_forward": sum(variances[-last:]) / last,
        }

    def _backward_update(self) -> float:
        path = roll(self.forward, self.x0(self.options.batch), self.options.steps, self.generator)
        loss = -path_log_prob(self.backward, path, backward=True).mean()
        return self._descend(loss, self.backward, self.backward_optimizer)

    def _forward_update(self, step: int, alpha: float) -> float:
        o = self.options
        groups = o.batch // o.group
        if o.off_policy and step % 3 != 0:
            ends = self._explored(groups, alpha)
            known = roll(self.backward, ends, o.steps, self.generator, backward=True)
            fresh = self._from(known[0].repeat_interleave(o.group - 1, 0)).unflatten(1, (groups, o.group - 1))
            path = torch.cat([known[:, :, None], fresh], 2).flatten(1, 2)
        else:
            path = self._from(self.x0(groups).repeat_interleave(o.group, 0))
        with torch.no_grad():
            target = self._floor(evaluate(self.energy, path[-1]), alpha)
            target = target + path_log_prob(self.backward, path, backward=True).double()
        log_rnd = target - path_log_prob(self.forward, path).double()
        return self._descend(grouped_log_variance(log_rnd, o.group), self.forward, self.forward_optimizer)

    def _from(self, x0: Tensor) -> Int64[Tensor, "N_1 n D"]:
        return roll(self.forward, x0, self.options.steps, self.generator)

    def _explored(self, n: int, alpha: float) -> Int64[Tensor, "n D"]:
        o = self.options
        kernel = kernel_of(o.mcmc)
        beta = torch.full((len(self.chains),), alpha, dtype=torch.float64, device=self.device)
        log_density = evaluate(self.energy, self.chains)
        self.chains = kernel.advance(
            self.energy, self.chains, log_density, beta, o.mcmc_steps, self.generator
        ).x
        chosen = torch.randint(0, len(self.chains), (n,), generator=self.generator, device=self.device)
        return self.chains[chosen]

    def _descend(self, loss: Tensor, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(model.parameters(), self.options.clip))
        value = float(loss.detach())
        if not (math.isfinite(value) and math.isfinite(norm)):
            raise FloatingPointError(
                f"in round {self.round_ + 1} a loss is {value} and its gradient's norm {norm}; lower "
                f"lr_forward={self.options.lr_forward} or lr_backward={self.options.lr_backward}"
            )
        optimizer.step()
        return value

    def _identity(self) -> dict[str, Any]:
        known: dict[str, Any] = json.loads(json.dumps(vars(self.options), default=repr))
        data = hash_of(self.p0) if isinstance(self.p0, Tensor) else "a callable"
        return {"options": known, "seed": self.seed, "D": self.energy.D, "V": self.energy.V, "data": data}

    def save(self, path: str | File) -> None:
        """Write everything that is needed to go on."""
        state = {
            "forward": dict(self.forward.state_dict()),
            "backward": dict(self.backward.state_dict()),
            "forward_optimizer": self.forward_optimizer.state_dict(),
            "backward_optimizer": self.backward_optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "chains": self.chains,
            "round": self.round_,
            "history": packed(self.history),
            "least": self._floor.least,
            "probe": probe(self.energy, self.device),
        }
        save_state(File(path), state, kind=KIND + "-training", identity=self._identity())

    def restore(self, path: str | File) -> BridgeTrainer:
        """Take up what :meth:`save` wrote for the same training; gives itself.

        Raises:
            FileNotFoundError: no such file.
            ValueError: it belongs to another training.
        """
        state = load_state(File(path), kind=KIND + "-training", identity=self._identity(), device=self.device)
        require_same_energy(path, state["probe"], self.energy, self.device)
        for name in ("forward", "backward", "forward_optimizer", "backward_optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.generator.set_state(state["generator"].cpu())
        self.chains, self.round_, self.history = state["chains"], state["round"], unpacked(state["history"])
        self._floor = Floor(state["least"])
        return self


def fit_bridge(
    p0: Data,
    energy: Energy,
    steps: int = 20,
    rounds: int = 50,
    off_policy: bool = True,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
    callback: Callback | None = None,
    **options: Any,
) -> Bridge:
    """Train a bridge from data to an energy.

    Args:
        p0: data: states [m, D], or a function of a number that gives as many; for energy-to-energy bridges
            the ``sample`` of a sampler or states of Markov chains.
        energy: what the data are transported to.
        steps: N.
        rounds: of iterative proportional fitting.
        off_policy: explore the energy by Markov chains.
        seed: of everything random.
        device: where the networks lie.
        callback: called with the round and its figures.
        options: see :class:`BridgeOptions`.

    Raises:
        ValueError: options or data that do not fit.
    """
    chosen = BridgeOptions(steps=steps, rounds=rounds, off_policy=off_policy, **options)
    return BridgeTrainer(p0, energy, chosen, seed=seed, device=device).fit(callback=callback)


def _draw(p0: Data, n: int, generator: torch.Generator, D: int, V: int) -> Int64[Tensor, "n D"]:
    if isinstance(p0, Tensor):
        if not len(p0):
            raise ValueError("the data are empty; give one state or more")
        chosen = torch.randint(0, len(p0), (n,), generator=generator, device=generator.device)
        return require_states(p0[chosen.to(p0.device)], D, V, "p0").to(generator.device)
    states = require_states(p0(n), D, V, "what p0 gave").to(generator.device)
    if len(states) != n:
        raise ValueError(f"p0({n}) gave {len(states)} states")
    return states
