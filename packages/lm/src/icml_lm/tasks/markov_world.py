"""Markov worlds: chains of second order whose entropies and distances are exact.

The next token depends on the last two. Each pair of tokens has a few successors with Dirichlet(1)
probabilities, and a little of the uniform distribution, so that every sequence is possible. A related world
keeps the rows of a share of the contexts and draws the others anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_lm.artefacts import register_base
from icml_lm.tiny import TinyConfig, TinyLM
from icml_lm.tokenizers import SymbolTokenizer
from icml_lm.training import train

VOCAB, SUCCESSORS, FLOOR = 24, 3, 0.02
_SWEEPS, _TOLERANCE = 100_000, 1e-14


@dataclass(frozen=True, eq=False)
class MarkovWorld:
    """A stationary chain of second order.

    Attributes:
        transition: probability of the next token after (last but one, last), [vocab, vocab, vocab] in
            float64.
    """

    transition: Float[np.ndarray, "vocab vocab vocab"]

    def __post_init__(self) -> None:
        p = self.transition
        if p.ndim != 3 or len(set(p.shape)) != 1 or not np.isfinite(p).all() or (p < 0).any():
            raise ValueError(f"a transition table is [V, V, V] of probabilities, not of shape {p.shape}")
        if not np.allclose(p.sum(-1), 1.0, atol=1e-9):
            raise ValueError(f"rows of a transition table sum to 1; one sums to {p.sum(-1).min():.6g}")

    @classmethod
    def random(
        cls, seed: int, *, vocab: int = VOCAB, successors: int = SUCCESSORS, floor: float = FLOOR
    ) -> MarkovWorld:
        """A world with ``successors`` tokens after each context, and ``floor`` of the uniform distribution.

        Raises:
            ValueError: more successors than tokens; a floor outside (0, 1).
        """
        if not 1 <= successors <= vocab or not 0.0 < floor < 1.0:
            raise ValueError(f"successors={successors} of vocab={vocab}, and floor={floor}, are out of range")
        rng = np.random.default_rng(seed)
        table = np.zeros((vocab * vocab, vocab))
        for row in table:
            row[rng.choice(vocab, successors, replace=False)] = rng.dirichlet(np.ones(successors))
        table = (1.0 - floor) * table + floor / vocab
        return cls(table.reshape(vocab, vocab, vocab))

    def related(self, share: float, seed: int) -> MarkovWorld:
        """A world with this one's rows in a ``share`` of the contexts, and unrelated rows elsewhere.

        Raises:
            ValueError: a share outside [0, 1].
        """
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"share={share} must lie in [0, 1]")
        vocab = self.vocab
        support = int((self.transition[0, 0] > self.transition[0, 0].min()).sum())
        floor = min(max(float(self.transition.min()) * vocab, 1e-6), 0.5)
        table = MarkovWorld.random(
            seed, vocab=vocab, successors=max(1, support), floor=floor
        ).transition.copy()
        chosen = np.random.default_rng([seed, 1]).permutation(vocab * vocab)[: round(share * vocab * vocab)]
        flat = table.reshape(-1, vocab)
        flat[chosen] = self.transition.reshape(-1, vocab)[chosen]
        return MarkovWorld(table)

    @property
    def vocab(self) -> int:
        """Number of tokens."""
        return self.transition.shape[0]

    def stationary(self) -> Float[np.ndarray, "vocab vocab"]:
        """Probability of each pair of neighbours in a long sequence: the fixed point of the chain of pairs.

        Raises:
            ArithmeticError: the chain of pairs is periodic or nearly so.
        """
        pairs = np.full((self.vocab, self.vocab), 1.0 / self.vocab**2)
        for _ in range(_SWEEPS):
            new = np.einsum("ab,abc->bc", pairs, self.transition)
            if np.abs(new - pairs).sum() < _TOLERANCE:
                return new
            pairs = new
        raise ArithmeticError("the stationary distribution of this chain was not reached; is it periodic?")

    def entropy_rate(self) -> float:
        """Entropy of a token given those before it, in nats: the lowest loss that a model can reach."""
        return float((self.stationary() * self.context_entropy()).sum())

    def context_entropy(self) -> Float[np.ndarray, "vocab vocab"]:
        """Entropy of the next token in each context, in nats."""
        p = self.transition
        return -(p * np.log(np.where(p > 0, p, 1.0))).sum(-1)

    def cross_entropy(self, other: MarkovWorld) -> float:
        """Loss of ``other`` as a model of this world, in nats a token; infinite where it forbids a run."""
        joint = self.stationary()[..., None] * self.transition
        q = other.transition
        if bool(((joint > 0) & (q == 0)).any()):
            return math.inf
        return float(-(joint * np.log(np.where(q > 0, q, 1.0))).sum())

    def ngrams(self, n: int) -> Float[np.ndarray, ...]:
        """Probability of each run of ``n`` tokens in a long sequence, an array of ``n`` axes.

        Raises:
            ValueError: n below 1 or above 4.
        """
        if not 1 <= n <= 4:
            raise ValueError(f"n={n} must be between 1 and 4")
        pairs = self.stationary()
        if n == 1:
            return pairs.sum(0)
        runs = pairs
        for _ in range(n - 2):
            runs = runs[..., None] * self.transition
        return runs

    def jensen_shannon(self, other: MarkovWorld, n: int = 3) -> float:
        """Jensen-Shannon divergence of the distributions of runs of ``n`` tokens, in nats."""
        p, q = self.ngrams(n), other.ngrams(n)
        middle = (p + q) / 2
        return float((_relative(p, middle) + _relative(q, middle)) / 2)

    def logp(self, tokens: Int[Tensor, "rows length"]) -> Float[Tensor, "rows predicted"]:
        """Exact log-probability of each token from the third on, in nats, float64."""
        table = torch.from_numpy(self.transition).log()
        return table[tokens[:, :-2], tokens[:, 1:-1], tokens[:, 2:]]

    def sample(self, n: int, seed: int, length: int = 48) -> Int[Tensor, "n length"]:
        """``n`` sequences that begin with a pair from the stationary distribution.

        Raises:
            ValueError: a length below 2.
        """
        if length < 2:
            raise ValueError(f"length={length} must be at least 2: a context is two tokens")
        rng = np.random.default_rng(seed)
        out = np.empty((n, length), dtype=np.int64)
        pairs = rng.choice(self.vocab**2, size=n, p=self.stationary().ravel())
        out[:, 0], out[:, 1] = np.divmod(pairs, self.vocab)
        cumulated = self.transition.cumsum(-1)
        cumulated[..., -1] = 1.0
        draws = rng.random((length, n, 1))
        for t in range(2, length):
            out[:, t] = (cumulated[out[:, t - 2], out[:, t - 1]] <= draws[t]).sum(-1)
        return torch.from_numpy(out)


def tokenizer(vocab: int = VOCAB) -> SymbolTokenizer:
    """Symbols ``a0``, ``a1``, ...; token t of a world has the id t + 3, behind the special tokens."""
    return SymbolTokenizer([f"a{i}" for i in range(vocab)])


def build_base(
    *, seed: int = 0, steps: int = 300, batch: int = 48, length: int = 48, d: int = 64, layers: int = 2
) -> tuple[TinyLM, SymbolTokenizer]:
    """Train a base on ``MarkovWorld.random(seed)``: AdamW at 3e-3 with warm-up and cosine."""
    world, symbols = MarkovWorld.random(seed), tokenizer()
    model = TinyLM(TinyConfig(vocab=len(symbols), d=d, layers=layers), seed=seed)

    def batches(step: int) -> dict[str, Tensor]:
        ids = world.sample(batch, seed=(seed << 32) + step, length=length) + 3
        return {"input_ids": ids, "labels": ids}

    train(model, batches, steps=steps, lr=3e-3, warmup=steps // 10, clip=1.0, seed=seed)
    return model.eval(), symbols


def _relative(p: np.ndarray, q: np.ndarray) -> float:
    there = p > 0
    return float((p[there] * np.log(p[there] / q[there])).sum())


def _default_base() -> tuple[TinyLM, SymbolTokenizer]:
    return build_base()


register_base("markov-world", 1, _default_base)
