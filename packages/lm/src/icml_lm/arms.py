"""Train several models of one shape at once: a leading axis of arms, batched by ``torch.func.vmap``.

Small models are bound by the cost of starting operations; K of them together start as many as one. Weights,
gradients and moments of all arms lie in one matrix [arms, parameters], so that an update of all arms and all
parameters is a handful of operations. The result is that of training the arms one by one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import functional_call, vmap

from icml_lm.schedules import Schedule, factor
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.training import own_loss, to_device

TOKENS_AT_ONCE = 4096
"""Tokens in one pass of several arms on a CPU; with more, activations leave the caches and it is slower."""
ArmLoss = Callable[[Any, Any], Tensor]
"""(model, batch of one arm) → loss, in operations that ``vmap`` knows."""


class NonFiniteArm(FloatingPointError):
    """The loss of an arm became infinite or not a number.

    Attributes:
        step: at which, counted from 0.
        arm: which one.
    """

    def __init__(self, step: int, arm: int, value: float) -> None:
        super().__init__(
            f"the loss of arm {arm} is {value} at step {step}; give that arm a lower lr, or clip"
        )
        self.step, self.arm = step, arm


@dataclass
class ArmsLog:
    """What a training of several arms did.

    Attributes:
        models: the trained models, in the order of the arms.
        loss: per step and arm.
        seconds: of computing.
    """

    models: list[Any]
    loss: Float[Tensor, "steps arms"]
    seconds: float = field(default=0.0, compare=False)


def train_many(
    arms: Sequence[nn.Module] | Sequence[TinyConfig] | TinyConfig,
    data: Callable[[int], Any] | Sequence[Callable[[int], Any]],
    *,
    steps: int,
    lr: float | Sequence[float],
    seeds: Sequence[int] | None = None,
    loss_fn: ArmLoss | None = None,
    optimizer: str = "adamw",
    schedule: str | Schedule = "cosine",
    warmup: int = 0,
    clip: float | None = None,
    weight_decay: float = 0.0,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    at_once: int | None = None,
    callback: Callable[[int, Tensor], Any] | None = None,
) -> ArmsLog:
    """Train K models of one shape together.

    Args:
        arms: models, changed in place; or configurations of TinyLM, all alike, one a seed.
        data: ``data(step)`` gives a batch whose tensors have a leading axis of K arms; or one function per
            arm, each giving the batch of its arm.
        steps: updates.
        lr: peak rate, one for all or one an arm.
        seeds: first weights of the configurations; 0, 1, ... by default.
        loss_fn: of one arm; the model's own ``.loss`` by default.
        optimizer: ``"adamw"``, ``"adam"`` (decay within the gradient) or ``"sgd"``, as in torch.
        schedule: as for ``train``.
        warmup: steps of linear rise.
        clip: largest norm of an arm's gradient, or None.
        weight_decay: as in torch.
        betas: of Adam.
        eps: of Adam.
        at_once: arms in one batched pass; on a GPU all by default, on a CPU as many as keep it in the caches.
        callback: ``(step, losses)`` after every step.

    Raises:
        ValueError: no arm, arms of different shapes, numbers of rates or data functions that differ from the
            number of arms, an unknown optimizer, settings out of range.
        NonFiniteArm: the loss of an arm is infinite or not a number.
    """
    models = _models(arms, seeds)
    rates = torch.tensor(
        [lr] * len(models) if isinstance(lr, (int, float)) else list(lr), dtype=torch.float64
    )
    if len(rates) != len(models) or steps < 1 or not bool((rates > 0).all()):
        raise ValueError(f"{len(models)} arms for steps={steps} need as many positive rates, not lr={lr}")
    if optimizer not in _UPDATES:
        raise ValueError(f"the optimizer of arms is one of {', '.join(_UPDATES)}, not {optimizer!r}")
    if clip is not None and not clip > 0.0:
        raise ValueError(f"clip={clip} must be positive, or None")
    if at_once is not None and at_once < 1:
        raise ValueError(f"at_once={at_once} must be at least 1, or None")
    started = time.perf_counter()
    feed = _feed(data, len(models))
    pack = _Pack(models)
    flat = pack.weights()
    loss_of = _per_arm(models[0], pack, loss_fn or own_loss)
    update = _UPDATES[optimizer](flat, betas, eps, weight_decay)
    column = rates.to(flat)[:, None]
    losses = torch.empty(steps, len(models), dtype=flat.dtype, device=flat.device)
    was_training = models[0].training
    models[0].train()
    try:
        for step in range(steps):
            batch = to_device(feed(step), flat.device)
            groups = _groups(batch, len(models), at_once, flat.device)
            gradient = torch.empty_like(flat)
            for some in groups:
                part = flat[some].detach().requires_grad_()
                if len(part) == 1:
                    loss = loss_of(part[0], _of(batch, some.start)).view(1)
                else:
                    with _eager_attention(models[0]):
                        loss = vmap(loss_of, randomness="different")(part, _of(batch, some))
                (gradient[some],) = torch.autograd.grad(loss.sum(), part)
                losses[step, some] = loss.detach()
            _check_finite(losses[step], step)
            if clip is not None:
                norm = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
                gradient = gradient * (clip / (norm + 1e-6)).clamp(
                    max=1.0
                )  # torch's clip_grad_norm_ adds 1e-6
            update(flat, gradient, column * factor(schedule, step, steps, warmup), step + 1)
            if callback is not None:
                callback(step, losses[step])
    finally:  # an interrupted training leaves the arms as far as they came
        models[0].train(was_training)
        pack.write_back(flat, models)
    return ArmsLog(models, losses, time.perf_counter() - started)


class _Pack:
    """Where each parameter lies in a row of the matrix of weights."""

    def __init__(self, models: Sequence[nn.Module]) -> None:
        self.models = models
        listed = [{n: p for n, p in m.named_parameters() if p.requires_grad} for m in models]
        self.shapes = {name: p.shape for name, p in listed[0].items()}
        for arm, found in enumerate(listed):
            if {name: p.shape for name, p in found.items()} != self.shapes:
                raise ValueError(f"arm {arm} has other parameters than arm 0; arms must be of one shape")
        fixed = [{n: p for n, p in m.named_parameters() if not p.requires_grad} for m in models]
        for arm, found in enumerate(fixed[1:], start=1):
            if any(not torch.equal(found[name], p) for name, p in fixed[0].items()):
                raise ValueError(
                    f"the frozen weights of arm {arm} differ from those of arm 0; all arms share them"
                )
        if not self.shapes:
            raise ValueError("no parameter of the arms requires a gradient")
        self.sizes = [shape.numel() for shape in self.shapes.values()]

    def weights(self) -> Float[Tensor, "arms parameters"]:
        """A copy of all weights."""
        rows = [
            torch.cat([dict(m.named_parameters())[n].detach().reshape(-1) for n in self.shapes])
            for m in self.models
        ]
        return torch.stack(rows)

    def unpack(self, row: Float[Tensor, " parameters"]) -> dict[str, Tensor]:
        """The parameters of one arm, as views."""
        pieces = row.split(self.sizes)
        return {n: piece.view(shape) for piece, (n, shape) in zip(pieces, self.shapes.items(), strict=True)}

    def write_back(self, flat: Tensor, models: Sequence[nn.Module]) -> None:
        """Put trained weights into the models."""
        with torch.no_grad():
            for row, model in zip(flat, models, strict=True):
                own = dict(model.named_parameters())
                for name, value in self.unpack(row).items():
                    own[name].copy_(value)


class _Adam:
    """Adam and AdamW as torch has them: decay of the gradient, or of the weights apart from it."""

    def __init__(
        self, like: Tensor, betas: tuple[float, float], eps: float, decay: float, apart: bool
    ) -> None:
        self.mean, self.square = torch.zeros_like(like), torch.zeros_like(like)
        self.betas, self.eps, self.decay, self.apart = betas, eps, decay, apart

    def __call__(self, weights: Tensor, gradient: Tensor, rates: Tensor, step: int) -> None:
        first, second = self.betas
        if self.decay and self.apart:
            weights.mul_(1.0 - rates * self.decay)
        elif self.decay:
            gradient = gradient.add(weights, alpha=self.decay)
        self.mean.lerp_(gradient, 1.0 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1.0 - second)
        size = self.square.sqrt().div_(math.sqrt(1.0 - second**step)).add_(self.eps)
        weights.sub_(torch.div(self.mean, size, out=size).mul_(rates / (1.0 - first**step)))


class _SGD:
    """w ← w - rate · (gradient + decay · w)."""

    def __init__(self, like: Tensor, betas: tuple[float, float], eps: float, decay: float) -> None:
        self.decay = decay

    def __call__(self, weights: Tensor, gradient: Tensor, rates: Tensor, step: int) -> None:
        if self.decay:
            gradient = gradient.add(weights, alpha=self.decay)
        weights.sub_(gradient * rates)


_UPDATES: dict[str, Callable[..., Any]] = {
    "adamw": lambda like, betas, eps, decay: _Adam(like, betas, eps, decay, apart=True),
    "adam": lambda like, betas, eps, decay: _Adam(like, betas, eps, decay, apart=False),
    "sgd": _SGD,
}


def _models(arms: Any, seeds: Sequence[int] | None) -> list[Any]:
    if isinstance(arms, TinyConfig):
        arms = [arms] * len(seeds if seeds is not None else (0,))
    listed = list(arms)
    if not listed:
        raise ValueError("there is no arm to train")
    if not isinstance(listed[0], TinyConfig):
        if seeds is not None:
            raise ValueError(
                "seeds belong to configurations; these arms are models, which have their weights"
            )
        return listed
    chosen = range(len(listed)) if seeds is None else seeds
    if len(chosen) != len(listed):
        raise ValueError(f"{len(listed)} configurations need as many seeds, not {len(chosen)}")
    return [TinyLM(config, seed=seed) for config, seed in zip(listed, chosen, strict=True)]


def _feed(data: Any, arms: int) -> Callable[[int], Any]:
    if callable(data):
        return data
    if len(data) != arms:
        raise ValueError(f"{arms} arms need as many data functions, not {len(data)}")

    def stacked(step: int) -> Any:
        return _stack([of_arm(step) for of_arm in data])

    return stacked


def _stack(batches: list[Any]) -> Any:
    first = batches[0]
    if isinstance(first, Tensor):
        return torch.stack(batches)
    if isinstance(first, dict):
        return {name: _stack([batch[name] for batch in batches]) for name in first}
    return type(first)(_stack(list(items)) for items in zip(*batches, strict=True))


def _groups(batch: Any, arms: int, at_once: int | None, device: torch.device) -> list[slice]:
    if at_once is None:
        per_arm = max(t.numel() for t in _tensors(batch)) // arms
        at_once = arms if device.type != "cpu" else max(1, TOKENS_AT_ONCE // max(1, per_arm))
    return [slice(i, min(i + at_once, arms)) for i in range(0, arms, at_once)]


def _tensors(batch: Any) -> list[Tensor]:
    if isinstance(batch, Tensor):
        return [batch]
    return [t for item in (batch.values() if isinstance(batch, dict) else batch) for t in _tensors(item)]


def _of(batch: Any, arms: slice | int) -> Any:
    if isinstance(batch, Tensor):
        return batch[arms]
    if isinstance(batch, dict):
        return {name: _of(value, arms) for name, value in batch.items()}
    return type(batch)(_of(item, arms) for item in batch)


def _per_arm(model: nn.Module, pack: _Pack, loss_fn: ArmLoss) -> Callable[[Tensor, Any], Tensor]:
    fixed = {n: t for n, t in model.named_parameters() if n not in pack.shapes} | dict(model.named_buffers())

    def loss(row: Tensor, batch: Any) -> Tensor:
        weights = {**fixed, **pack.unpack(row)}
        return loss_fn(lambda *args, **inputs: functional_call(model, weights, args, inputs), batch)

    return loss


def _check_finite(losses: Tensor, step: int) -> None:
    if not math.isfinite(losses.sum().item()):
        arm = int((~losses.isfinite()).long().argmax())
        raise NonFiniteArm(step, arm, losses[arm].item())


class _eager_attention:
    """torch's fused attention is not batched by vmap; the plain one is, and as fast at these sizes."""

    def __init__(self, model: nn.Module) -> None:
        self.blocks = [m for m in model.modules() if getattr(m, "kind", None) == "sdpa"]

    def __enter__(self) -> None:
        for block in self.blocks:
            block.kind = "eager"

    def __exit__(self, *exception: object) -> None:
        for block in self.blocks:
            block.kind = "sdpa"
