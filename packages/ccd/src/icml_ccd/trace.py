"""Why and when every token was accepted, and what the decoding cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from icml_core.errors import NeedsError, install_command
from jaxtyping import Float, Int64
from torch import Tensor

from icml_ccd.step_state import REASONS

if TYPE_CHECKING:
    import pandas as pd


NUMBERS = ("score", "neg_entropy", "maxprob", "mixed_entropy", "jsd")
"""The columns of a trace that are real numbers."""


class Step(NamedTuple):
    """What one row accepted at one step: positions in the response, rising, with their tokens and scores."""

    step: int
    positions: list[int]
    tokens: list[int]
    scores: list[float]


@dataclass
class DecodeTrace:
    """One entry a response position; -1 or NaN where the decoder did not decide it.

    Attributes:
        step: forward pass after which it was accepted, from 0; a position behind the end token has the step
            of that token.
        token: what was accepted.
        score: by which it was chosen (higher is better; which score, the rule says).
        reason: place in ``step_state.REASONS``.
        neg_entropy, maxprob: of its own distribution at that step.
        mixed_entropy, jsd: of the average over recent contexts, where the rule has one.
        forwards: per row, forward passes in which it took part.
        steps_by_tie: per row, steps at which equal scores left the choice to the position.
        start: where the response begins in the sequences.
        settings: everything in force: rule, its options, steps, temperature, alignment of logits.
    """

    step: Int64[Tensor, "B N"]
    token: Int64[Tensor, "B N"]
    score: Float[Tensor, "B N"]
    reason: Int64[Tensor, "B N"]
    neg_entropy: Float[Tensor, "B N"]
    maxprob: Float[Tensor, "B N"]
    mixed_entropy: Float[Tensor, "B N"]
    jsd: Float[Tensor, "B N"]
    forwards: Int64[Tensor, " B"]
    steps_by_tie: Int64[Tensor, " B"]
    start: int = 0
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def empty(cls, numbers: Float[Tensor, "5 B N"]) -> DecodeTrace:
        """Nothing decided yet.

        Args:
            numbers: where the columns of ``NUMBERS`` are kept from now on; NaN.
        """
        whole = torch.full(numbers.shape[1:], -1, dtype=torch.int64, device=numbers.device)
        count = torch.zeros(numbers.shape[1], dtype=torch.int64, device=numbers.device)
        return cls(
            step=whole,
            token=whole.clone(),
            reason=torch.zeros_like(whole),
            forwards=count,
            steps_by_tie=count.clone(),
            **dict(zip(NUMBERS, numbers, strict=True)),
        )

    def steps(self, row: int = 0) -> Iterator[Step]:
        """What a row accepted, step by step."""
        for step in sorted({s for s in self.step[row].tolist() if s >= 0}):
            places = (self.step[row] == step).nonzero()[:, 0]
            yield Step(
                step, places.tolist(), self.token[row, places].tolist(), self.score[row, places].tolist()
            )

    def reasons(self, row: int = 0) -> list[str]:
        """In words, a position each."""
        return [REASONS[i] for i in self.reason[row].tolist()]

    def order_correlation(self) -> list[float]:
        """Per row, Spearman's rank correlation of step and position: 1 is left to right; NaN for one step."""
        from scipy.stats import rankdata

        found = []
        for row in self.step.tolist():
            step = [s for s in row if s >= 0]
            if len(set(step)) < 2:
                found.append(float("nan"))
                continue
            x, y = torch.from_numpy(rankdata(step)), torch.arange(len(step), dtype=torch.float64)
            found.append(float(torch.corrcoef(torch.stack((x, y)))[0, 1]))
        return found

    def tie_share(self) -> list[float]:
        """Per row, the share of steps at which a tie decided."""
        forwards = self.forwards.clamp(min=1)
        return (self.steps_by_tie.double() / forwards).tolist()

    def to_frame(self) -> pd.DataFrame:
        """One line an accepted token, by row and step.

        Raises:
            NeedsError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise NeedsError("pandas", hint=install_command("icml-ccd[frame]")) from error
        row, place = (self.step >= 0).cpu().nonzero(as_tuple=True)
        columns = {"row": row.numpy(), "position": place.numpy()}
        for name in ("step", "token", *NUMBERS):
            columns[name] = getattr(self, name).cpu()[row, place].numpy()
        columns["reason"] = [REASONS[i] for i in self.reason.cpu()[row, place].tolist()]
        return pd.DataFrame(columns).sort_values(["row", "step", "position"], ignore_index=True)

    def repeated(self, times: int) -> DecodeTrace:
        """Every row so many times."""
        tensors = {k: v.repeat_interleave(times, 0) for k, v in vars(self).items() if isinstance(v, Tensor)}
        return DecodeTrace(**tensors, start=self.start, settings=self.settings)


@dataclass
class DecodeOutput:
    """What ``decode`` returns.

    Attributes:
        sequences: prompt and response, as ``generate`` gives them.
        n_forward: calls of the model.
        trace: why and when every token was accepted.
        report: forwards, tokens computed and taken from a cache, seconds, tokens a second up to the end
            token.
        logp: per row, the log-probability of its tokens under the rule's own choices, where temperature > 0
            or tokens were given.
    """

    sequences: Int64[Tensor, "B L"]
    n_forward: int
    trace: DecodeTrace
    report: dict[str, Any]
    logp: Float[Tensor, " B"] | None = None
