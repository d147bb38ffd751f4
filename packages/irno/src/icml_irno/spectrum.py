"""What each refinement step does to errors: VRMSE, three bands, contraction; and bands over lead time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_irno.contraction import step_ratios
from icml_irno.metrics import BANDS, band_energy, band_mse, constant_channels, mean_vrmse


@dataclass(frozen=True)
class SpectrumReport:
    """Of h_0 ... h_K against the truth.

    Attributes:
        vrmse: of each iterate; the first is the base alone.
        bands: squared error of each iterate in each band, relative to the base's, [K + 1][low, mid, high].
        ratios: |h_{k+1} - h_k| / |h_k - h_{k-1}|, median over samples, from k = 1 on.
        constant: channels that do not vary in some sample, left out of the VRMSE.
        contraction: q of each sample, where it was measured.
    """

    vrmse: list[float]
    bands: list[list[float]]
    ratios: list[float]
    constant: list[int]
    contraction: list[float]

    def figures(self) -> dict[str, float | None]:
        """Named numbers, None for what was not measured or is not finite."""
        found: dict[str, float | None] = {}
        for k, value in enumerate(self.vrmse):
            found[f"vrmse/{k}"] = value
        for k, row in enumerate(self.bands):
            found |= {f"{name}/{k}": value for name, value in zip(BANDS, row, strict=True)}
        for k, value in enumerate(self.ratios):
            found[f"step_ratio/{k + 1}"] = value
        found["constant_channels"] = float(len(self.constant))
        if self.contraction:
            q = torch.tensor(self.contraction, dtype=torch.float64)
            found["q_median"], found["q_95"] = float(q.median()), float(q.quantile(0.95))
        return {k: v if v is not None and math.isfinite(v) else None for k, v in found.items()}


def spectrum_report(
    iterates: Sequence[Float[Tensor, "batch channels *space"]],
    target: Float[Tensor, "batch channels *space"],
    contraction: Sequence[float] | Tensor = (),
) -> SpectrumReport:
    """Errors of every iterate.

    Args:
        iterates: h_0 ... h_K; the first is the base alone, the row K = 0 of every table.
        target: y.
        contraction: q of samples, from ``IRNO.contraction``.

    Raises:
        ValueError: no iterate, shapes that differ, or values that are not finite.
    """
    if not len(iterates):
        raise ValueError("no iterates were given; IRNO.iterates(x, K) gives K + 1")
    for k, h in enumerate(iterates):
        if h.shape != target.shape:
            raise ValueError(f"iterate {k} has shape {list(h.shape)} but the target {list(target.shape)}")
        if not bool(torch.isfinite(h).all()):
            raise ValueError(f"iterate {k} has NaN or infinity; take fewer steps, or leave masked points out")
    if not bool(torch.isfinite(target).all()):
        raise ValueError("the target has NaN or infinity; leave masked points out")
    base = band_mse(iterates[0], target).mean((0, 1))
    bands = [(band_mse(h, target).mean((0, 1)) / base).tolist() for h in iterates]
    ratios = step_ratios(iterates).median(1).values.tolist() if len(iterates) > 2 else []
    q = contraction.tolist() if isinstance(contraction, Tensor) else list(contraction)
    return SpectrumReport(
        [mean_vrmse(h, target) for h in iterates],
        bands,
        ratios,
        constant_channels(target),
        [float(v) for v in q],
    )


@dataclass(frozen=True)
class LeadTimeReport:
    """Of a rollout.

    Attributes:
        vrmse: at each lead time.
        energy: of the prediction over the truth's, [lead][low, mid, high].
        error: squared error in each band over the truth's energy there.
    """

    vrmse: list[float]
    energy: list[list[float]]
    error: list[list[float]]


def lead_time_report(
    predictions: Sequence[Float[Tensor, "batch channels *space"]],
    truths: Sequence[Float[Tensor, "batch channels *space"]],
) -> LeadTimeReport:
    """Energy and error of each band at each lead time: where a forecast blurs, and when.

    Raises:
        ValueError: numbers of lead times that differ.
    """
    if len(predictions) != len(truths) or not len(truths):
        raise ValueError(
            f"{len(predictions)} predictions and {len(truths)} truths; expected as many, at least one"
        )
    relative, energies, errors = [], [], []
    for pred, truth in zip(predictions, truths, strict=True):
        whole = band_energy(truth).mean((0, 1))
        relative.append(mean_vrmse(pred, truth))
        energies.append((band_energy(pred).mean((0, 1)) / whole).tolist())
        errors.append((band_mse(pred, truth).mean((0, 1)) / whole).tolist())
    return LeadTimeReport(relative, energies, errors)


class SpectrumEvaluator:
    """:func:`spectrum_report` and :func:`lead_time_report` as named figures."""

    def evaluate(self, subject: Mapping[str, Any], **options: Any) -> dict[str, float | None]:
        """Figures of a mapping with ``iterates`` and ``target``, and optionally ``contraction``.

        Raises:
            ValueError: a missing entry, or as :func:`spectrum_report`.
        """
        missing = [key for key in ("iterates", "target") if key not in subject]
        if missing:
            raise ValueError(
                f"the subject lacks {', '.join(missing)}; expected iterates (h_0 ... h_K) and target"
            )
        q = subject.get("contraction", ())
        return spectrum_report(subject["iterates"], subject["target"], q).figures()
