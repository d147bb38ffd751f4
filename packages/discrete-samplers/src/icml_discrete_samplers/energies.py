"""Energies that users have: any vectorised callable, a torch module, lattices, grids, QUBO, polynomials,
torchgfn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers.checks import Energy as Energy
from icml_discrete_samplers.checks import require_sizes
from icml_discrete_samplers.gray_code import GrayCoded as GrayCoded
from icml_discrete_samplers.lattice_energies import Ising2D as Ising2D
from icml_discrete_samplers.lattice_energies import Potts2D as Potts2D
from icml_discrete_samplers.polynomials import QUBO as QUBO
from icml_discrete_samplers.polynomials import Polynomial as Polynomial


class CallableEnergy:
    """A function of states as an energy; see :func:`from_callable`."""

    def __init__(self, function: Callable[[Any], Any], D: int, V: int, *, numpy: bool = False) -> None:
        require_sizes(D, V)
        self.function, self.D, self.V, self.numpy = function, int(D), int(V), numpy

    def log_density(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """What the function says."""
        if not self.numpy:
            return self.function(x)
        values = self.function(x.cpu().numpy())
        return torch.as_tensor(values, dtype=torch.float64).to(x.device)


def from_callable(function: Callable[[Any], Any], D: int, V: int, *, numpy: bool = False) -> CallableEnergy:
    """log rho from a function (or torch module) of int64 states [n, D] that gives [n] numbers.

    Args:
        function: log rho, not the energy: larger is likelier; -inf rules a state out.
        D: sites.
        V: symbols a site.
        numpy: the function takes and gives NumPy arrays.

    Raises:
        ValueError: D < 1 or V < 2.

    Example:
        ``from_callable(lambda x: -x.sum(1).double(), D=10, V=3)``
    """
    return CallableEnergy(function, D, V, numpy=numpy)


def from_torchgfn_env(env: Any) -> CallableEnergy:
    """The log reward of a torchgfn environment whose finished states are rows of symbols.

    Known: ``HyperGrid`` (ndim coordinates of ``height`` values) and ``DiscreteEBM`` (ndim bits).

    Raises:
        TypeError: another environment.
    """
    ndim, height = getattr(env, "ndim", None), getattr(env, "height", None)
    if ndim is None or not hasattr(env, "states_from_tensor"):
        raise TypeError(
            f"{type(env).__name__} is no torchgfn environment of a fixed number of symbols; wrap its "
            "log reward by "
            "from_callable"
        )
    symbols = int(height) if height is not None else 2

    def log_reward(x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        states = env.states_from_tensor(x.to(env.s0.device, env.s0.dtype))
        return env.log_reward(states).double().to(x.device)

    return CallableEnergy(log_reward, int(ndim), symbols)
