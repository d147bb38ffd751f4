"""What a training leaves behind, one row a step: losses, σ/R, activations of modules, load of experts."""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from icml_core.run import write_atomically
from jaxtyping import Float
from torch import Tensor, nn

from icml_sso.moe import max_violation

if TYPE_CHECKING:
    from icml_sso.transformer import Transformer

COLUMNS = (
    "step",
    "loss",
    "cross_entropy",
    "lr",
    "gradient_norm",
    "sigma_ratio_low",
    "sigma_ratio_high",
    "attention_rms",
    "attention_absmax",
    "ffn_rms",
    "ffn_absmax",
    "max_violation",
    "validation",
)
"""Losses in nats a token; RMS and largest magnitude of outputs over layers; MaxVio averaged over layers."""


@dataclass
class TrainingRecord:
    """Rows of figures; what was not measured in a step is absent from its row.

    Attributes:
        rows: one mapping a step, from the names in ``COLUMNS`` to numbers.
    """

    rows: list[dict[str, float]] = field(default_factory=list)

    def column(self, name: str) -> Float[np.ndarray, " rows"]:
        """All values of one column, NaN where none was measured.

        Raises:
            KeyError: there is no such column.
        """
        if name not in COLUMNS:
            raise KeyError(f"{name!r} is none of {', '.join(COLUMNS)}")
        return np.array([row.get(name, math.nan) for row in self.rows])

    def measured(self, name: str) -> Float[np.ndarray, " measured"]:
        """The values of one column where it was measured, in order."""
        values = self.column(name)
        return values[~np.isnan(values)]

    def last(self, name: str) -> float:
        """The last measured value; NaN where there is none."""
        values = self.measured(name)
        return float(values[-1]) if len(values) else math.nan

    def write_csv(self, path: Path) -> None:
        """All rows as CSV, atomically."""
        with write_atomically(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.DictWriter(stream, COLUMNS)
            writer.writeheader()
            writer.writerows(self.rows)

    def draw(self, path: Path, *, title: str = "") -> None:
        """Loss, spectral norms, activations and load against the step, as far as they were measured."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        panels: list[tuple[str, Sequence[str], bool]] = [
            ("cross-entropy (nats a token)", ("cross_entropy", "validation"), False),
            ("σ / R, lowest and highest", ("sigma_ratio_low", "sigma_ratio_high"), True),
            ("RMS of outputs", ("attention_rms", "ffn_rms"), True),
            ("largest magnitude of outputs", ("attention_absmax", "ffn_absmax"), True),
            ("MaxVio", ("max_violation",), False),
        ]
        shown = [panel for panel in panels if any(len(self.measured(name)) for name in panel[1])]
        figure = Figure(figsize=(7.0, 0.8 + 2.0 * max(len(shown), 1)), layout="constrained")
        FigureCanvasAgg(figure)
        step = self.column("step")
        axes = figure.subplots(max(len(shown), 1), 1, sharex=True, squeeze=False)[:, 0]
        for axis, (label, names, logarithmic) in zip(axes, shown, strict=False):
            for name in names:
                values = self.column(name)
                known = ~np.isnan(values)
                if known.any():
                    axis.plot(step[known], values[known], linewidth=1.0, label=name.replace("_", " "))
            axis.set_ylabel(label)
            axis.set_yscale("log" if logarithmic else "linear")
            axis.legend(frameon=False)
        axes[-1].set_xlabel("step")
        figure.suptitle(title)
        with write_atomically(path) as temporary:
            figure.savefig(temporary, dpi=130)


class ActivationProbe:
    """RMS and largest magnitude of what attention and feed-forward modules give, over all layers.

    A context manager: forward hooks stand while the body runs.

    Args:
        model: the decoder.
    """

    def __init__(self, model: Transformer) -> None:
        self._modules = [
            (kind, module)
            for layer in model.model.layers
            for kind, module in (("attention", layer.self_attn), ("ffn", layer.mlp))
        ]
        self._seen: dict[str, list[tuple[Tensor, Tensor]]] = {"attention": [], "ffn": []}
        self._handles: list[Any] = []

    def __enter__(self) -> ActivationProbe:
        for kind, module in self._modules:
            self._handles.append(module.register_forward_hook(self._hook(kind)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _hook(self, kind: str) -> Any:
        @torch.no_grad()
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            values = (output if isinstance(output, Tensor) else output[0]).detach()
            wide = torch.promote_types(values.dtype, torch.float32)
            mean_square = torch.linalg.vector_norm(values, dtype=wide).square() / values.numel()
            low, high = torch.aminmax(values)
            self._seen[kind].append((mean_square, torch.maximum(high, -low)))

        return look

    def figures(self) -> dict[str, float]:
        """Since the last call: ``attention_rms``, ``attention_absmax``, ``ffn_rms``, ``ffn_absmax``."""
        found: dict[str, float] = {}
        for kind, seen in self._seen.items():
            if seen:
                found[f"{kind}_rms"] = float(torch.stack([square for square, _ in seen]).mean().sqrt())
                found[f"{kind}_absmax"] = float(torch.stack([largest for _, largest in seen]).amax())
            seen.clear()
        return found


def mean_violation(load: Tensor | None) -> dict[str, float]:
    """``max_violation``: MaxVio of each layer, averaged over layers; nothing for a dense model."""
    return {} if load is None else {"max_violation": float(max_violation(load).mean())}
