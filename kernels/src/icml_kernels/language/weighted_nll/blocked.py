"""The weighted loss block of rows by block of rows, value and gradient from one product with the head.

A row's weight depends on the row's own statistics alone, so that a block's gradient is known as soon as its
logits are: three products of matrices a block, where a backward pass that computes the logits anew has four.
"""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from icml_kernels.language.row_blocks import Head, supervised_rows
from icml_kernels.language.weighted_nll.reference import total
from icml_kernels.language.weighted_nll.weights import Rule, token_weights


def forward(
    loops: ModuleType,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    token_weight: Tensor,
    kind: str,
    rule: Tensor,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    ignore_index: int,
    by_hidden: bool,
    by_head: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``."""
    head = Head(hidden, weight, bias, temperature, logit_scale, softcap)
    head.want(by_hidden, by_head)
    constants = Rule(*rule.tolist())
    logp, entropy, w = (hidden.new_zeros(len(targets), dtype=head.dtype) for _ in range(3))
    for block in head.blocks(supervised_rows(targets, head.vocabulary, ignore_index)):
        rows = block.rows
        logp[rows], entropy[rows], varentropy, lse = loops.statistics(block.x, targets[rows])
        w[rows] = token_weights(logp[rows], entropy[rows], varentropy, head.vocabulary, kind, constants)
        if by_hidden or by_head:
            c = w[rows] * token_weight[rows]
            none = torch.zeros_like(c)
            of_rows = targets[rows], lse, entropy[rows], (c, none, none), -c
            loops.gradient_(block.x, *of_rows, head.gain, head.reach)
            head.pull_back(block)
    return total(w * token_weight, logp), logp, entropy, w, *head.gradients()
