"""Pre-training from a few seconds to full scale: one loop, any of the paper's optimizers, resumed bit for
bit.

The recipe of arXiv 2601.08393: matrices drawn from N(0, 0.02²) and placed on their spheres for every
optimizer alike, cosine from lr to lr/10 after a linear warm-up, gradients clipped to norm 1.
"""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from icml_core.checkpoint import load_state, save_state
from torch import Tensor

from icml_sso.configurations import TransformerConfig
from icml_sso.corpus import Corpus
from icml_sso.data_parallel import average_gradients_, own_share, process, processes, summed
from icml_sso.named_optimizers import WEIGHT_DECAY, named_optimizer
from icml_sso.training_record import ActivationProbe, TrainingRecord, mean_violation
from icml_sso.transformer import Transformer
from icml_sso.weight_spectra import sphere_ratios

CHECKPOINT = "checkpoint.safetensors"
KIND = "icml-sso-training"
FINAL_LR = 0.1  # of the highest: 5e-3 → 5e-4 in the published runs


@dataclass(frozen=True)
class PretrainingOptions:
    """How to train.

    Attributes:
        optimizer: "adamw", "muon", "muonsphere", "sso", or "plugin.component".
        lr: the highest learning rate.
        steps: of the whole training; the cosine ends there.
        batch: windows a step.
        micro_batch: windows in memory at once; 0 means the whole batch.
        warmup: steps in which the learning rate rises from 0.
        final_lr: the last learning rate over the highest.
        clip: norm to which the gradient is clipped; 0 means never.
        radius_scale: c in R = c sqrt(d_out / d_in).
        weight_decay: of embedding, head and norms (of all matrices for adamw).
        precision: in which matrices are multiplied; weights are float32.
        recompute: forget activations and compute them again in the backward pass.
        spectral_init: place the first weights on their spheres, whatever the optimizer.
        measure_every: steps between measurements of activations; 0 means never.
        spectra_every: steps between measurements of spectral norms by singular values; 0 means never.
        evaluate_every: steps between validations; 0 means at the end only.
        evaluation_batches: held-out batches of one validation.
        checkpoint_every: steps between checkpoints; 0 means at the end and on Ctrl-C only.
    """

    optimizer: str = "sso"
    lr: float = 1e-2
    steps: int = 120
    batch: int = 16
    micro_batch: int = 0
    warmup: int = 0
    final_lr: float = FINAL_LR
    clip: float = 1.0
    radius_scale: float = 1.0
    weight_decay: float = WEIGHT_DECAY
    precision: Literal["float32", "bfloat16"] = "float32"
    recompute: bool = False
    spectral_init: bool = True
    measure_every: int = 1
    spectra_every: int = 20
    evaluate_every: int = 0
    evaluation_batches: int = 8
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        for name in ("lr", "steps", "batch", "radius_scale", "evaluation_batches"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must be above 0")
        for name in (
            "micro_batch",
            "warmup",
            "final_lr",
            "clip",
            "weight_decay",
            "measure_every",
            "spectra_every",
            "evaluate_every",
            "checkpoint_every",
        ):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)!r} must not be negative")
        if self.micro_batch and self.batch % self.micro_batch:
            raise ValueError(f"micro_batch={self.micro_batch} does not divide batch={self.batch}")
        if self.warmup > self.steps:
            raise ValueError(f"warmup={self.warmup} is longer than steps={self.steps}")
        if self.precision not in ("float32", "bfloat16"):
            raise ValueError(f"precision={self.precision!r} is neither 'float32' nor 'bfloat16'")


FREE_OPTIONS = ("measure_every", "spectra_every", "evaluate_every", "checkpoint_every", "recompute")
"""Options that may differ when a training is resumed: they change no weight."""


def learning_rate_factor(step: int, steps: int, warmup: int, final: float) -> float:
    """The learning rate of a step over the highest: linear warm-up, then half a cosine down to ``final``.

    f(t) = (t + 1)/w for t < w, else final + (1 - final) (1 + cos(π (t - w)/(T - w)))/2.
    """
    if step < warmup:
        return (step + 1) / warmup
    share = (step - warmup) / max(steps - warmup, 1)
    return final + (1 - final) * 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))


