"""Rules that trust one context: the best local score, a threshold, agreement of two steps in full.

LLaDA's low-confidence remasking keeps the most probable tokens (Nie et al., arXiv 2502.09992); Dream takes
the lowest entropy (Ye et al., arXiv 2508.15487); the margin of the two best is that of Kim et al., arXiv
2502.06768; Fast-dLLM unmasks everything above a threshold (Wu et al., arXiv 2505.22618); KLASS what is sure
and has stopped changing (Kim et al., arXiv 2511.05664).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icml_ccd.step_state import FALLBACK, LOCAL, PASSED, Selection, StepState, best_first, take_best


class LocalRule:
    """Unmask the positions with the best local score, ``budget`` at a step.

    Args:
        name: ``"confidence"`` (max p), ``"neg_entropy"`` (sum p log p), ``"margin"`` (difference of the two
            largest p), ``"left_to_right"``, ``"random"``.

    Raises:
        ValueError: another name.
    """

    NAMES = ("confidence", "neg_entropy", "margin", "left_to_right", "random")
    dynamic = False

    def __init__(self, name: str) -> None:
        if name not in self.NAMES:
            raise ValueError(f"a local rule is one of {', '.join(self.NAMES)}, not {name!r}")
        self.name = name

    def settings(self) -> dict[str, Any]:
        """It has none."""
        return {}

    def reset(self) -> None:
        """It remembers nothing."""

    def select(self, state: StepState) -> Selection:
        """The best ``budget`` candidates; ties by the largest probability, then by position."""
        scores = self._scores(state)
        keys = (scores,) if scores is state.maxprob else (scores, state.maxprob)
        accept, tied = take_best(state, best_first(*keys), *keys)
        return Selection(accept, state.argmax, scores, LOCAL, tied)

    def _scores(self, state: StepState) -> Tensor:
        if self.name == "confidence":
            return state.maxprob
        if self.name == "neg_entropy":
            return state.neg_entropy
        if self.name == "random":
            return torch.where(state.masked, state.order_keys, -torch.inf)
        if self.name == "left_to_right":
            places = torch.arange(state.masked.shape[1], 0, -1, device=state.masked.device)
            return torch.where(state.masked, -1.0 / places, -torch.inf)
        return margin(state)


def margin(state: StepState) -> Tensor:
    """Difference of the two largest probabilities of every candidate, -inf elsewhere."""
    b, n = state.masked.nonzero(as_tuple=True)
    logp = state.logp(b, n)
    found = torch.full_like(state.maxprob, -torch.inf)
    if logp.shape[1] > 1:
        top = logp.topk(2, dim=1).values.exp()
        found[b, n] = top[:, 0] - top[:, 1]
    else:
        found[b, n] = 1.0
    return found


class ThresholdRule:
    """Unmask every candidate with max p >= threshold; if none has it, the ``budget`` surest.

    Args:
        threshold: of the largest probability, in (0, 1].

    Raises:
        ValueError: a threshold outside.
    """

    name, dynamic = "threshold", True

    def __init__(self, threshold: float = 0.9) -> None:
        if not 0 < threshold <= 1:
            raise ValueError(f"threshold={threshold} is no probability in (0, 1]")
        self.threshold = threshold

    def settings(self) -> dict[str, Any]:
        """The threshold."""
        return {"threshold": self.threshold}

    def reset(self) -> None:
        """It remembers nothing."""

    def select(self, state: StepState) -> Selection:
        """All that pass, or the best."""
        return passed_or_best(state, state.maxprob >= self.threshold)


class AgreementRule:
    """Unmask what is sure and has stopped changing: max p > confidence, KL(p_t || p_{t-1}) < divergence for
    ``history`` steps. The last step's distributions of all candidates are kept: N X numbers a row.

    Args:
        confidence: bound of the largest probability.
        divergence: bound of the divergence, nats.
        history: steps for which it holds.

    Raises:
        ValueError: numbers out of range.
    """

    name, dynamic = "klass", True

    def __init__(self, confidence: float = 0.9, divergence: float = 0.01, history: int = 2) -> None:
        if not 0 <= confidence < 1 or not divergence >= 0 or history < 1:
            raise ValueError(
                f"confidence={confidence} lies in [0, 1), divergence={divergence} is not negative, and "
                f"history={history} is at least 1"
            )
        self.confidence, self.divergence, self.history = confidence, divergence, history
        self.reset()

    def settings(self) -> dict[str, Any]:
        """Both bounds and the history."""
        return {"confidence": self.confidence, "divergence": self.divergence, "history": self.history}

    def reset(self) -> None:
        """Forget the last distributions."""
        self._before: Tensor | None = None
        self._known: Tensor | None = None
        self._stable: Tensor | None = None

    def select(self, state: StepState) -> Selection:
        """All that pass, or the surest."""
        b, n = state.masked.nonzero(as_tuple=True)
        logp = state.logp(b, n)
        if self._before is None:
            self._before = logp.new_zeros(*state.masked.shape, logp.shape[1])
            self._known = torch.zeros_like(state.masked)
            self._stable = torch.zeros_like(state.masked, dtype=torch.int64)
        p = logp.exp()
        change = (p * torch.where(p > 0, logp - self._before[b, n], 0)).sum(1)
        calm = (change < self.divergence) & self._known[b, n]
        self._stable[b, n] = torch.where(calm, self._stable[b, n] + 1, 0)
        self._before[b, n], self._known[b, n] = logp, True
        passed = (self._stable >= self.history) & (state.maxprob > self.confidence)
        return passed_or_best(state, passed)


def passed_or_best(state: StepState, passed: Tensor) -> Selection:
    """Candidates that passed; in rows without any, the ``budget`` most probable."""
    passed = passed & state.masked
    best, tied = take_best(state, best_first(state.maxprob), state.maxprob)
    some = passed.any(1)
    accept = torch.where(some[:, None], passed, best)
    reasons = torch.where(some[:, None], PASSED, FALLBACK).expand_as(accept)
    return Selection(accept, state.argmax, state.maxprob, reasons, tied & ~some)
