"""The loop of hinted decoding: two streams with their own padding, positions and caches, one token for both.

Rows leave a stream where it has nothing more to say: the target's after the split, both at the end.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any, Literal

import torch
from icml_kernels import geometric_mix_sample
from icml_lm.cache import new_cache, run_cached, select_rows
from torch import Tensor

Finish = Literal["eos", "length", "repeating"]

EVERY, GRAM, TIMES = 100, 30, 5
"""Every so many tokens an answer ends in which some run of so many tokens stands so often, as published."""
_SPLIT_CHARACTERS = 4  # a character of the split string may be spread over so many tokens


@dataclass(frozen=True)
class Settings:
    """Of one call; see ``HintedDecoder``."""

    beta: float
    mode: str
    top_p: float
    temperature: float
    split: str | None
    log_vocabulary: float | None
    ends: tuple[int, ...]
    new: int
    tokenizer: Any


@dataclass(frozen=True)
class Written:
    """One answer: its tokens, means of φ and of λ where the entropy decided, and the largest such λ."""

    ids: list[int]
    phi_mean: float
    share_mean: float
    share_max: float
    finish: Finish


class Stream:
    """One model's view of the answers that are being written.

    Attributes:
        rows: which of the answers it still follows.
    """

    def __init__(self, model: Any, prompts: list[list[int]], new: int) -> None:
        self.model = model
        device = next(model.parameters()).device
        longest = max(map(len, prompts))
        ids = [[0] * (longest - len(p)) + p for p in prompts]
        self.ids = torch.tensor(ids, device=device)
        self.rows = torch.arange(len(prompts), device=device)
        self.columns, self.cache = longest, new_cache(model, longest + new)
        self.mask: Tensor | None = None
        self.places: Tensor | None = None
        if any(len(p) != longest for p in prompts):
            seen = [[0] * (longest - len(p)) + [1] * (len(p) + new) for p in prompts]
            self.mask = torch.tensor(seen, device=device)
            self.places = torch.tensor([[len(p)] for p in prompts], device=device)

    def read(self) -> Tensor:
        """Logits after the prompts."""
        inputs: dict[str, Any] = {}
        if self.mask is not None:
            seen = self.mask[:, : self.columns]
            inputs = {"attention_mask": seen, "position_ids": (seen.cumsum(1) - 1).clamp(min=0)}
        return run_cached(self.model, self.ids, self.cache, last_only=True, **inputs).logits[:, -1]

    def advance(self, tokens: Tensor, step: int) -> Tensor:
        """Logits after one more token of each row; ``step`` counts the answer's tokens before it."""
        inputs: dict[str, Any] = {}
        if self.mask is not None and self.places is not None:
            seen = self.mask[:, : self.columns + step + 1]
            inputs = {"attention_mask": seen, "position_ids": self.places + step}
        out = run_cached(self.model, tokens[:, None], self.cache, last_only=True, **inputs)
        return out.logits[:, -1]

    def keep(self, kept: Tensor) -> None:
        """Follow only these of its rows, given by their places."""
        self.rows = self.rows[kept]
        if not len(self.rows):
            return
        select_rows(self.cache, kept)
        if self.mask is not None and self.places is not None:
            self.mask, self.places = self.mask[kept], self.places[kept]


@torch.no_grad()
def write(
    models: tuple[Any, Any],
    targets: list[list[int]],
    drafts: list[list[int]],
    chance: Tensor,
    settings: Settings,
) -> list[Written]:
    """Write one answer for each pair of prompts.

    Args:
        models: p and q.
        targets, drafts: their prompts.
        chance: uniform numbers, [answers, new].
        settings: of the mixture.
    """
    training = [m.training for m in models]
    for m in models:
        m.eval()
    try:
        return _Answers(models, targets, drafts, chance, settings).write()
    finally:
        for m, before in zip(models, training, strict=True):
            m.train(before)


