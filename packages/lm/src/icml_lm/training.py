"""One training loop: any loss and optimizer, schedules, clipping, checkpoints that resume bit for bit."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from icml_core.checkpoint import load_state, save_state
from icml_core.optimizers import torch_optimizer
from icml_core.randomness import seeded
from torch import Tensor, nn

from icml_lm.schedules import Schedule, factor

LossFn = Callable[[Any, Any], Any]
"""(model, batch) → loss, or (loss, {name: figure})."""
Batches = Callable[[int], Any] | Iterable[Any]
"""A function of the step (counted from 0), or an iterable that is gone through again and again."""
OptimizerChoice = str | Callable[..., torch.optim.Optimizer]
Callback = Callable[[int, dict[str, float], Any], bool | None]
"""(step, figures, model) → True to stop."""

CHECKPOINT = "checkpoint.safetensors"
KIND = "icml-lm-training"


class NonFiniteLoss(FloatingPointError):
    """The loss became infinite or not a number.

    Attributes:
        step: at which, counted from 0.
        value: of the loss.
    """

    def __init__(self, step: int, value: float) -> None:
        super().__init__(
            f"the loss is {value} at step {step}; a lower lr, clip=1.0 or a look at that batch may help"
        )
        self.step, self.value = step, value


@dataclass
class TrainLog:
    """What a training did.

    Attributes:
        loss: per step.
        lr: per step.
        figures: per step, whatever the loss function gave beside the loss.
        steps: how many were done, in all parts of a resumed training.
        seconds: of computing, in all parts.
        resumed_from: the step at which the last part began, or None.
        stopped: whether a callback ended it early.
    """

    loss: list[float] = field(default_factory=list)
    lr: list[float] = field(default_factory=list)
    figures: dict[str, list[float]] = field(default_factory=dict)
    steps: int = 0
    seconds: float = 0.0
    resumed_from: int | None = None
    stopped: bool = False


def train(
    model: nn.Module,
    batches: Batches,
    loss_fn: LossFn | None = None,
    *,
    steps: int,
    lr: float,
    optimizer: OptimizerChoice = "adamw",
    schedule: str | Schedule = "cosine",
    warmup: int = 0,
    clip: float | None = None,
    weight_decay: float = 0.0,
    seed: int = 0,
    callbacks: Iterable[Callback] = (),
    checkpoint: str | Path | None = None,
    checkpoint_every: int = 0,
    progress: Any = None,
) -> TrainLog:
    """Train a model in place.

    Args:
        model: any module; its parameters that require a gradient are trained.
        batches: ``batches(step)``, or an iterable. A mapping is passed to the model by name where
            ``loss_fn`` is None, and tensors go to the model's device.
        loss_fn: ``(model, batch) -> loss`` or ``(loss, figures)``; the model's own ``.loss`` by default.
        steps: updates in all, those of earlier parts of a resumed training included.
        lr: peak learning rate.
        optimizer: ``"adamw"`` or another class of ``torch.optim`` by name; ``"plugin.component"``, an
            optimizer of an installed plug-in; or a factory ``(params, lr=..., weight_decay=...) ->
            Optimizer``.
        schedule: ``"cosine"``, ``"linear"``, ``"constant"``, or a function from the share of the steps done,
            after warm-up, to a factor of ``lr``.
        warmup: steps of linear rise before.
        clip: largest norm of the gradient, or None.
        weight_decay: passed to the optimizer.
        seed: of what the model draws (dropout).
        callbacks: called after every step.
        checkpoint: a folder. What it holds is continued; it is written at the end, every ``checkpoint_every``
            steps, and on Ctrl-C.
        checkpoint_every: 0 for the end and interrupts only.
        progress: something with ``advance(1, loss=...)``, such as that of ``run.progress``.

    Raises:
        ValueError: settings out of range, an unknown schedule, nothing to train, no batch.
        UnknownNameError: an unknown optimizer.
        NonFiniteLoss: the loss is infinite or not a number; earlier checkpoints stay as they were.
    """
    _check(steps=steps, lr=lr, warmup=warmup, clip=clip)
    parameters = [p for p in model.parameters() if p.requires_grad]
    if not parameters:
        raise ValueError("no parameter of the model requires a gradient; has it been frozen?")
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    made = make_optimizer(named, optimizer, lr=lr, weight_decay=weight_decay)
    base_rates = [group["lr"] for group in made.param_groups]
    log, folder = TrainLog(), None if checkpoint is None else Path(checkpoint)
    loss_fn = loss_fn or own_loss
    hooks = tuple(callbacks)
    device = parameters[0].device
    started = time.perf_counter()
    training = model.training
    model.train()
    with seeded(seed):
        if folder is not None and (folder / CHECKPOINT).is_file():
            log = _restore(folder / CHECKPOINT, model, made)
        before, feed = log.seconds, _feed(batches, log.steps)
        random, whole = _random_state(), True
        try:
            while log.steps < steps and not log.stopped:
                step = log.steps
                scale = factor(schedule, step, steps, warmup)
                for group, rate in zip(made.param_groups, base_rates, strict=True):
                    group["lr"] = rate * scale
                made.zero_grad(set_to_none=True)
                loss, figures = _loss_and_figures(loss_fn(model, to_device(feed(step), device)))
                value = loss.item()
                if not math.isfinite(value):
                    raise NonFiniteLoss(step, value)
                loss.backward()
                if clip is not None:
                    torch.nn.utils.clip_grad_norm_(parameters, clip)
                whole = False
                made.step()
                _note(log, value, lr * scale, figures)
                random, whole = _random_state(), True
                log.seconds = before + time.perf_counter() - started
                if progress is not None:
                    progress.advance(1, loss=value)
                for hook in hooks:
                    log.stopped |= bool(hook(step, {"loss": value, "lr": lr * scale, **figures}, model))
                if folder is not None and checkpoint_every and log.steps % checkpoint_every == 0:
                    _save(folder, model, made, log, random)
        except KeyboardInterrupt:
            # Weights that are half updated are not kept; the random state is that of the last whole step.
            if folder is not None and whole:
                _save(folder, model, made, log, random)
            raise
        finally:
            model.train(training)
        if folder is not None:
            _save(folder, model, made, log, random)
    return log


def make_optimizer(
    parameters: Iterable[Any], choice: OptimizerChoice, *, lr: float, weight_decay: float = 0.0
) -> torch.optim.Optimizer:
    """An optimizer by torch's name, by a plug-in's, or from a factory.

    Args:
        parameters: or pairs of names and parameters.
        choice: as for ``train``.
        lr: learning rate.
        weight_decay: passed on where the optimizer has one.

    Raises:
        UnknownNameError: neither torch nor an installed plug-in has it.
    """
    construct = torch_optimizer(choice) if isinstance(choice, str) else choice
    options = {"weight_decay": weight_decay}
    if not weight_decay and "weight_decay" not in inspect.signature(construct).parameters:
        options = {}
    return construct(parameters, lr=lr, **options)


def own_loss(model: Any, batch: Any) -> Tensor:
    """The loss that the model itself gives for a batch with labels.

    Raises:
        TypeError: the batch is no mapping, or the model gave no loss.
    """
    if not isinstance(batch, Mapping):
        raise TypeError(
            f"without loss_fn a batch must be a mapping of the model's arguments, not {type(batch)}"
        )
    loss = model(**batch).loss
    if loss is None:
        raise TypeError(f"the model gave no loss for a batch with {', '.join(batch)}: has it no labels?")
    return loss


def to_device(batch: Any, device: torch.device) -> Any:
    """The batch with its tensors on a device."""
    if isinstance(batch, Tensor):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, Mapping):
        return {name: to_device(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


def _feed(batches: Batches, skip: int) -> Callable[[int], Any]:
    if callable(batches):
        return batches

    def endless() -> Any:
        while True:
            empty = True
            for batch in batches:
                empty = False
                yield batch
            if empty:
                raise ValueError("there is no batch: the iterable is empty, or an iterator that has run out")

    stream = endless()
    for _ in range(skip):
        next(stream)
    return lambda step: next(stream)


def _loss_and_figures(returned: Any) -> tuple[Tensor, dict[str, float]]:
    loss, figures = returned if isinstance(returned, tuple) else (returned, {})
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        raise TypeError(
            f"a loss function returns a scalar tensor, or it and figures, not {type(loss).__name__}"
        )
    return loss, {k: float(v) for k, v in figures.items()}


def _note(log: TrainLog, loss: float, lr: float, figures: Mapping[str, float]) -> None:
    log.loss.append(loss)
    log.lr.append(lr)
    for name, value in figures.items():
        log.figures.setdefault(name, []).append(value)
    log.steps += 1


def _random_state() -> tuple[Tensor, list[Tensor]]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []


def _save(
    folder: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    log: TrainLog,
    random: tuple[Tensor, list[Tensor]],
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    state = {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "random": random[0],
        "cuda": random[1],
        "log": asdict(log),
    }
    save_state(folder / CHECKPOINT, state, kind=KIND, identity=_identity(model, optimizer))


def _restore(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> TrainLog:
    state = load_state(path, kind=KIND, identity=_identity(model, optimizer))
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
    log = TrainLog(**state["log"])
    log.resumed_from = log.steps
    return log


def _identity(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """What must not change between the parts of a training: shapes of the weights, and the optimizer."""
    shapes = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    return {"weights": shapes, "optimizer": type(optimizer).__name__}


def _check(*, steps: int, lr: float, warmup: int, clip: float | None) -> None:
    if steps < 1 or warmup < 0:
        raise ValueError(f"steps={steps} must be at least 1 and warmup={warmup} at least 0")
    if not 0.0 < lr < math.inf:
        raise ValueError(f"lr={lr} must be a positive number")
    if clip is not None and not clip > 0.0:
        raise ValueError(f"clip={clip} must be positive, or None")
