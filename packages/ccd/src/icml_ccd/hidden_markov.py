"""The exact denoiser of hidden Markov text: marginals by forward and backward messages."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int64
from torch import Tensor


class HiddenMarkovDenoiser:
    """p(x_i | visible tokens) of a hidden Markov model of any length, as logits.

    Args:
        initial: probabilities of the first state.
        transition: from state to state, rows that add up to 1.
        emission: of tokens in each state, rows that add up to 1.

    Raises:
        ValueError: shapes or sums that do not fit.
    """

    shift_logits = False

    def __init__(
        self,
        initial: Float[Tensor, " states"],
        transition: Float[Tensor, "states states"],
        emission: Float[Tensor, "states vocab"],
    ) -> None:
        self.initial, self.transition, self.emission = (t.double() for t in (initial, transition, emission))
        states = len(self.initial)
        if self.transition.shape != (states, states) or self.emission.shape[:1] != (states,):
            raise ValueError(
                f"initial {list(initial.shape)}, transition {list(transition.shape)} and emission "
                f"{list(emission.shape)} do not fit together"
            )
        for name, table in (
            ("initial", self.initial),
            ("transition", self.transition),
            ("emission", self.emission),
        ):
            if not bool((table >= 0).all()) or not torch.allclose(table.sum(-1), torch.ones(())[()].double()):
                raise ValueError(f"{name} does not hold probabilities that add up to 1")
        self.vocab = self.mask_id = self.emission.shape[1]

    @classmethod
    def random(cls, states: int, vocab: int, *, seed: int = 0, peak: float = 2.0) -> HiddenMarkovDenoiser:
        """A model with random tables; a larger ``peak`` makes states stick to fewer tokens and successors."""
        generator = torch.Generator().manual_seed(seed)

        def table(*shape: int) -> Tensor:
            return torch.softmax(peak * torch.randn(*shape, generator=generator, dtype=torch.float64), -1)

        return cls(table(states), table(states, states), table(states, vocab))

    def __call__(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab"]:
        """Logits in float32: log p(x_i | visible tokens)."""
        return self.posterior(ids).log().float().to(ids.device)

    def posterior(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab"]:
        """Marginals in float64. A masked position sends no evidence; a visible one, its own token's."""
        ids = ids.cpu()
        masked = ids == self.mask_id
        seen = self.emission.T[ids.masked_fill(masked, 0)]
        evidence = torch.where(masked[..., None], 1.0, seen)
        length = ids.shape[1]
        forward = [self.initial.expand(len(ids), -1)]
        for i in range(1, length):
            forward.append(_normalised((forward[-1] * evidence[:, i - 1]) @ self.transition))
        backward = [torch.ones_like(forward[0])]
        for i in range(length - 1, 0, -1):
            backward.insert(0, _normalised((backward[0] * evidence[:, i]) @ self.transition.T))
        state = torch.stack(forward, 1) * torch.stack(backward, 1)
        # Of the position itself its token is no evidence where it is masked, and everything where it is not.
        found = _normalised(state) @ self.emission
        shown = torch.nn.functional.one_hot(ids.masked_fill(masked, 0), self.vocab).double()
        return torch.where(masked[..., None], found, shown)

    def log_probability(self, ids: Int[Tensor, "batch length"]) -> Float[Tensor, " batch"]:
        """log p of whole sequences, by the forward recursion."""
        message = self.initial.expand(len(ids), -1)
        total = torch.zeros(len(ids), dtype=torch.float64)
        for i in range(ids.shape[1]):
            message = message * self.emission.T[ids[:, i].cpu()]
            scale = message.sum(1, keepdim=True)
            total += scale[:, 0].log()
            message = message / scale @ self.transition
        return total

    def sample(self, n: int, length: int, *, seed: int = 0) -> Int64[Tensor, "n length"]:
        """Sequences from the model."""
        generator = torch.Generator().manual_seed(seed)
        if n == 0:
            return torch.empty(0, length, dtype=torch.int64)
        state = torch.multinomial(self.initial.expand(n, -1), 1, generator=generator)[:, 0]
        tokens = []
        for _ in range(length):
            tokens.append(torch.multinomial(self.emission[state], 1, generator=generator)[:, 0])
            state = torch.multinomial(self.transition[state], 1, generator=generator)[:, 0]
        return torch.stack(tokens, 1)


def _normalised(table: Tensor) -> Tensor:
    return table / table.sum(-1, keepdim=True)
