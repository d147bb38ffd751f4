"""Off-policy training of a masked sampler: replay by importance weights, and MCMC exploration of what it
holds.

    for step in range(n_steps):
        beta = anneal(step)
        every 500 steps: mcmc_buffer.add(MCMC(buffer.sample(128)))
        step % (ratio + 1) == 0:  path = rollout(model);  buffer.add(x, log rho, log_rnd)
        else:                     x = 0.8 buffer + 0.2 mcmc_buffer;  path = roll_back(x) in a fresh random
            order
        loss(log_rnd + (beta - 1) log rho);  AdamW step

log_rnd is always computed anew under the current network from the path's end and order alone; no probability
of the policy that found a state is used again, except as its priority in the buffer. (arXiv 2602.05961,
section 4.)
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as File
from typing import Any, Literal

import torch
from icml_core.checkpoint import load_state, save_state
from icml_core.optimizers import torch_optimizer
from jaxtyping import Float, Float64, Int64
from torch import Tensor, nn

from icml_discrete_samplers import losses
from icml_discrete_samplers.checks import Energy, evaluate, generator_of, require_sizes, require_states
from icml_discrete_samplers.masked import Path, Steps, path_log_prob, roll_back, rollout, schedule
from icml_discrete_samplers.moves import Kernel, kernel_of
from icml_discrete_samplers.networks import MaskedModel, build_masked
from icml_discrete_samplers.replay import Priority, ReplayBuffer
from icml_discrete_samplers.sampler import MaskedSampler
from icml_discrete_samplers.training_state import Floor, History, packed, probe, require_same_energy, unpacked

KIND = "icml-discrete-samplers-training"
Callback = Callable[[int, dict[str, float]], None]


@dataclass(frozen=True)
class OffPolicyOptions:
    """How a masked sampler is trained; the defaults are the official ones.

    Attributes:
        loss: ``tb``, ``lv``; or a comparator that is on-policy: ``ce``, ``re_rf``, ``wdce``.
        buffer: how the replay buffer is drawn from: ``iw``, ``uniform``, ``density``; None for no buffer,
            which is on-policy training.
        ratio: off-policy steps for each on-policy one; below 1 the rule inverts.
        mcmc: kernel of exploration, by name or itself; None for none.
        mcmc_every, mcmc_states, mcmc_steps: how often it runs, from how many buffered states, how many steps.
        mcmc_share: share of its buffer in an off-policy batch.
        steps: updates in all, which annealing is reckoned by.
        k: sites revealed a step in training: a number, or (k_min, k_max) drawn evenly for each step.
        anneal: share of the steps over which beta rises linearly to 1.
        batch: paths an update.
        capacity, prefill: of the buffers, in batches; with prefill 0 replay begins after the first update.
        optimizer: a name that ``icml_core.optimizers.torch_optimizer`` knows.
        lr, lr_log_z, weight_decay, clip: of the optimizer; the gradient's norm is clipped.
        ema: decay of the averaged weights that sampling uses at the end; 0 for the last weights.
        resample: (wdce) updates for each batch of paths.
        replicates: (wdce) maskings of each state.
    """

    loss: Literal["tb", "lv", "ce", "re_rf", "wdce"] = "tb"
    buffer: Priority | None = "iw"
    ratio: float = 2.0
    mcmc: str | Kernel | None = "hamming_ball"
    mcmc_every: int = 500
    mcmc_states: int = 128
    mcmc_steps: int = 100
    mcmc_share: float = 0.2
    steps: int = 20_000
    k: Steps = (1, 4)
    anneal: float = 0.5
    batch: int = 128
    capacity: int = 100
    prefill: int = 10
    optimizer: str = "adamw"
    lr: float = 1e-3
    lr_log_z: float = 0.1
    weight_decay: float = 0.01
    clip: float = 1.0
    ema: float = 0.0
    resample: int = 10
    replicates: int = 8

    def __post_init__(self) -> None:
        if self.loss not in losses.LOSSES:
            raise ValueError(f"unknown loss {self.loss!r}; there are {', '.join(losses.LOSSES)}")
        if self.buffer not in ("iw", "uniform", "density", None):
            raise ValueError(f"unknown buffer {self.buffer!r}; there are iw, uniform, density, and None")
        if self.loss in ("ce", "re_rf", "wdce") and self.buffer is not None:
            raise ValueError(
                f"the loss {self.loss!r} is right on the sampler's own paths alone; give buffer=None, "
                "mcmc=None, or "
                "take tb or lv"
            )
        if self.mcmc is not None:
            if self.buffer is None:
                raise ValueError("mcmc= explores from the replay buffer; give a buffer, or mcmc=None")
            kernel_of(self.mcmc)
        positive = ("steps", "batch", "capacity", "mcmc_every", "mcmc_states", "mcmc_steps", "resample", "lr")
        for name in positive:
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} must be positive")
        if (
            self.prefill < 0
            or not 0 <= self.anneal <= 1
            or not 0 <= self.mcmc_share <= 1
            or not 0 <= self.ema < 1
        ):
            raise ValueError(
                f"prefill={self.prefill} must not be negative, anneal={self.anneal} and "
                f"mcmc_share={self.mcmc_share} lie in 0 to 1, and ema={self.ema} in 0 to below 1"
            )
        if not self.ratio > 0:
            raise ValueError(f"ratio={self.ratio} must be positive; buffer=None is on-policy training")

    def on_policy(self, step: int) -> bool:
        """Whether this update rolls out the sampler."""
        if self.buffer is None:
            return True
        if self.ratio >= 1:
            return step % (round(self.ratio) + 1) == 0
        return step % (round(1 / self.ratio) + 1) != 0

    def beta(self, step: int) -> float:
        """The target's inverse temperature: linear to 1, never 0."""
        half = int(self.anneal * self.steps)
        return min(1.0, (step + 1) / (half + 1))


