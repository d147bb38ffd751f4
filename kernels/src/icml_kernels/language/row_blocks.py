"""Rows pass through the head block by block: logits live in one buffer, gradients leave it as products.

A block of rows is multiplied with the whole head into a buffer that the next block uses again, so that
logits of all rows never exist; the softmax's loops (``rows_cpu``, ``rows_triton``) work on it in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from icml_kernels.language.head import arithmetic

# Numbers of the buffer (48 MiB in float32), and the fewest rows of a block where the vocabulary is larger
# than that allows. With 576 features and 49,152 tokens one thread multiplies 64 rows at 85, 128 at 90, 256 at
# 100 and 512 at 106 Gflop/s.
BUFFER = 3 * 2**22
MIN_ROWS = 128
MIN_ROWS_ON_GPU = 1024


class Block(NamedTuple):
    """Some rows and their logits.

    Attributes:
        rows: which, [rows_of_block].
        hidden: their hidden states in the precision of the products, [rows_of_block, features].
        x: their logits, [rows_of_block, vocabulary]; to be overwritten.
    """

    rows: Tensor
    hidden: Tensor
    x: Tensor


class Head:
    """The head of ``head.logits`` prepared for blocks of rows."""

    def __init__(
        self,
        hidden: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        temperature: float,
        logit_scale: float,
        softcap: float | None,
    ) -> None:
        self.dtype = arithmetic(hidden.dtype)
        self.hidden = hidden
        # 16-bit products with sums in float32 are what a GPU is fast at, and a CPU lacks.
        self.narrow = weight is not None and hidden.is_cuda and hidden.dtype.itemsize == 2
        self.weight = weight if weight is None or self.narrow else weight.to(self.dtype)
        self.bias = None if bias is None else bias.to(self.dtype)
        self.vocabulary = hidden.shape[1] if weight is None else weight.shape[0]
        # x = reach tanh(gain z) with a cap, x = gain z without one; reach 0 stands for the latter.
        self.gain = logit_scale / (temperature if softcap is None else softcap)
        self.reach = 0.0 if softcap is None else softcap / temperature
        self.by_hidden: Tensor | None = None
        self.by_weight: Tensor | None = None
        self.by_bias: Tensor | None = None

    def blocks(self, rows: Tensor) -> Iterator[Block]:
        """The rows in order; a block is valid until the next one is asked for."""
        least = MIN_ROWS_ON_GPU if self.hidden.is_cuda else MIN_ROWS
        size = min(len(rows), max(least, BUFFER // self.vocabulary))
        # Products of 16 bits with sums in float32 come in a tensor of their own.
        buffer = self.hidden.new_empty(0 if self.narrow else size, self.vocabulary, dtype=self.dtype)
        for part in rows.split(size) if len(rows) else ():
            yield self._block(part, buffer[: len(part)])

    def _block(self, part: Tensor, x: Tensor) -> Block:
        hidden = self.hidden[part]
        if self.weight is None:
            x.copy_(hidden)
        elif self.narrow:
            x = torch.mm(hidden, self.weight.T, out_dtype=self.dtype)
        else:
            hidden = hidden.to(self.dtype)
            torch.mm(hidden, self.weight.T, out=x)
        if self.bias is not None:
            x += self.bias
        if self.gain != 1:
            x *= self.gain
        if self.reach:
            x.tanh_().mul_(self.reach)
        return Block(part, hidden, x)

    def want(self, by_hidden: bool, by_head: bool) -> None:
        """Prepare sums for the gradients that are asked for."""
        like: dict[str, Any] = {"dtype": self.dtype, "device": self.hidden.device}
        if by_hidden:
            self.by_hidden = torch.zeros(self.hidden.shape, **like)
        if by_head and self.weight is not None:
            self.by_weight = torch.zeros(self.weight.shape, **like)
        if by_head and self.bias is not None:
            self.by_bias = torch.zeros(self.bias.shape, **like)

    def pull_back(self, block: Block) -> None:
        """Add a block's share of the gradients; ``x`` holds the gradient by the head's products by now."""
        g = block.x.to(self.hidden.dtype) if self.narrow else block.x
        if self.by_hidden is not None:
            self.by_hidden[block.rows] = g if self.weight is None else (g @ self.weight).to(self.dtype)
        if self.by_weight is not None:
            if self.narrow:
                self.by_weight += torch.mm(g.T, block.hidden, out_dtype=self.dtype)
            else:
                self.by_weight.addmm_(g.T, block.hidden)
        if self.by_bias is not None:
            self.by_bias += block.x.sum(0)

    def gradients(self) -> tuple[Tensor, Tensor, Tensor]:
        """By hidden, weight and bias, in the arithmetic's precision; empty where not asked for."""
        found = (self.by_hidden, self.by_weight, self.by_bias)
        none = self.hidden.new_empty(0, dtype=self.dtype)
        return tuple(none.clone() if g is None else g for g in found)  # type: ignore[return-value]


def supervised_rows(targets: Tensor, vocabulary: int, ignore_index: int) -> Tensor:
    """The rows whose target counts.

    Raises:
        ValueError: for a target outside the vocabulary.
    """
    rows = torch.nonzero(targets != ignore_index)[:, 0]
    found = targets[rows]
    wrong = (found < 0) | (found >= vocabulary)
    if bool(wrong.any()):
        row = int(rows[wrong][0])
        raise ValueError(
            f"targets[{row}] = {int(targets[row])} is neither a token, 0 to {vocabulary - 1}, "
            f"nor ignore_index={ignore_index}"
        )
    return rows
