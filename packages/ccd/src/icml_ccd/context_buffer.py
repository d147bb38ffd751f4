"""The sliding buffer: distributions of the surest masked positions in the last few contexts.

Section 3 of arXiv 2512.02044: the marginal over contexts p̄(x_i | s) is approximated by the average over the
contexts already visited. Of each of the last d steps the V surest positions are kept: d V X numbers a row.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from icml_kernels import buffer_mix
from icml_kernels.language.buffer_mix import Mixture
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from icml_ccd.step_state import StepState


class Candidates(NamedTuple):
    """The positions of the newest step, and where they stand in the buffer.

    Attributes:
        position: in the response; where a row has fewer than V candidates, others fill up.
        member: which stored row is the position's at each age (0 is the newest); -1 where it is absent.
        seen: in how many of the stored steps; 0 for what is no candidate.
    """

    position: Int64[Tensor, "B V"]
    member: Int64[Tensor, "B V ages"]
    seen: Int64[Tensor, "B V"]


class ContextBuffer:
    """Log-probabilities of V positions a row in each of the last ``depth`` steps.

    Args:
        depth: d, steps kept.
        width: V, positions kept of each.

    Attributes:
        positions: where each stored distribution stands, -1 where there is none: [B, depth, V].
        logp: the distributions: [depth, B, V, X].
        steps: that were pushed since the last reset.

    Raises:
        ValueError: one of them is below 1.
    """

    def __init__(self, depth: int, width: int) -> None:
        if depth < 1 or width < 1:
            raise ValueError(f"d={depth} and V={width} must be at least 1")
        self.depth, self.width = depth, width
        self.positions: Tensor | None = None
        self.logp: Tensor | None = None
        self.reset()

    def reset(self) -> None:
        """Forget everything; memory is kept for the next block of the same size."""
        self.steps = 0
        self._slot = -1
        if self.positions is not None:
            self.positions.fill_(-1)

    @property
    def filled(self) -> int:
        """Steps held."""
        return min(self.steps, self.depth)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored log-probabilities."""
        return 0 if self.logp is None else self.logp.numel() * self.logp.element_size()

    def push(self, state: StepState, order: Int64[Tensor, "B K"]) -> None:
        """Keep the first V candidates of an order; the oldest step goes, and what is a candidate no more."""
        rows, width = order.shape[0], min(self.width, state.masked.shape[1])
        chosen = order[:, :width]
        shape = (self.depth, rows, width, state.logits.shape[1])
        if self.logp is None or self.logp.shape != shape:
            self._allocate(shape, state.lse)
        # Nothing stored outlives the moment at which its position was decided.
        held = self.positions.view(rows, -1)
        held = torch.where(state.masked.gather(1, held.clamp(min=0)), held, -1)
        self.positions = held.view(rows, self.depth, width)
        self._slot = (self._slot + 1) % self.depth
        self.steps += 1
        self._newest = chosen
        self.positions[:, self._slot] = torch.where(state.masked.gather(1, chosen), chosen, -1)
        state.logp(self._rows, chosen.reshape(-1), out=self.logp[self._slot].flatten(0, 1))

    def _allocate(self, shape: tuple[int, int, int, int], like: Tensor) -> None:
        depth, rows, width, _ = shape
        self.logp = torch.empty(shape, dtype=like.dtype, device=like.device)
        self.positions = torch.full((rows, depth, width), -1, device=like.device)
        self.steps = 0
        self._rows = torch.arange(rows, device=like.device).repeat_interleave(width)
        places = torch.arange(depth * rows * width, device=like.device).view(depth, rows, width)
        self._places = places.transpose(0, 1)[:, None]
        self._by_age: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def _ages(self) -> tuple[Int64[Tensor, " ages"], Int64[Tensor, "B 1 ages V"]]:
        """Slots from the newest to the oldest, and the places of their rows in the buffer."""
        key = (self._slot, self.filled)
        if key not in self._by_age:
            slots = [(self._slot - age) % self.depth for age in range(self.filled)]
            slot = torch.tensor(slots, device=self._places.device)
            self._by_age[key] = (slot, self._places.index_select(2, slot))
        return self._by_age[key]

    def candidates(self) -> Candidates:
        """Where the positions of the newest step stand in all stored steps."""
        slot, place = self._ages()
        # What is no candidate is stored nowhere, so that it is found nowhere.
        same = self._newest[:, :, None, None] == self.positions.index_select(1, slot)[:, None]
        member = torch.where(same, place, -1).amax(3)
        return Candidates(self._newest, member, (member >= 0).sum(2))

    def mix(self, weights: Float[Tensor, "k ages"], member: Int64[Tensor, "k ages"]) -> Mixture:
        """Weighted averages of stored distributions; NaN without a member."""
        return buffer_mix(self.logp.flatten(0, 2), weights, member)

    def averaged_logp(
        self, weights: Float[Tensor, "k ages"], member: Int64[Tensor, "k ages"]
    ) -> Float[Tensor, "k X"]:
        """log of the averages themselves, for positions whose token is drawn."""
        weights = torch.where(member >= 0, weights, 0)
        weights = weights / weights.sum(1, keepdim=True)
        stored = self.logp.flatten(0, 2)[member.clamp(min=0)]
        return torch.logsumexp(stored + weights.log()[:, :, None], dim=1)


def spread_out(
    values: tuple[Tensor, ...], candidates: Candidates, chosen: Bool[Tensor, "B V"], length: int, fill: float
) -> tuple[Tensor, ...]:
    """Values of candidates, [B V] each, at the positions of those chosen, ``fill`` elsewhere: [B N] each."""
    stacked = torch.where(chosen, torch.stack(values), fill)
    found = torch.full((*stacked.shape[:2], length), fill, dtype=stacked.dtype, device=stacked.device)
    return found.scatter_(2, candidates.position.expand_as(stacked), stacked).unbind(0)
