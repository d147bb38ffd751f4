"""The divergence by blocks of rows: listed tokens are gathered, the others pass the softmax's loops."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from icml_kernels.language.head import slope
from icml_kernels.language.row_blocks import Head
from icml_kernels.language.topk_kl.reference import bounded, coefficients, divergence


def forward(
    loops: ModuleType,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    idx: Tensor,
    logp: Tensor,
    tail: Tensor,
    counted: Tensor,
    mode: str,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.forward``."""
    head = Head(hidden, weight, bias, temperature, logit_scale, softcap)
    _require_tokens(idx, head.vocabulary)
    loss, lse, lse_rest = (hidden.new_zeros(len(idx), dtype=head.dtype) for _ in range(3))
    for rows, _, x in head.blocks(torch.nonzero(counted)[:, 0]):
        listed = x.gather(1, idx[rows])
        x.scatter_(1, idx[rows], -torch.inf)
        rest = loops.statistics(x, torch.zeros_like(rows))[3]
        lse[rows], lse_rest[rows] = torch.logaddexp(rest, torch.logsumexp(listed, dim=1)), rest
        loss[rows] = divergence(listed, logp[rows], tail[rows], lse[rows], rest, mode)
    return loss, lse, lse_rest


def backward(
    loops: ModuleType,
    g: Tensor,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    idx: Tensor,
    logp: Tensor,
    tail: Tensor,
    counted: Tensor,
    lse: Tensor,
    lse_rest: Tensor,
    mode: str,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    by_hidden: bool,
    by_head: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.backward``."""
    head = Head(hidden, weight, bias, temperature, logit_scale, softcap)
    head.want(by_hidden, by_head)
    for block in head.blocks(torch.nonzero(counted)[:, 0]):
        rows, where = block.rows, idx[block.rows]
        listed = block.x.gather(1, where)
        row_sums = lse[rows], lse_rest[rows]
        others, inside = coefficients(g[rows], listed, logp[rows], tail[rows], *row_sums, mode)
        none = torch.zeros_like(others)
        # A listed token stands for the target, whose own term is 0: its place is written afterwards.
        of_rows = where[:, 0], bounded(lse_rest[rows], counted[rows]), none, (others, none, none), none
        loops.gradient_(block.x.scatter_(1, where, -torch.inf), *of_rows, head.gain, head.reach)
        block.x.scatter_(1, where, inside * slope(listed, temperature, logit_scale, softcap))
        head.pull_back(block)
    return head.gradients()


def _require_tokens(idx: Tensor, vocabulary: int) -> None:
    in_order = idx.sort(dim=1).values
    for wrong, what in (
        (
            (in_order[:, :1] < 0) | (in_order[:, -1:] >= vocabulary),
            f"lists tokens outside 0..{vocabulary - 1}",
        ),
        (in_order[:, 1:] == in_order[:, :-1], "lists a token twice"),
    ):
        if bool(wrong.any()):
            row = int(torch.nonzero(wrong)[0, 0])
            raise ValueError(f"idx[{row}] = {idx[row].tolist()} {what}")
