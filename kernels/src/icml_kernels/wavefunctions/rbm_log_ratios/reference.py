"""Ratios of amplitudes of a restricted Boltzmann machine in plain torch: the definition."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from icml_kernels.wavefunctions.rbm_metropolis.reference import log_psi


def ratios(
    weight: Tensor, hidden_bias: Tensor, visible_bias: Tensor, x: Tensor, ptr: Tensor, sites: Tensor
) -> Tensor:
    """Both amplitudes from the start, in float64."""
    parameters = weight, hidden_bias, visible_bias
    here = log_psi(*parameters, x)
    bounds, found = ptr.tolist(), []
    for begin, end in pairwise(bounds):
        flipped = x.clone()
        flipped[:, sites[begin:end]] *= -1
        found.append(log_psi(*parameters, flipped) - here)
    out = torch.stack(found, 1) if found else here.new_empty(len(x), 0)
    return out.to(weight.dtype)
