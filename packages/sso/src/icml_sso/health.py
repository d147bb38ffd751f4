"""What to watch in a training run: norms on the sphere, updates, activations, attention logits, expert loads.

MaxVio = max_e load_e / mean load - 1                                 (arXiv 2601.08393, section 5)
|logit| <= sigma(W_q) sigma(W_k) max ||x||^2 / sqrt(d_head)           a bound for each head, at no cost
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icml_sso.atoms import Layout
from icml_sso.attention_logits import AttentionProbe, attention_probes
from icml_sso.learning_rates import misplaced
from icml_sso.matrix_sign import OUTLIER
from icml_sso.radius import update_rms, update_scale

SAMPLED_TOKENS = 64


def max_violation(load: Float[Tensor, " experts"]) -> float:
    """MaxVio of one layer: how far the busiest expert is above the mean load.

    Raises:
        ValueError: no expert, or no token.

    Example:
        >>> max_violation(torch.tensor([3.0, 1.0]))
        0.5
    """
    if load.numel() == 0 or not float(load.sum()) > 0:
        raise ValueError(f"load {load.tolist()} has no token or no expert")
    return float(load.max() / load.double().mean()) - 1.0


class HealthMonitor:
    """Watches a model by forward hooks, and its optimizer by what that keeps anyway.

    Use it as a context, or call `close`. Sums are kept on the device; `report` reads them.

    Args:
        model: The model.
        optimizer: An `SSO`: singular values and update sizes come from it.
        modules: Which modules' outputs are watched, by their qualified name; by default those that are called
            like attention and feed-forward layers, and all linear ones.
        sampled_tokens: Tokens on which exact attention logits are computed.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any = None,
        *,
        modules: Callable[[str, nn.Module], bool] | None = None,
        sampled_tokens: int = SAMPLED_TOKENS,
    ) -> None:
        self.model, self.optimizer, self.sampled_tokens = model, optimizer, sampled_tokens
        self._activations: dict[str, Tensor] = {}
        self._loads: dict[str, Tensor] = {}
        self._probes: list[AttentionProbe] = attention_probes(model)
        self._handles: list[Any] = []
        chosen = modules or _is_watched
        for name, module in model.named_modules():
            if name and chosen(name, module):
                self._handles.append(module.register_forward_hook(self._watch(name)))
            if name and _is_router(name, module):
                self._handles.append(module.register_forward_hook(self._count(name)))
        for probe in self._probes:
            self._handles += probe.attach(sampled_tokens)

    def __enter__(self) -> HealthMonitor:
        """Already watching."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Stop watching."""
        self.close()

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def reset(self) -> None:
        """Forget what has been seen."""
        self._activations.clear()
        self._loads.clear()
        for probe in self._probes:
            probe.reset()

    def report(self) -> dict[str, dict[str, float]]:
        """Figures by module: ``activation rms`` and ``activation absmax``; by matrix: ``sigma``, ``sigma/R``,
        ``grad rms``, ``update rms`` (of the next step at most: lr s / sqrt(max(d_out, d_in))); by head:
        ``logit bound``, ``logit max``; by router: ``MaxVio``. Under ``"model"`` their extremes, and under
        ``"warnings"`` the number of matrices that should not be on a sphere.
        """
        found: dict[str, dict[str, float]] = {}
        for name, sums in self._activations.items():
            squares, count, largest = sums.tolist()
            found[name] = {
                "activation rms": math.sqrt(squares / max(count, 1.0)),
                "activation absmax": largest,
            }
        for name, load in self._loads.items():
            found.setdefault(name, {})["MaxVio"] = max_violation(load)
        found |= {name: {**found.get(name, {}), **row} for name, row in self._matrices()}
        sigmas = {} if self.optimizer is None else dict(norm_bounds(self.optimizer))
        for probe in self._probes:
            for head, row in enumerate(probe.figures(sigmas)):
                found[f"{probe.name}.head{head}"] = row
        found["model"] = _extremes(found)
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        found["warnings"] = {"matrices that AdamW should take": float(len(misplaced(groups)))}
        return found

    def warnings(self) -> list[str]:
        """Sentences about what looks wrong."""
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        return [
            f"{name!r} looks like an input, output or embedding layer, but stands in a matrix group; AdamW "
            "should take it (build_param_groups does so)"
            for name in misplaced(groups)
        ]

    def _watch(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            values = next(_tensors(output), None)
            if values is None or not values.is_floating_point() or values.numel() == 0:
                return
            x = values.detach()
            squares = torch.linalg.vector_norm(x, dtype=torch.float32).square()
            sums = torch.stack([squares, torch.full_like(squares, x.numel()), x.abs().max().float()])
            seen = self._activations.get(name)
            self._activations[name] = (
                sums if seen is None else torch.cat([(seen + sums)[:2], torch.maximum(seen, sums)[2:]])
            )

        return hook

    def _count(self, name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            chosen, experts = _chosen_experts(module, output)
            if chosen is not None:
                load = torch.bincount(chosen.reshape(-1), minlength=experts).float()
                self._loads[name] = self._loads.get(name, torch.zeros_like(load)) + load

        return hook

    def _matrices(self) -> Iterator[tuple[str, dict[str, float]]]:
        stats = {} if self.optimizer is None else self.optimizer.stats()
        groups = [] if self.optimizer is None else self.optimizer.param_groups
        updates = {}
        for group in groups:
            if group["kind"] == "matrix":
                for p in group["params"]:
                    updates[self.optimizer.name(p)] = float(group["lr"]) * _update_rms(
                        self.optimizer.layout(p), group["scale_mode"]
                    )
        for name, p in self.model.named_parameters():
            row: dict[str, float] = {}
            if p.grad is not None:
                row["grad rms"] = float(p.grad.detach().float().square().mean().sqrt())
            if name in stats:
                row["sigma"] = max(stats[name]["sigma"])
                row["sigma/R"] = max(stats[name]["sigma/R"])
                row["update rms"] = updates[name]
            if row:
                yield name, row


def norm_bounds(optimizer: Any) -> Iterator[tuple[str, list[float]]]:
    """For each matrix parameter that was stepped, bounds of the spectral norms that its atomic matrices have
    now.

    A step reports sigma before it retracts and moves: ||W||_2 <= factor sigma + lr s ||Phi||_2, and a matrix
    sign's norm is at most 1.2 (see `has_outliers`).
    """
    stats = optimizer.stats()
    for group in optimizer.param_groups:
        if group["kind"] != "matrix":
            continue
        for p in group["params"]:
            row = stats.get(optimizer.name(p))
            if row is None or max(row["sigma"]) == 0.0:
                continue
            moves = [
                float(group["lr"]) * OUTLIER * update_scale(part.rows, part.columns, group["scale_mode"])
                for part in optimizer.layout(p).parts
                for _ in range(part.count)
            ]
            kept = [f * s + move for f, s, move in zip(row["retraction"], row["sigma"], moves, strict=True)]
            yield optimizer.name(p), kept


def _update_rms(layout: Layout, mode: str) -> float:
    squares = [
        part.count * part.rows * part.columns * update_rms(part.rows, part.columns, mode) ** 2
        for part in layout.parts
    ]
    return math.sqrt(sum(squares) / math.prod(layout.shape))


class Health:
    """The monitor as an evaluator: ``evaluate(model, batch=...)`` gives figures of one forward pass."""

    def evaluate(self, subject: nn.Module, *, batch: Any = None, optimizer: Any = None) -> dict[str, float]:
        """Run the model on a batch and give figures as ``"module: figure"``.

        Args:
            subject: The model.
            batch: A tensor, or keyword arguments as a dict.
            optimizer: An `SSO`, for norms on the sphere.

        Raises:
            TypeError: Not a module, or no batch.
        """
        if not isinstance(subject, nn.Module):
            raise TypeError(f"the subject is a {type(subject).__name__}; expected a torch.nn.Module")
        if batch is None:
            raise TypeError(
                "batch is missing; give a tensor, or the keyword arguments of the model as a dict"
            )
        with HealthMonitor(subject, optimizer) as monitor, torch.no_grad():
            subject(**batch) if isinstance(batch, dict) else subject(batch)
            report = monitor.report()
        return {f"{name}: {figure}": value for name, row in report.items() for figure, value in row.items()}


@contextmanager
def watched(model: nn.Module, optimizer: Any = None) -> Iterator[HealthMonitor]:
    """A monitor for the time of a block."""
    monitor = HealthMonitor(model, optimizer)
    try:
        yield monitor
    finally:
        monitor.close()


def _is_watched(name: str, module: nn.Module) -> bool:
    kind = type(module).__name__.lower()
    last = name.rpartition(".")[2].lower()
    return (
        isinstance(module, nn.Linear)
        or "attention" in kind
        or "mlp" in kind
        or last in ("attn", "mlp", "ffn")
    )


def _is_router(name: str, module: nn.Module) -> bool:
    last = name.rpartition(".")[2].lower()
    return last in ("gate", "router", "wg") and getattr(module, "weight", None) is not None


def _chosen_experts(module: nn.Module, output: Any) -> tuple[Tensor | None, int]:
    """Which experts were chosen: the router's integer output, else its top logits."""
    tensors = list(_tensors(output))
    experts = int(module.weight.shape[0])  # type: ignore[union-attr, arg-type]
    for t in tensors:
        if not t.is_floating_point() and t.dtype != torch.bool:
            return t, experts
    if not tensors or tensors[0].shape[-1] != experts:
        return None, experts
    count = int(getattr(module, "top_k", 1))
    return tensors[0].detach().topk(min(count, experts), dim=-1).indices, experts


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "to_tuple"):
        yield from _tensors(value.to_tuple())


def _extremes(found: dict[str, dict[str, float]]) -> dict[str, float]:
    worst: dict[str, float] = {}
    for row in found.values():
        for figure, value in row.items():
            worst[f"largest {figure}"] = max(worst.get(f"largest {figure}", value), value)
    loads = [row["MaxVio"] for row in found.values() if "MaxVio" in row]
    return worst | ({"mean MaxVio": sum(loads) / len(loads)} if loads else {})
