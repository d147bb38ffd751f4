"""What to do with a data set, asked before a training: is it the model's own, foreign, or beyond it?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from icml_kernels.language.weighted_nll.weights import Rule, token_weights
from icml_lm import collate
from icml_lm.batching import IGNORE, Supervised

from icml_idft.centred import cll
from icml_idft.loss import SUPPRESSED

Recommendation = Literal["sft", "idft", "realign"]

OWN = -0.1
"""Mean φ above which demonstrations read as the model's own words."""
KNOWN = 0.5
"""Share of solved prompts above which the model is taken to know the task."""
CONFIDENT = 0.5
"""Share of an answer's tokens that must keep weight for the weighted loss to have something to learn from."""
ROWS = 200


@dataclass(frozen=True)
class Advice:
    """Figures of a sample of demonstrations under the model, and what they speak for.

    Attributes:
        recommend: ``"sft"``, ``"idft"`` or ``"realign"``.
        phi: mean φ a token, nats.
        low_weight: share of tokens to which IDFT gives a weight below 0.1.
        mean_weight: of IDFT.
        solved: share of prompts that the model itself answers rightly, where a check was given.
        rows, tokens: how many were looked at.
        reason: in a sentence.
    """

    recommend: Recommendation
    phi: float
    low_weight: float
    mean_weight: float
    solved: float | None
    rows: int
    tokens: int
    reason: str

    def __str__(self) -> str:
        known = (
            "" if self.solved is None else f", {self.solved:.0%} of the prompts solved by the model itself"
        )
        return (
            f"mean phi {self.phi:.2f} nats a token, {self.low_weight:.0%} of the tokens with a weight below "
            f"{SUPPRESSED}{known} ({self.rows} rows): {self.recommend}, because {self.reason}"
        )


def advise(
    model: Any,
    rows: Sequence[Supervised],
    *,
    pad: int = 0,
    solved: float | None = None,
    batch: int = 16,
    limit: int = ROWS,
) -> Advice:
    """Look at up to 200 demonstrations before a training.

    - In the model's own words (mean φ above -0.1): ``"sft"``, which forgets least there.
    - Foreign words about what the model knows: ``"idft"``, which passes the foreign words over.
    - Foreign and unknown: a weighted loss learns next to nothing of it. ``"sft"`` learns it and forgets the
      rest; where the answers are known, ``"realign"`` first. What is unknown is seen from ``solved``, or else
      from how few tokens keep a weight.

    Args:
        model: as it is before the training.
        rows: token ids and labels.
        pad: id that fills up.
        solved: share of the prompts that the model answers rightly by itself, where somebody has counted.
        batch: rows in one pass.
        limit: rows that are looked at.

    Raises:
        ValueError: no row with a supervised token.
    """
    if solved is not None and not 0 <= solved <= 1:
        raise ValueError(f"solved={solved} is a share; expected a number between 0 and 1")
    usable = [row for row in rows if any(label != IGNORE for label in row.labels[1:])][:limit]
    if not usable:
        raise ValueError("no row has a supervised token")
    device = next(model.parameters()).device
    phi, weight = [], []
    for start in range(0, len(usable), batch):
        part = {k: v.to(device) for k, v in collate(usable[start : start + batch], pad).items()}
        found = cll(model, part["input_ids"], part["labels"] != IGNORE, attention_mask=part["attention_mask"])
        logp, h, var = (t[found.scored] for t in (found.logp, found.entropy, found.varentropy))
        weight.append(token_weights(logp, h, var, 0, "idft", Rule()))
        phi.append(found.phi[found.scored])
    of_all, w = torch.cat(phi).double(), torch.cat(weight).double()
    mean, low = float(of_all.mean()), float((w < SUPPRESSED).double().mean())
    recommend, reason = _choice(mean, low, solved)
    return Advice(recommend, mean, low, float(w.mean()), solved, len(usable), len(w), reason)


def _choice(phi: float, low: float, solved: float | None) -> tuple[Recommendation, str]:
    if phi > OWN:
        return "sft", "the demonstrations read as the model's own words, where plain SFT forgets least"
    if solved is not None:
        if solved >= KNOWN:
            return "idft", "the model knows the task, and IDFT passes the foreign words over"
        return "sft", (
            "the model does not know the task, which only SFT teaches; it forgets by that: try realign first"
        )
    if low > CONFIDENT:
        return "realign", (
            "most tokens are ones that the model would not have said, and a weighted loss learns nothing "
            "from them: rewrite the data, or use sft and expect forgetting"
        )
    return "idft", "the demonstrations are foreign in part, and IDFT passes the foreign part over"
