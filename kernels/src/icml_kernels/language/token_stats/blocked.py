"""Token statistics block of rows by block of rows: the same for every processor, given its softmax loops."""

from __future__ import annotations

from types import ModuleType

from torch import Tensor

from icml_kernels.language.row_blocks import Head, supervised_rows


def forward(
    loops: ModuleType,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    ignore_index: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See ``reference.forward``."""
    head = Head(hidden, weight, bias, temperature, logit_scale, softcap)
    results = [hidden.new_zeros(len(targets), dtype=head.dtype) for _ in range(4)]
    for block in head.blocks(supervised_rows(targets, head.vocabulary, ignore_index)):
        for result, part in zip(results, loops.statistics(block.x, targets[block.rows]), strict=True):
            result[block.rows] = part
    logp, entropy, varentropy, lse = results
    return logp, entropy, varentropy, lse


def backward(
    loops: ModuleType,
    g_logp: Tensor,
    g_entropy: Tensor,
    g_varentropy: Tensor,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Tensor,
    entropy: Tensor,
    varentropy: Tensor,
    lse: Tensor,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
    ignore_index: int,
    by_hidden: bool,
    by_head: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.backward``."""
    head = Head(hidden, weight, bias, temperature, logit_scale, softcap)
    head.want(by_hidden, by_head)
    constant = -g_logp - g_varentropy * varentropy
    linear = 2 * g_varentropy - g_entropy
    for block in head.blocks(supervised_rows(targets, head.vocabulary, ignore_index)):
        rows = block.rows
        polynomial = constant[rows], linear[rows], g_varentropy[rows]
        of_rows = targets[rows], lse[rows], entropy[rows], polynomial, g_logp[rows]
        loops.gradient_(block.x, *of_rows, head.gain, head.reach)
        head.pull_back(block)
    return head.gradients()
