"""Before any training: does a base reach the score it is said to, and were the splits normalised alike?"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from icml_irno.batches import Batches
from icml_irno.fields import fill_masked
from icml_irno.metrics import mean_vrmse
from icml_irno.statistics import Statistics, check_alike

TOLERANCE = 0.1  # relative difference of a score to the one expected
MOST_SAMPLES = 512  # of a set whose statistics are compared


@dataclass(frozen=True)
class BaseScore:
    """VRMSE of a base on data.

    Attributes:
        normalized: its output compared with targets as it was trained on (z-scores).
        physical: its output compared with targets in physical units; None where no statistics were given.
        expected: what it is said to reach.
    """

    normalized: float
    physical: float | None
    expected: float | None


def check_base(
    base: nn.Module | Any,
    data: Any,
    expected: float | None = None,
    *,
    statistics: tuple[Any, Any] | None = None,
    tolerance: float = TOLERANCE,
) -> BaseScore:
    """Score a base, and refuse it where it misses its published score.

    Args:
        base: x -> h_0.
        data: pairs, as ``Batches`` takes them: as the base wants them, or in physical units with
            ``statistics``.
        expected: its VRMSE by whoever trained it.
        statistics: of x and y, by which the data are normalised for the base first.
        tolerance: relative difference that is allowed.

    Raises:
        ValueError: the score differs more; the message has both numbers, and what the score is in the other
            units.

    Example:
        >>> round(check_base(nn.Identity(), (torch.zeros(4, 1, 8), torch.randn(4, 1, 8))).normalized, 1)
        1.0
    """
    pairs = data if isinstance(data, Batches) else Batches(data)
    x_stats, y_stats = (None, None) if statistics is None else (Statistics.read(s) for s in statistics)
    predictions, targets, raw = [], [], []
    if isinstance(base, nn.Module):
        base.eval()
    with torch.no_grad():
        for x, y, mask in pairs.epoch():
            if mask is not None:
                x = fill_masked(x, mask) if mask.shape[2:] == x.shape[2:] else x
                y = fill_masked(y, mask)
            prediction = base(x if x_stats is None else x_stats.normalize(x))
            target = y if y_stats is None else y_stats.normalize(y)
            # Where there is no point, there is no error.
            predictions.append(prediction if mask is None else torch.where(mask, prediction, target))
            targets.append(target)
            raw.append(y)
    prediction, target, in_units = torch.cat(predictions), torch.cat(targets), torch.cat(raw)
    normalized = mean_vrmse(prediction, target)
    physical = None if y_stats is None else mean_vrmse(prediction, in_units)
    score = BaseScore(normalized, physical, expected)
    if expected is not None and not abs(normalized - expected) <= tolerance * expected:
        other = ""
        if physical is not None:
            other = f" (taken for physical units its output would score {physical:.4g})"
        raise ValueError(
            f"the base scores a VRMSE of {normalized:.4g} on this data, not the expected "
            f"{expected:.4g}{other}; check the normalisation of inputs and outputs, the order of frames and "
            "channels, and the weights"
        )
    return score


def check_splits(train: Batches, valid: Batches | None, base_input: Any = None) -> None:
    """Compare the inputs and targets of the splits, and the inputs with what the base was trained on.

    Raises:
        ValueError: names split and channel; or a missing key of ``base_input``.
    """
    inputs = {"train x": _statistics(train, 0)}
    targets = {"train y": _statistics(train, 1)}
    if valid is not None:
        inputs["valid x"], targets["valid y"] = _statistics(valid, 0), _statistics(valid, 1)
    if base_input is not None:
        inputs["the base's input"] = Statistics.read(base_input)
    check_alike(inputs)
    check_alike(targets)
    flat = [c for c, s in enumerate(targets["train y"].std.tolist()) if s == 0]
    if flat:
        warnings.warn(f"channels {flat} of the target are constant; their VRMSE says nothing", stacklevel=4)


def _statistics(data: Batches, part: int) -> Statistics:
    """Of the first samples."""
    return Statistics.of(_counted(data, part))


def _counted(data: Batches, part: int) -> Iterable[Tensor]:
    seen = 0
    for item in data.epoch():
        values, mask = item[part], item[2]
        if mask is not None:
            if mask.shape[2:] != values.shape[2:]:
                mask = torch.ones_like(values[:, :1], dtype=torch.bool)
            found = values.transpose(0, 1).flatten(1)[:, mask.transpose(0, 1).flatten()]
            values = found[None]  # one sample of all points that exist
        yield values
        seen += len(item[0])
        if seen >= MOST_SAMPLES:
            return
