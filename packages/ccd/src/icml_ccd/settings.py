"""What ``decode`` is asked for, checked: the response's place, the schedule, the ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Int, Int64
from torch import Tensor


@dataclass(frozen=True)
class Region:
    """Where the response lies.

    Attributes:
        ids: prompt and response, masks where tokens are wanted.
        undecided: which response positions are wanted.
        start: of the response in ``ids``.
        attention_mask: over all of ``ids``; None where every token is real.
    """

    ids: Int64[Tensor, "B L"]
    undecided: Bool[Tensor, "B N"]
    start: int
    attention_mask: Int[Tensor, "B L"] | None


def response_region(
    input_ids: Int[Tensor, "B P"],
    mask_id: int,
    gen_length: int | None,
    infill: bool,
    attention_mask: Int[Tensor, "B P"] | None,
) -> Region:
    """The sequence to be decoded.

    Raises:
        TypeError: ids that are no integers.
        ValueError: ids of another shape; masks in a prompt; a length missing or too much; a bad attention
            mask.
    """
    if not isinstance(input_ids, Tensor) or input_ids.dtype not in (torch.int64, torch.int32):
        kind = input_ids.dtype if isinstance(input_ids, Tensor) else type(input_ids).__name__
        raise TypeError(f"input_ids is {kind}; expected an integer tensor [batch, prompt]")
    if input_ids.dim() != 2 or not input_ids.shape[0]:
        raise ValueError(f"input_ids has shape {list(input_ids.shape)}; expected [batch, prompt]")
    ids = input_ids.long()
    if attention_mask is not None:
        attention_mask = _checked_mask(attention_mask, ids, left=not infill)
    masks = ids == mask_id
    if infill:
        if gen_length is not None:
            raise ValueError(f"infill=True fills the masks in input_ids and takes no gen_length={gen_length}")
        if attention_mask is not None:
            masks &= attention_mask.bool()
        return Region(ids.clone(), masks, 0, attention_mask)
    if bool(masks.any()):
        row, place = (int(i) for i in masks.nonzero()[0])
        raise ValueError(
            f"the prompt in row {row} holds the mask id {mask_id} at position {place}; to fill masks "
            "inside a text say infill=True"
        )
    if gen_length is None or gen_length < 1:
        raise ValueError(f"gen_length={gen_length}; say how many tokens the response has, at least 1")
    tail = torch.full((ids.shape[0], gen_length), mask_id, dtype=ids.dtype, device=ids.device)
    if attention_mask is not None:
        attention_mask = torch.cat((attention_mask, torch.ones_like(tail)), 1)
    undecided = torch.ones_like(tail, dtype=torch.bool)
    return Region(torch.cat((ids, tail), 1), undecided, input_ids.shape[1], attention_mask)


def _checked_mask(mask: Tensor, ids: Tensor, left: bool) -> Tensor | None:
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask has shape {list(mask.shape)} but input_ids {list(ids.shape)}")
    real = mask.bool()
    if ids.shape[1] and not bool(real.any(1).all()):
        row = int((~real.any(1)).nonzero()[0])
        raise ValueError(f"row {row} of attention_mask is all 0: nothing of it could be attended to")
    if left and bool((real[:, :-1] & ~real[:, 1:]).any()):
        raise ValueError(
            "attention_mask has padding behind or inside a prompt; pad shorter prompts on the left"
        )
    return None if bool(real.all()) else real.long()


@dataclass(frozen=True)
class Schedule:
    """How many tokens are unmasked, block by block.

    Attributes:
        blocks: bounds of the blocks in the response.
        steps: of each block; None where the budget is the same at every step.
        budget: least number of tokens a step, where there are no steps.
    """

    blocks: tuple[tuple[int, int], ...]
    steps: tuple[int, ...] | None
    budget: int

    def at(self, block: int, step: int, wanted: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, " B"]:
        """Tokens of every row at a step of a block that began with ``wanted``; at least one.

        A block's tokens are spread over its steps, the first ones taking the remainder.
        """
        if self.steps is None:
            return np.full_like(wanted, self.budget)
        steps = wanted.clip(1, self.steps[block])
        return (wanted // steps + (step < wanted % steps)).clip(1)


def make_schedule(
    length: int,
    wanted: int,
    *,
    steps: int | None,
    budget: int | None,
    block_length: int | None,
    dynamic: bool,
    rule: str,
    infill: bool,
) -> Schedule:
    """The blocks of a response of ``length`` positions, and their steps.

    Args:
        length: N.
        wanted: the most masks of a row.
        steps: forward passes in all.
        budget: tokens a step.
        block_length: positions of a block; one block by default. With ``infill`` the last may be shorter.
        dynamic: whether the rule decides itself how many.
        rule: its name, for messages.
        infill: whether masks stand anywhere.

    Raises:
        ValueError: what does not add up, with the numbers.
    """
    if block_length is not None and infill and steps is not None:
        raise ValueError(
            f"infill=True has masks anywhere, so that steps={steps} cannot be shared out over blocks of "
            f"{block_length}; give budget, tokens a step, instead"
        )
    if block_length is not None and (block_length < 1 or (length % block_length and not infill)):
        raise ValueError(
            f"gen_length={length} is not a multiple of block_length={block_length}; a block would hang over"
        )
    size = block_length or max(length, 1)
    ends = max(length, 1)
    blocks = tuple((begin, min(begin + size, ends)) for begin in range(0, ends, size))
    if budget is not None and budget < 1:
        raise ValueError(f"budget={budget} tokens a step; at least 1 is needed")
    if dynamic and steps is not None:
        raise ValueError(
            f"steps={steps} was given, but the rule {rule!r} decides by itself how many tokens a step "
            "unmasks; leave it out, or take a rule with a fixed budget such as 'ccd'"
        )
    if steps is not None and budget is not None:
        raise ValueError(f"steps={steps} and budget={budget} say the same thing; give one of them")
    if steps is None:
        return Schedule(blocks, None, 1 if budget is None else budget)
    if steps < len(blocks):
        raise ValueError(f"steps={steps} for {len(blocks)} blocks; every block needs at least one")
    if steps > max(wanted, 1):
        raise ValueError(
            f"steps={steps} for {wanted} tokens; a step unmasks at least one token, so that at most {wanted} "
            "steps are possible"
        )
    shares = [steps // len(blocks) + (i < steps % len(blocks)) for i in range(len(blocks))]
    return Schedule(blocks, tuple(shares), 1)


def token_ids(name: str, value: int | Sequence[int] | None) -> tuple[int, ...]:
    """Ids given as one number or several.

    Raises:
        ValueError: a negative one.
    """
    found = () if value is None else (value,) if isinstance(value, int) else tuple(int(v) for v in value)
    if any(v < 0 for v in found):
        raise ValueError(f"{name}={value} holds a negative token id")
    return found


def from_model(model: Any, *names: str) -> Any:
    """A setting that the model or its configuration carries, or None."""
    for holder in (model, getattr(model, "config", None)):
        for name in names:
            if (found := getattr(holder, name, None)) is not None:
                return found
    return None