class OffPolicyTrainer:
    """Trains a masked sampler on an energy; continues where it was stopped.

    Args:
        energy: the target.
        model: ``"masked_mlp"``, ``"masked_vit"``, or a torch module.
        options: or as keyword arguments.
        seed: of everything random.
        device: where the network lies; by default where a user's module is, else the CPU.
        initial: states to fill the buffer with, beside the sampler's own.
        network: options of the network.

    Raises:
        ValueError: impossible options, or a model that does not fit.
        RuntimeError: no state of positive density was found.
    """

    def __init__(
        self,
        energy: Energy,
        model: str | nn.Module = "masked_mlp",
        options: OffPolicyOptions | None = None,
        *,
        seed: int = 0,
        device: str | torch.device | None = None,
        initial: Int64[Tensor, "m D"] | None = None,
        network: dict[str, Any] | None = None,
        **keywords: Any,
    ) -> None:
        if options is not None and keywords:
            raise ValueError(f"give options= or keywords, not both: {', '.join(keywords)}")
        require_sizes(energy.D, energy.V)
        self.energy, self.options = energy, options or OffPolicyOptions(**keywords)
        self.model: MaskedModel = build_masked(model, energy.D, energy.V, seed, **(network or {}))
        if device is not None:
            self.model = self.model.to(device)
        self.device = self.model.device
        self.seed, self.step_ = seed, 0
        self.generator = generator_of(seed, self.device)
        schedule(energy.D, self.options.k, generator_of(0, self.device))  # refuses an impossible k
        self.log_z = nn.Parameter(torch.zeros((), dtype=torch.float64, device=self.device))
        make = torch_optimizer(self.options.optimizer)
        decay = {"weight_decay": self.options.weight_decay} if self.options.optimizer == "adamw" else {}
        self.optimizer = make(self.model.named_parameters(), lr=self.options.lr, **decay)
        self.z_optimizer = torch.optim.AdamW([self.log_z], lr=self.options.lr_log_z, weight_decay=0.0)
        size = self.options.capacity * self.options.batch
        self.buffer = ReplayBuffer(size, energy.D, self.device)
        self.mcmc_buffer = ReplayBuffer(size, energy.D, self.device)
        self.average = copy.deepcopy(self.model) if self.options.ema else None
        self.history: History = []
        self._floor = Floor()
        self._initial = None if initial is None else require_states(initial, energy.D, energy.V, "initial")
        self._wdce: tuple[Tensor, Tensor] | None = None

    def fit(self, steps: int | None = None, callback: Callback | None = None) -> MaskedSampler:
        """Train for so many updates (by default up to ``options.steps``), and give the sampler.

        Args:
            steps: updates now.
            callback: called with the step and its figures.
        """
        if steps is not None and steps < 0:
            raise ValueError(f"steps={steps} must not be negative")
        end = self.options.steps if steps is None else self.step_ + steps
        if self.options.buffer is not None and len(self.buffer) == 0 and self.step_ < end:
            self._prefill()
        while self.step_ < end:
            figures = self._update()
            self.step_ += 1
            self.history.append(figures)
            if callback is not None:
                callback(self.step_, figures)
        return self.sampler()

    def sampler(self) -> MaskedSampler:
        """The sampler of the current (averaged) weights."""
        model = self.model if self.average is None else self.average
        learned = float(self.log_z.detach()) if self.options.loss == "tb" else None
        return MaskedSampler(model, self.energy, log_z_learned=learned, history=self.history)

    def _prefill(self) -> None:
        if self._initial is not None:
            x = self._initial.to(self.device)
            self._store(roll_back(x, 1, self.generator), evaluate(self.energy, x))
        for _ in range(self.options.prefill):
            path, log_prob = self._rollout()
            log_rho = evaluate(self.energy, path.x)
            self.buffer.add(path.x, log_rho, log_rho - log_prob)
        if len(self.buffer) and not bool((self.buffer.log_rho[: len(self.buffer)] > -torch.inf).any()):
            raise RuntimeError(
                "no feasible state found; pass initial states=… (initial=) that satisfy the constraints"
            )

    @torch.no_grad()
    def _store(self, path: Path, log_rho: Tensor) -> None:
        self.buffer.add(path.x, log_rho, log_rho - path_log_prob(self.model, path).double())

    def _rollout(self) -> tuple[Path, Float64[Tensor, " n"]]:
        options = self.options
        return rollout(self.model, options.batch, self._sizes(), self.generator)

    def _sizes(self) -> Int64[Tensor, " T"]:
        return schedule(self.energy.D, self.options.k, self.generator)

    def _update(self) -> dict[str, float]:
        options, step = self.options, self.step_
        beta = options.beta(step)
        if options.mcmc is not None and step % options.mcmc_every == 0 and len(self.buffer):
            self._explore()
        # Replay begins with the first states, which without prefill= the first update finds.
        on_policy = options.on_policy(step) or len(self.buffer) == 0
        figures = {"beta": beta, "on_policy": float(on_policy)}
        if options.loss == "wdce":
            loss = self._denoising(beta)
        else:
            if on_policy:
                path, log_prob = self._rollout()
                log_rho = evaluate(self.energy, path.x)
                log_rnd = log_rho - log_prob
                figures["elbo"] = float((self._floor(log_rho) - log_prob).mean())
                if options.buffer is not None:
                    self.buffer.add(path.x, log_rho, log_rnd)
            else:
                path = roll_back(self._replayed(beta), options.k, self.generator)
                log_rho = evaluate(self.energy, path.x)
            loss = self._loss(beta, log_rho, path)
        figures["loss"] = float(loss.detach())
        if not math.isfinite(figures["loss"]):
            raise FloatingPointError(
                f"the loss of update {step + 1} is {figures['loss']}; the weights are those of the update "
                f"before. Lower lr={options.lr} or clip={options.clip}, or go on from an earlier checkpoint"
            )
        self._descend(loss)
        figures["log_z"] = float(self.log_z.detach())
        return figures

    def _loss(self, beta: float, log_rho: Float64[Tensor, " n"], path: Path) -> Float[Tensor, ""]:
        log_f = path_log_prob(self.model, path).double()
        log_rnd = self._floor(log_rho, beta) - log_f
        if self.options.loss == "tb":
            return losses.trajectory_balance(log_rnd, self.log_z)
        if self.options.loss == "lv":
            return losses.log_variance(log_rnd)
        if self.options.loss == "ce":
            return losses.cross_entropy(log_rnd)
        return losses.reinforce(log_rnd)

    def _denoising(self, beta: float) -> Float[Tensor, ""]:
        if self._wdce is None or self.step_ % self.options.resample == 0:
            path, log_prob = self._rollout()
            log_rho = evaluate(self.energy, path.x)
            self._wdce = path.x, (self._floor(log_rho, beta) - log_prob).softmax(0)
        x, weights = self._wdce
        return losses.weighted_denoising(self.model, x, weights, self.generator, self.options.replicates)

    def _replayed(self, beta: float) -> Int64[Tensor, "n D"]:
        options = self.options
        assert options.buffer is not None
        explored = round(options.mcmc_share * options.batch) if len(self.mcmc_buffer) else 0
        x = self.buffer.sample(options.batch - explored, self.generator, priority=options.buffer, beta=beta)
        if explored:
            x = torch.cat([x, self.mcmc_buffer.sample(explored, self.generator)])
        return x

    def _explore(self) -> None:
        options = self.options
        kernel = kernel_of(options.mcmc)  # type: ignore[arg-type]
        assert options.buffer is not None
        beta = options.beta(self.step_)
        x = self.buffer.sample(options.mcmc_states, self.generator, priority=options.buffer, beta=beta)
        kernel.check(self.energy, x)
        ones = torch.ones(len(x), dtype=torch.float64, device=x.device)
        found = kernel.advance(
            self.energy, x, evaluate(self.energy, x), ones, options.mcmc_steps, self.generator
        )
        if bool((found.log_density > -torch.inf).any()):
            self.mcmc_buffer.add(found.x, found.log_density)

    def _descend(self, loss: Float[Tensor, ""]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.z_optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = float(nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip))
        if not math.isfinite(norm):
            raise FloatingPointError(
                f"the gradient's norm of update {self.step_ + 1} is {norm}; the weights are those of the "
                f"update before. Lower lr={self.options.lr}, or look for overflow in the network"
            )
        self.optimizer.step()
        if self.log_z.grad is not None:
            self.z_optimizer.step()
        if self.average is not None:
            with torch.no_grad():
                for mean, now in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    mean.lerp_(now, 1 - self.options.ema)

    def _identity(self) -> dict[str, Any]:
        options = {
            k: v if isinstance(v, str | int | float | None) else repr(v)
            for k, v in vars(self.options).items()
        }
        problem = getattr(self.energy, "fingerprint", type(self.energy).__name__)
        return {
            "options": options,
            "network": getattr(self.model, "config", type(self.model).__name__),
            "energy": {"D": self.energy.D, "V": self.energy.V, "problem": problem},
            "seed": self.seed,
        }

    def save(self, path: str | File) -> None:
        """Write everything that is needed to go on."""
        state = {
            "model": dict(self.model.state_dict()),
            "average": None if self.average is None else dict(self.average.state_dict()),
            "log_z": self.log_z.detach(),
            "optimizer": self.optimizer.state_dict(),
            "z_optimizer": self.z_optimizer.state_dict(),
            "generator": self.generator.get_state(),
            "buffer": self.buffer.state(),
            "mcmc_buffer": self.mcmc_buffer.state(),
            "wdce": None if self._wdce is None else list(self._wdce),
            "step": self.step_,
            "history": packed(self.history),
            "least": self._floor.least,
            "probe": probe(self.energy, self.device),
        }
        save_state(File(path), state, kind=KIND, identity=self._identity())

    def restore(self, path: str | File) -> OffPolicyTrainer:
        """Take up what :meth:`save` wrote for the same training; gives itself.

        Raises:
            FileNotFoundError: no such file.
            ValueError: it belongs to another training.
        """
        state = load_state(File(path), kind=KIND, identity=self._identity(), device=self.device)
        require_same_energy(path, state["probe"], self.energy, self.device)
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        with torch.no_grad():
            self.log_z.copy_(state["log_z"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.z_optimizer.load_state_dict(state["z_optimizer"])
        self.generator.set_state(state["generator"].cpu())
        self.buffer.load(state["buffer"])
        self.mcmc_buffer.load(state["mcmc_buffer"])
        self._wdce = None if state["wdce"] is None else (state["wdce"][0], state["wdce"][1])
        self.step_, self.history = state["step"], unpacked(state["history"])
        self._floor = Floor(state["least"])
        return self


def fit(
    energy: Energy,
    model: str | nn.Module = "masked_mlp",
    loss: str = "tb",
    buffer: str | None = "iw",
    mcmc: str | Kernel | None = "hamming_ball",
    steps: int = 20_000,
    k: Steps = (1, 4),
    anneal: float = 0.5,
    batch: int = 128,
    seed: int = 0,
    device: str | torch.device | None = None,
    callback: Callback | None = None,
    *,
    coverage: bool = True,
    initial: Int64[Tensor, "m D"] | None = None,
    network: dict[str, Any] | None = None,
    **more: Any,
) -> MaskedSampler:
    """Train a sampler on an energy, and look whether it covers what independent Markov chains find.

    Args:
        energy: the target.
        model: ``"masked_mlp"``, ``"masked_vit"``, or a module from masked states [n, D] to logits [n, D, V].
        loss, buffer, mcmc, steps, k, anneal, batch, more: see :class:`OffPolicyOptions`.
        seed: of everything random.
        device: where the network lies.
        callback: called with the step and its figures.
        coverage: afterwards score states of independent chains; warns where modes are missing.
        initial: states to fill the buffer with.
        network: options of the network, such as ``{"hidden": 256, "layers": 2}``.

    Raises:
        ValueError: options that do not fit.
        FloatingPointError: a density that is NaN or +inf.
        RuntimeError: no state of positive density was found.

    Example:
        ``sampler = fit(Ising2D(4, beta=0.6), steps=2000); sampler.sample(1000)``
    """
    options = OffPolicyOptions(
        loss=loss, buffer=buffer, mcmc=mcmc, steps=steps, k=k, anneal=anneal, batch=batch, **more
    )  # type: ignore[arg-type]
    trainer = OffPolicyTrainer(
        energy, model, options, seed=seed, device=device, initial=initial, network=network
    )
    sampler = trainer.fit(callback=callback)
    if coverage:
        kernel = mcmc if mcmc is not None else "hamming_ball"
        sampler.coverage(kernel, initial=initial, seed=seed)
    return sampler