class Pretraining:
    """One training: model, optimizer, corpus, and where it stands.

    Where ``torch.distributed`` is initialised, as in a script under torchrun, its processes train together:
    each takes its share of every batch, ``micro_batch`` is per process, and the first writes the checkpoints.

    Args:
        config: sizes of the decoder.
        corpus: where windows come from.
        options: how to train.
        seed: of weights and windows.
        device: where the model lives.
        optimizer_options: further options of the optimizer.

    Raises:
        ValueError: the corpus has more tokens than the model's vocabulary, or an unknown optimizer.
    """

    def __init__(
        self,
        config: TransformerConfig,
        corpus: Corpus,
        options: PretrainingOptions | None = None,
        *,
        seed: int = 0,
        device: str = "cpu",
        optimizer_options: dict[str, Any] | None = None,
    ) -> None:
        self.options = options or PretrainingOptions()
        if corpus.vocab_size > config.vocab_size:
            raise ValueError(
                f"the corpus has {corpus.vocab_size} tokens, the model {config.vocab_size}: "
                "give the model a larger vocab_size"
            )
        self.config, self.corpus, self.seed, self.device = config, corpus, seed, device
        self.optimizer_options = dict(optimizer_options or {})
        self.model = Transformer(config, seed=seed)
        if self.options.spectral_init:
            from icml_sso.spectral_init import spectral_mup_init_

            spectral_mup_init_(self.model, radius_scale=self.options.radius_scale, std=None)
        self.model.to(device)
        self.model.model.gradient_checkpointing = self.options.recompute
        self.optimizer = named_optimizer(
            self.options.optimizer,
            self.model,
            lr=self.options.lr,
            radius_scale=self.options.radius_scale,
            weight_decay=self.options.weight_decay,
            **self.optimizer_options,
        )
        self._rates = [float(group["lr"]) for group in self.optimizer.param_groups]
        self.step = 0
        self.record = TrainingRecord()

    @property
    def identity(self) -> dict[str, Any]:
        """What a checkpoint must agree with."""
        options = {k: v for k, v in asdict(self.options).items() if k not in FREE_OPTIONS}
        return {
            "model": asdict(self.config),
            "options": options,
            "optimizer_options": {name: repr(value) for name, value in self.optimizer_options.items()},
            "corpus": self.corpus.identity,
            "seed": self.seed,
        }

    def fit(
        self,
        *,
        until: int | None = None,
        checkpoint: Path | None = None,
        resume: bool = False,
        callback: Callable[[dict[str, float]], None] | None = None,
    ) -> TrainingRecord:
        """Train from where this training stands; the last step also evaluates.

        SIGINT and SIGTERM end it after the step that runs, with a checkpoint; a second one ends it at once.

        Args:
            until: stop after so many steps in all; the schedule stays that of ``options.steps``.
            checkpoint: file for the state.
            resume: begin with the state in ``checkpoint``.
            callback: called with each row of the record.

        Returns:
            The record, from the first step on.

        Raises:
            ValueError: ``resume`` without a file, or one of another training.
            FloatingPointError: the loss is not finite; says in which step.
            KeyboardInterrupt: after the checkpoint was written.
        """
        if resume:
            if checkpoint is None:
                raise ValueError("resume=True needs the checkpoint to begin with")
            self.load(checkpoint)
        last = self.options.steps if until is None else min(until, self.options.steps)
        with _stop_requests() as stop_requested:
            while self.step < last:
                row = self._train_step()
                self.record.rows.append(row)
                if callback is not None:
                    callback(row)
                due = self.options.checkpoint_every and self.step % self.options.checkpoint_every == 0
                stopping = stop_requested() and self.step < last
                if processes() > 1:  # a signal that reached one process ends all
                    stopping = bool(summed(torch.tensor(int(stopping), device=self.device)))
                if checkpoint is not None and (due or stopping or self.step == last):
                    self.save(checkpoint)
                if stopping:
                    raise KeyboardInterrupt
        return self.record

    def _train_step(self) -> dict[str, float]:
        options = self.options
        for group, rate in zip(self.optimizer.param_groups, self._rates, strict=True):
            lr = rate * learning_rate_factor(self.step, options.steps, options.warmup, options.final_lr)
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr)
            else:
                group["lr"] = lr
        measuring = bool(options.measure_every) and self.step % options.measure_every == 0
        probe = ActivationProbe(self.model)
        with probe if measuring else nullcontext():
            row, load = self._gradient()
        row["lr"] = self._rates[0] * learning_rate_factor(
            self.step, options.steps, options.warmup, options.final_lr
        )
        average_gradients_(self.model.parameters())
        parameters = [p for p in self.model.parameters() if p.grad is not None]
        norm = torch.nn.utils.clip_grad_norm_(parameters, options.clip or math.inf)
        row["gradient_norm"] = float(norm)
        if not (math.isfinite(row["loss"]) and math.isfinite(row["gradient_norm"])):
            raise FloatingPointError(
                f"step {self.step + 1}: loss {row['loss']:g}, gradient norm {row['gradient_norm']:g}; "
                f"lower the learning rate ({options.lr:g} with {options.optimizer}) or warm up longer"
            )
        self.optimizer.step()
        if load is not None and self.config.moe is not None and self.config.moe.balance == "bias":
            for router, counts in zip(self.model.routers, load, strict=True):
                router.update_bias(counts, self.config.moe.bias_rate)
        self.step += 1
        row = {"step": float(self.step), **row, **mean_violation(load), **probe.figures()}
        finished = self.step == options.steps
        if options.spectra_every and (self.step % options.spectra_every == 0 or finished):
            ratios = torch.cat(list(sphere_ratios(self.model, options.radius_scale).values()))
            row["sigma_ratio_low"], row["sigma_ratio_high"] = float(ratios.min()), float(ratios.max())
        if finished or (options.evaluate_every and self.step % options.evaluate_every == 0):
            row["validation"] = self.evaluate()
        return row

    def _gradient(self) -> tuple[dict[str, float], Tensor | None]:
        """Gradients of the batch, in pieces that fit; the mean loss and the experts' load."""
        options = self.options
        batch = self.corpus.batch(self.step, options.batch, self.config.context, seed=self.seed)
        pieces = own_share(batch).to(self.device).split(options.micro_batch or options.batch)
        self.optimizer.zero_grad(set_to_none=True)
        losses = torch.zeros(2, device=self.device)
        load: Tensor | None = None
        for piece in pieces:
            with self._autocast():
                out = self.model(piece[:, :-1], piece[:, 1:])
            (out.loss / len(pieces)).backward()
            losses += torch.stack((out.loss.detach(), out.cross_entropy.detach())) / len(pieces)
            if out.load is not None:
                load = out.load if load is None else load + out.load
        loss, cross_entropy = (summed(losses) / processes()).tolist()
        return {"loss": loss, "cross_entropy": cross_entropy}, None if load is None else summed(load)

    def _autocast(self) -> Any:
        kind = torch.device(self.device).type
        return torch.autocast(kind, torch.bfloat16, enabled=self.options.precision == "bfloat16")

    @torch.no_grad()
    def evaluate(self) -> float:
        """Mean cross-entropy of the held-out windows, the same ones each time, nats a token."""
        options = self.options
        total = torch.zeros((), device=self.device, dtype=torch.float64)
        for index in range(options.evaluation_batches):
            batch = self.corpus.batch(
                index, options.batch, self.config.context, seed=self.seed, split="validation"
            )
            for piece in own_share(batch).to(self.device).split(options.micro_batch or options.batch):
                with self._autocast():
                    total += self.model(piece[:, :-1], piece[:, 1:]).cross_entropy * len(piece)
        return float(summed(total)) / (options.evaluation_batches * options.batch)

    def save(self, path: Path) -> None:
        """Write the whole state, atomically; the first process alone."""
        if process():
            return
        state = {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "record": self.record.rows,
        }
        save_state(path, state, kind=KIND, identity=self.identity)

    def load(self, path: Path) -> None:
        """Take over the state in ``path``.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it belongs to another training, or is damaged.
        """
        state = load_state(path, kind=KIND, identity=self.identity, device=self.device)
        try:
            step, rows = int(state["step"]), [dict(row) for row in state["record"]]
            if not 0 <= step == len(rows) <= self.options.steps:
                raise ValueError(f"step {step} of {self.options.steps} with {len(rows)} rows")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"{path} does not hold the state of this training: {error}") from error
        self.step, self.record = step, TrainingRecord(rows)


@contextmanager
def _stop_requests() -> Iterator[Callable[[], bool]]:
    """Turn the first SIGINT or SIGTERM into a question that the loop asks; the second acts as before."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {name: signal.getsignal(name) for name in (signal.SIGINT, signal.SIGTERM)}
    asked = False

    def ask(signum: int, frame: Any) -> None:
        nonlocal asked
        asked = True
        for name, handler in before.items():
            signal.signal(name, handler)

    for name in before:
        signal.signal(name, ask)
    try:
        yield lambda: asked
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