class _Answers:
    def __init__(
        self,
        models: tuple[Any, Any],
        targets: list[list[int]],
        drafts: list[list[int]],
        chance: Tensor,
        settings: Settings,
    ) -> None:
        n, new = len(drafts), settings.new
        self.settings, self.chance = settings, chance
        self.target = Stream(models[0], targets, new)
        self.draft = Stream(models[1], drafts, new)
        device = self.draft.ids.device
        self.ids = torch.zeros(n, new, dtype=torch.long, device=device)
        self.phi = torch.zeros(n, new, dtype=torch.float64, device=device)
        self.share = torch.full((n, new), math.nan, dtype=torch.float64, device=device)
        self.lengths = torch.full((n,), new, device=device)
        self.finish: list[Finish] = ["length"] * n
        self.ends = torch.tensor(settings.ends, device=device, dtype=torch.long)
        self.widest = len((settings.split or "").encode()) + _SPLIT_CHARACTERS
        # Which of the draft's rows the target still follows.
        self.followed = torch.ones(n, dtype=torch.bool, device=device)

    def write(self) -> list[Written]:
        p, q = self.target.read(), self.draft.read()
        for step in range(self.settings.new):
            tokens = self._draw(p, q, step)
            if not self._settle(tokens, step) or step + 1 == self.settings.new:
                break
            last = self.ids[:, step]
            q = self.draft.advance(last[self.draft.rows], step)
            if len(self.target.rows):
                p = self.target.advance(last[self.target.rows], step)
        return self._result()

    def _draw(self, p: Tensor, q: Tensor, step: int) -> Tensor:
        """A token for each row of the draft, from the mixture, or from q alone where p has left."""
        s, rows, followed = self.settings, self.draft.rows, self.followed
        if p.dtype != q.dtype:
            p, q = p.float(), q.float()
        p = p.to(q.device)
        if not len(self.target.rows):
            p = q
        elif len(self.target.rows) < len(rows):
            whole = q.clone()
            whole[followed] = p
            p = whole
        share = torch.where(followed, 0.0 if step == 0 else math.nan, 1.0)
        found = geometric_mix_sample(
            p,
            q,
            self.chance[rows, step],
            beta=s.beta,
            mode=s.mode,
            top_p=s.top_p,
            temperature=s.temperature,
            share=share,
            log_vocabulary=s.log_vocabulary,
        )
        self.ids[rows, step] = found.token
        self.phi[rows, step] = (found.draft_logp + found.draft_entropy).double()
        if step:
            self.share[rows, step] = torch.where(followed, found.share.double(), math.nan)
        return found.token

    def _settle(self, tokens: Tensor, step: int) -> bool:
        """Let rows leave that have ended, and the target those that have split; whether any goes on."""
        rows = self.draft.rows
        ended = (tokens[:, None] == self.ends).any(1)
        stopped = ended.clone()
        for row in rows[ended].tolist():
            self.finish[row] = "eos"
        if (step + 1) % EVERY == 0:
            circling = [repeats(ids) for ids in self.ids[rows, : step + 1].tolist()]
            for place, row in enumerate(rows.tolist()):
                if circling[place] and not bool(ended[place]):
                    self.finish[row], stopped[place] = "repeating", True
        self.lengths[rows[stopped]] = step + 1
        leaves = self._split(step)
        if leaves is not None:
            self.followed = self.followed & ~leaves
        if not bool(stopped.any()) and leaves is None:
            return True
        goes_on = ~stopped
        # The target's rows are the followed ones of the draft's, in order.
        still = torch.zeros(len(self.finish), dtype=torch.bool, device=rows.device)
        still[rows[self.followed & goes_on]] = True
        before = len(self.target.rows)
        kept = still[self.target.rows].nonzero()[:, 0]
        if len(kept) < before:
            self.target.keep(kept)
        if bool(stopped.any()):
            alive = goes_on.nonzero()[:, 0]
            self.draft.keep(alive)
            self.followed = self.followed[alive]
        return len(self.draft.rows) > 0

    def _split(self, step: int) -> Tensor | None:
        """Which rows' answers hold the split string since this token; None for none."""
        split = self.settings.split
        if split is None or not bool(self.followed.any()):
            return None
        rows = self.draft.rows
        tails = self.ids[rows, max(0, step + 1 - self.widest) : step + 1].tolist()
        decode, followed = self.settings.tokenizer.decode, self.followed.tolist()
        said = [f and split in decode(t) for f, t in zip(followed, tails, strict=True)]
        return torch.tensor(said, device=rows.device) if any(said) else None

    def _result(self) -> list[Written]:
        found = []
        for row, length in enumerate(self.lengths.tolist()):
            phi, share = self.phi[row, :length], self.share[row, :length]
            decided = share[~torch.isnan(share)]
            # Where the entropy never decided there is nothing to complain of.
            mean, top = (float(decided.mean()), float(decided.max())) if len(decided) else (0.0, 1.0)
            ids = self.ids[row, :length].tolist()
            found.append(Written(ids, float(phi.mean()), mean, top, self.finish[row]))
        return found


def repeats(ids: list[int], gram: int = GRAM, times: int = TIMES) -> bool:
    """Whether some run of ``gram`` tokens stands in an answer ``times`` times or more."""
    if len(ids) < gram + times - 1:
        return False
    counts = Counter(tuple(ids[i : i + gram]) for i in range(len(ids) - gram + 1))
    return max(counts.values()) >= times
