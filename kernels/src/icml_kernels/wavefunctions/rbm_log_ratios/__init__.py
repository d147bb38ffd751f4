"""log ψ(x') - log ψ(x) of a restricted Boltzmann machine for many flips of each x: local energies.

An operator such as the transverse field connects x with the N states that differ by one spin. Each ratio
costs O(hidden) by the same products as in ``rbm_metropolis``, so that all N together cost what one sweep
costs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int, Int8
from torch import Tensor

from icml_kernels.dispatch import raw_op
from icml_kernels.wavefunctions.checks import require_restricted_boltzmann_machine, require_spins
from icml_kernels.wavefunctions.rbm_log_ratios import reference
from icml_kernels.wavefunctions.rbm_metropolis import REACH, largest_hidden_angle

_HERE = "icml_kernels.wavefunctions"


def rbm_log_ratios(
    weight: Float[Tensor, "spins hidden"],
    hidden_bias: Float[Tensor, " hidden"],
    visible_bias: Float[Tensor, " spins"],
    x: Int8[Tensor, "rows spins"],
    ptr: Int[Tensor, " masks_1"],
    sites: Int[Tensor, " entries"],
) -> Float[Tensor, "rows masks"]:
    """log ψ(x with the spins of a mask flipped) - log ψ(x), for every row and mask.

    Not differentiable. Arithmetic is that of the weights.

    Args:
        weight: W of log ψ = Σ log cosh(b + x W) + a·x; float32 or float64.
        hidden_bias: b.
        visible_bias: a.
        x: spins ±1.
        ptr: bounds of the masks in ``sites``, rising from 0.
        sites: the spins that each mask flips, each at most once.

    Raises:
        TypeError: other dtypes.
        ValueError: shapes or devices that do not fit together, sites outside the spins, or angles so large
            that their exponential overflows (40 in float32, 340 in float64).
    """
    require_restricted_boltzmann_machine(weight, hidden_bias, visible_bias)
    require_spins(x, weight.shape[0], weight.device)
    ptr, sites = ptr.to(weight.device, torch.int64), sites.to(weight.device, torch.int64)
    if len(ptr) == 0 or int(ptr[0]) != 0 or int(ptr[-1]) != len(sites) or bool((torch.diff(ptr) < 0).any()):
        raise ValueError(f"the bounds of the masks must rise from 0 to the {len(sites)} sites")
    if len(sites) and not 0 <= int(sites.min()) <= int(sites.max()) < weight.shape[0]:
        raise ValueError(f"a mask names a spin outside 0, …, {weight.shape[0] - 1}")
    reach, allowed = largest_hidden_angle(weight, hidden_bias), REACH[weight.dtype]
    if not reach < allowed:
        raise ValueError(
            f"an angle of the hidden units can reach {reach:.3g}; in {weight.dtype} it must stay below "
            f"{allowed:g}"
        )
    return _ratios(weight.detach(), hidden_bias.detach(), visible_bias.detach(), x.contiguous(), ptr, sites)


def _fake(
    weight: Tensor, hidden_bias: Tensor, visible_bias: Tensor, x: Tensor, ptr: Tensor, sites: Tensor
) -> Tensor:
    return weight.new_empty(x.shape[0], ptr.shape[0] - 1)


_ratios = raw_op(
    "rbm_log_ratios",
    reference.ratios,
    fake=_fake,
    cpu=f"{_HERE}.chains_cpu:rbm_ratios",
    cuda=f"{_HERE}.rbm_log_ratios.triton:ratios",
)
