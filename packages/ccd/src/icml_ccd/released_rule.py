"""The rule of the released code: two steps must name the same token (github.com/tonyckc/CCD-DLM-code).

It keeps no distributions: a position is accepted when it stands among the surest now and in the buffer of the
step before, with the same most probable token. Differs from the paper's formulas, and is what its scripts
run. Written anew here, for batches; one row gives what the published loop gives at temperature 0.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from icml_ccd.step_state import (
    LOCAL,
    PASSED,
    WARM_UP,
    Selection,
    StepState,
    best_first,
    rank_of,
    take_best,
)

LAST_SHARE = 0.1
"""Below this share of undecided positions the buffer is one position wide again."""


class CCDReleased:
    """Two-step agreement of tokens, in a buffer that grows by one position a step.

    With n tokens a step the buffer grows to n + int(n expand_ratio) positions. Where the n surest positions
    meet the buffer, those of the surest that stand in it with an unchanged token are accepted: all of them
    (``seek``), or the first n; at least n must be there, else the n surest are unmasked.

    Args:
        expand_ratio: growth of the buffer over the budget.
        warmup: steps of plain decoding.
        seek: accept all that agree, which is what makes it fast.

    Raises:
        ValueError: a negative ratio or warm-up.
    """

    name, dynamic = "ccd_released", False

    def __init__(self, expand_ratio: float = 4.0, warmup: int = 5, seek: bool = True) -> None:
        if not expand_ratio >= 0 or warmup < 0:
            raise ValueError(f"expand_ratio={expand_ratio} and warmup={warmup} must not be negative")
        self.expand_ratio, self.warmup, self.seek = expand_ratio, warmup, seek
        self.reset()

    def settings(self) -> dict[str, Any]:
        """Growth, warm-up and whether all that agree are taken."""
        return {"expand_ratio": self.expand_ratio, "warmup": self.warmup, "seek": self.seek}

    def reset(self) -> None:
        """Forget the last step."""
        self._buffer: Tensor | None = None
        self._tokens: Tensor | None = None

    def select(self, state: StepState) -> Selection:
        """Those that agree, or the ``budget`` surest."""
        keys = (state.neg_entropy, state.maxprob)
        order = best_first(*keys)
        rank = rank_of(order)
        plain, tied = take_best(state, order, *keys)
        budget = state.budget[:, None]
        most = budget + (budget * self.expand_ratio).long()
        width = torch.minimum(most, torch.full_like(most, 1 + max(state.step - self.warmup, 0)))
        width = torch.where(state.undecided[:, None] <= LAST_SHARE * state.length, 1, width)
        accept, reasons = plain, torch.full_like(rank, WARM_UP if state.step < self.warmup else LOCAL)
        if self._buffer is not None and state.step >= self.warmup:
            agree = (rank < width) & state.masked & self._buffer & (state.argmax == self._tokens)
            use = (plain & self._buffer).any(1) & (agree.sum(1) >= state.budget)
            if not self.seek:
                agree &= agree.gather(1, order).cumsum(1).gather(1, rank) <= budget
            accept = torch.where(use[:, None], agree, plain)
            reasons = torch.where(use[:, None], PASSED, reasons)
            tied = tied & ~use
        left = state.masked & ~accept
        behind = left.gather(1, order).cumsum(1).gather(1, rank)
        self._buffer = left & (behind <= width)
        self._tokens = state.argmax.clone()
        return Selection(accept, state.argmax, state.neg_entropy, reasons, tied)
