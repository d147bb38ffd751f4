"""Language models that can be enumerated: next-token tables by the last token, in transformers' calling form.

Every property of the centred log-likelihood can be checked on them exactly.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class TabularLM(nn.Module):
    """p(next | last token), as a table of logits.

    Args:
        table: logits by last token, [vocab, vocab]; -inf rules a token out.

    Raises:
        ValueError: no square table, or a row without a finite logit.

    Example:
        >>> TabularLM(torch.zeros(3, 3))(torch.tensor([[0, 2]])).logits.shape
        torch.Size([1, 2, 3])
    """

    def __init__(self, table: Float[Tensor, "vocab vocab"]) -> None:
        super().__init__()
        if table.dim() != 2 or table.shape[0] != table.shape[1]:
            raise ValueError(f"a table of next-token logits is square, not {list(table.shape)}")
        if bool(torch.isnan(table).any()) or not bool(torch.isfinite(table).any(1).all()):
            raise ValueError("a row of the table holds NaN, or no finite logit")
        self.table = nn.Parameter(table.clone())

    @classmethod
    def random(cls, vocab: int, *, seed: int, spread: tuple[float, float] = (0.1, 4.0)) -> TabularLM:
        """Contexts of mixed entropy: each row's logits are normal, their s.d. log-uniform in ``spread``."""
        generator = torch.Generator().manual_seed(seed)
        low, high = (math.log(s) for s in spread)
        drawn = torch.rand(vocab, 1, generator=generator, dtype=torch.float64)
        scale = (low + (high - low) * drawn).exp()
        return cls(scale * torch.randn(vocab, vocab, generator=generator, dtype=torch.float64))

    def forward(self, input_ids: Int[Tensor, "batch tokens"], **ignored: Any) -> Any:
        """Logits at every position."""
        return SimpleNamespace(logits=self.table[input_ids], past_key_values=None)

    def get_output_embeddings(self) -> None:
        """None: the logits are no linear map of hidden states."""
        return None

    def get_input_embeddings(self) -> Any:
        """The table, as far as its number of rows is asked for."""
        return SimpleNamespace(weight=self.table)

    @torch.no_grad()
    def sample(self, rows: int, tokens: int, *, seed: int) -> Int[Tensor, "rows tokens"]:
        """Texts that begin with an evenly drawn token."""
        generator = torch.Generator().manual_seed(seed)
        cumulated = self.table.softmax(1).cumsum(1)
        ids = torch.empty(rows, tokens, dtype=torch.long)
        ids[:, 0] = torch.randint(self.table.shape[0], (rows,), generator=generator)
        for t in range(1, tokens):
            u = torch.rand(rows, 1, generator=generator, dtype=torch.float64)
            place = torch.searchsorted(cumulated[ids[:, t - 1]].contiguous(), u * 1.0, right=True)
            ids[:, t] = place[:, 0].clamp(max=self.table.shape[0] - 1)
        return ids
