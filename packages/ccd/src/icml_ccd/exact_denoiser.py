"""Denoisers that are exact: the posterior of every position given what is visible, by enumeration.

The oracle of this package: a language of which all sequences are listed has a known posterior for every
context, so that a decoder's own distribution can be compared with the true one, and noise can be added in
known doses.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor

CHUNK = 1 << 24
"""Entries of the table of contexts and sequences that are compared at once."""


class ExactDenoiser:
    """p(x_i | visible tokens) of a listed language, as logits, with or without noise.

        p(x_i = v | c) = (1 - floor) sum_{x consistent with c, x_i = v} w_x / sum_{x consistent with c} w_x +
        floor / X

    A context that no sequence is consistent with has no posterior; all tokens are then equally likely. The
    noise is Gaussian, added to the logits, drawn anew for every context, position and token, and a function
    of these and the seed alone: the same context gives the same logits in any batch.

    Args:
        sequences: all valid sequences [number, length], or lists of them.
        noise: standard deviation of the noise on logits, nats.
        seed: of the noise.
        weights: of the sequences; equal by default.
        floor: probability that is spread over all tokens; 0 leaves ruled-out tokens at -inf.
        vocab: number of tokens; one more than the largest by default.
        mask_id: the mask token; ``vocab`` by default.
        shift_logits: whether logits are given one position early, as Dream gives them.

    Raises:
        ValueError: no sequence, sequences of unequal length, tokens or numbers out of range.

    Example:
        >>> denoiser = ExactDenoiser([[0, 1], [1, 0]])
        >>> denoiser(torch.tensor([[0, 2]])).argmax(-1).tolist()
        [[0, 1]]
    """

    def __init__(
        self,
        sequences: Int[Tensor, "number length"] | Sequence[Sequence[int]],
        noise: float = 0.0,
        seed: int = 0,
        *,
        weights: Float[Tensor, " number"] | Sequence[float] | None = None,
        floor: float = 0.0,
        vocab: int | None = None,
        mask_id: int | None = None,
        shift_logits: bool = False,
    ) -> None:
        try:
            table = torch.as_tensor(sequences).long()
        except (ValueError, TypeError) as error:
            raise ValueError(f"sequences must have one length each: {error}") from error
        if table.dim() != 2 or 0 in table.shape:
            raise ValueError(f"sequences has shape {list(table.shape)}; expected [number, length]")
        self.vocab = int(table.max()) + 1 if vocab is None else vocab
        self.mask_id = self.vocab if mask_id is None else mask_id
        if int(table.min()) < 0 or int(table.max()) >= self.vocab:
            raise ValueError(
                f"tokens {int(table.min())} to {int(table.max())} in a vocabulary of {self.vocab}"
            )
        if bool((table == self.mask_id).any()):
            raise ValueError(f"the mask id {self.mask_id} occurs in the sequences")
        if not noise >= 0 or not 0 <= floor < 1:
            raise ValueError(f"noise={noise} must not be negative, and floor={floor} lies in [0, 1)")
        weight = torch.ones(len(table)) if weights is None else torch.as_tensor(weights)
        weight = weight.double()
        if weight.shape != (len(table),) or not bool((weight >= 0).all()) or not float(weight.sum()) > 0:
            raise ValueError(f"weights must be {len(table)} numbers, not negative and not all 0")
        self.sequences, self.weights = table, weight / weight.sum()
        self.noise, self.seed, self.floor, self.shift_logits = (
            float(noise),
            int(seed),
            float(floor),
            shift_logits,
        )
        self.length = table.shape[1]
        one_hot = torch.nn.functional.one_hot(table, self.vocab).double()
        self._one_hot = one_hot.flatten(1)
        self.forwards = 0

    def posterior(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab"]:
        """Marginals given the visible tokens, in float64; NaN where no sequence is consistent.

        Raises:
            ValueError: ids of another length.
        """
        if ids.dim() != 2 or ids.shape[1] != self.length:
            raise ValueError(f"ids has shape {list(ids.shape)}; this language has {self.length} positions")
        rows = max(1, CHUNK // (self.length * len(self.sequences)))
        parts = []
        for part in ids.cpu().split(rows):
            hidden = part == self.mask_id
            agrees = (hidden[:, None] | (part[:, None] == self.sequences)).all(2)
            weight = agrees.double() * self.weights
            parts.append(weight @ self._one_hot / weight.sum(1, keepdim=True))
        return torch.cat(parts).view(*ids.shape, self.vocab)

    def __call__(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab"]:
        """Logits in float32 on the device of the ids."""
        self.forwards += 1
        p = self.posterior(ids)
        p = torch.where(torch.isnan(p), 1 / self.vocab, p)
        logits = ((1 - self.floor) * p + self.floor / self.vocab).log()
        if self.noise:
            logits += self.noise * context_noise(ids.cpu(), self.vocab, self.seed)
        if self.shift_logits:
            logits = torch.cat((logits[:, 1:], logits[:, -1:]), 1)
        return logits.float().to(ids.device)

    def log_probability(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, " batch"]:
        """log p of whole sequences; -inf for those outside the language."""
        same = (ids.cpu()[:, None] == self.sequences).all(2)
        return (same.double() * self.weights).sum(1).log()


def context_noise(
    ids: Int64[Tensor, "batch length"], vocab: int, seed: int
) -> Float[Tensor, "batch length vocab"]:
    """Standard normal numbers, a function of a row's tokens, position, token and seed (counter-based)."""
    tokens = ids.numpy().astype(np.uint64)
    with np.errstate(over="ignore"):
        key = np.full(len(tokens), np.uint64(seed & (2**64 - 1)), dtype=np.uint64)
        for column in range(tokens.shape[1]):
            key = _mixed(key ^ (tokens[:, column] + np.uint64(0x9E3779B97F4A7C15) * np.uint64(column + 1)))
        count = np.arange(tokens.shape[1] * vocab, dtype=np.uint64)
        first = _mixed(key[:, None] + np.uint64(2) * count)
        second = _mixed(key[:, None] + np.uint64(2) * count + np.uint64(1))
    # 53 bits each, the first never 0.
    u = ((first >> np.uint64(11)).astype(np.float64) + 1.0) / 2**53
    angle = 2 * np.pi * (second >> np.uint64(11)).astype(np.float64) / 2**53
    normal = np.sqrt(-2 * np.log(u)) * np.cos(angle)
    return torch.from_numpy(normal.reshape(*tokens.shape, vocab))


def _mixed(x: np.ndarray) -> np.ndarray:
    """SplitMix64's output function (Steele, Lea and Flood 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
