"""The most probable tokens, block of rows by block of rows."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from icml_kernels.language.row_blocks import Head


def forward(
    loops: ModuleType,
    hidden: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    k: int,
    temperature: float,
    logit_scale: float,
    softcap: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """See ``reference.forward``. The tail is summed itself, so that a small one keeps its digits."""
    head = Head(hidden, weight, bias, temperature, logit_scale, softcap)
    n = hidden.shape[0]
    idx = torch.empty(n, k, dtype=torch.int64, device=hidden.device)
    logp = hidden.new_empty(n, k, dtype=head.dtype)
    tail = hidden.new_empty(n, dtype=head.dtype)
    for rows, _, x in head.blocks(torch.arange(n, device=hidden.device)):
        top, where = loops.topk(x, k)
        rest = loops.statistics(x.scatter_(1, where, -torch.inf), torch.zeros_like(rows))[3]
        lse = torch.logaddexp(rest, torch.logsumexp(top, dim=1))
        idx[rows], logp[rows], tail[rows] = where, top - lse[:, None], torch.exp(rest - lse)
    return idx, logp, tail
