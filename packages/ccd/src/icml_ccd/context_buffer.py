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
        position: in the response; -1 where a row has fewer than V candidates.
        member: which stored row is the position's at each age (0 is the newest); -1 where it is absent.
        seen: in how many of the stored steps.
    """

    position: Int64[Tensor, "B V"]
    member: Int64[Tensor, "B V ages"]
    seen: Int64[Tensor, "B V"]


class ContextBuffer:
    """Log-probabilities of V positions a row in each of the last ``depth`` steps.

    Args:
        depth: d, steps kept.
        width: V, positions kept of each.

    Raises:
        ValueError: one of them is below 1.
    """

    def __init__(self, depth: int, width: int) -> None:
        if depth < 1 or width < 1:
            raise ValueError(f"d={depth} and V={width} must be at least 1")
        self.depth, self.width = depth, width
        self.reset()

    def reset(self) -> None:
        """Forget everything; memory is kept for the next block of the same size."""
        self.steps = 0
        self._slot = -1
        if getattr(self, "positions", None) is None:
            self.positions: Tensor | None = None
            self.logp: Tensor | None = None
        else:
            self.positions.fill_(-1)

    @property
    def filled(self) -> int:
        """Steps held."""
        return min(self.steps, self.depth)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored log-probabilities."""
        return 0 if self.logp is None else self.logp.numel() * self.logp.element_size()

    def push(self, state: StepState, order: Int64[Tensor, "B N"]) -> None:
        """Keep the first V candidates of an order; the oldest step goes, and what is a candidate no more."""
        width = min(self.width, order.shape[1])
        chosen = order[:, :width]
        rows = order.shape[0]
        shape = (self.depth, rows, width, state.logits.shape[1])
        if self.logp is None or self.logp.shape != shape:
            self.logp = torch.empty(shape, dtype=state.lse.dtype, device=state.lse.device)
            self.positions = torch.full(shape[:3], -1, device=state.lse.device)
            self.steps = 0
        b = torch.arange(rows, device=chosen.device)[:, None].expand_as(chosen)
        # Nothing stored outlives the moment at which its position was decided.
        self.positions.masked_fill_(~state.masked[b, self.positions.clamp(min=0)], -1)
        self._slot = (self._slot + 1) % self.depth
        self.steps += 1
        there = state.masked.gather(1, chosen)
        self.positions[self._slot] = torch.where(there, chosen, -1)
        state.logp(b.reshape(-1), chosen.reshape(-1), out=self.logp[self._slot].flatten(0, 1))

    def candidates(self) -> Candidates:
        """Where the positions of the newest step stand in all stored steps."""
        slots = [(self._slot - age) % self.depth for age in range(self.filled)]
        slot = torch.tensor(slots, device=self.positions.device)
        newest = self.positions[self._slot]
        rows, width = newest.shape
        same = newest[:, :, None, None] == self.positions[slot].permute(1, 0, 2)[:, None]
        same &= (newest >= 0)[:, :, None, None]
        found, place = same.max(dim=3)
        base = slot * (rows * width) + torch.arange(rows, device=slot.device)[:, None, None] * width
        member = torch.where(found, base + place, -1)
        return Candidates(newest, member, found.sum(2))

    def mix(self, weights: Float[Tensor, "k ages"], member: Int64[Tensor, "k ages"]) -> Mixture:
        """Weighted averages of stored distributions, each with at least one member."""
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
    """Several values of candidates, [B V] each, at their positions, ``fill`` elsewhere: [B N] each."""
    stacked = torch.stack(values, 2)
    shape = (len(stacked), length + 1, len(values))
    found = torch.full(shape, fill, dtype=stacked.dtype, device=stacked.device)
    # What is not chosen goes into one more column, which is cut off.
    places = torch.where(chosen, candidates.position, length)
    found.scatter_(1, places[:, :, None].expand_as(stacked), stacked)
    return found[:, :length].unbind(2)
