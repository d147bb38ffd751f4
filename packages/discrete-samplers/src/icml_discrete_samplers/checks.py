"""Checks at the boundary: states, energies and counts, each refused once with what was given and what to
do.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float64, Int64
from torch import Tensor


@runtime_checkable
class Energy(Protocol):
    """What is sampled: ``D`` sites of ``V`` symbols each, and log rho(x), unnormalised, of a batch of
    states.
    """

    D: int
    V: int

    def log_density(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """log rho(x) = -E(x); -inf where a state is impossible."""
        ...


def require_sizes(D: int, V: int) -> None:
    """At least one site and two symbols.

    Raises:
        ValueError: fewer.
    """
    if D < 1:
        raise ValueError(f"D={D}: a state needs one site or more")
    if V < 2:
        raise ValueError(f"V={V}: a site needs two symbols or more")


def require_states(x: Any, D: int, V: int, name: str = "x") -> Int64[Tensor, "n D"]:
    """``x`` as int64 states of this shape and alphabet.

    Raises:
        TypeError: no tensor of integers.
        ValueError: another shape, or a symbol outside 0..V-1, with its place.
    """
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} is a {type(x).__name__}; expected a tensor of integers [n, {D}]")
    if x.is_floating_point() or x.is_complex() or x.dtype == torch.bool:
        raise TypeError(f"{name} has dtype {x.dtype}; expected integers, the symbols 0..{V - 1}")
    if x.ndim != 2 or x.shape[1] != D:
        raise ValueError(f"{name} has shape {list(x.shape)}; expected [n, {D}]")
    x = x.long()
    wrong = (x < 0) | (x >= V)
    if bool(wrong.any()):
        row, site = (int(i) for i in wrong.nonzero()[0])
        raise ValueError(
            f"symbol {int(x[row, site])} at site {site} outside 0..{V - 1} (in row {row} of {name})"
        )
    return x


def evaluate(energy: Energy, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
    """log rho of states, checked, in double precision and without a gradient.

    Raises:
        TypeError: the energy gives no tensor of shape [n] on the states' device.
        FloatingPointError: a value is NaN or +inf; names the sample. -inf is legal.
    """
    with torch.no_grad():
        values = energy.log_density(x)
    if not isinstance(values, Tensor):
        raise TypeError(
            f"log_density gave a {type(values).__name__}; expected a tensor [{len(x)}] (an energy in "
            "NumPy is "
            "wrapped by from_callable(..., numpy=True))"
        )
    if values.shape != x.shape[:1]:
        raise TypeError(
            f"log_density gave shape {list(values.shape)} for states {list(x.shape)}; expected "
            f"[{len(x)}], one "
            "number a state"
        )
    if values.device != x.device:
        raise TypeError(f"log_density gave values on {values.device} for states on {x.device}; move one")
    values = values.detach().double()
    wrong = torch.isnan(values) | (values == torch.inf)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise FloatingPointError(
            f"log_density is {float(values[row])} for sample {row}, x = {x[row].tolist()}; it must be "
            "a number or "
            "-inf"
        )
    return values


def generator_of(seed: int | None, device: str | torch.device) -> torch.Generator:
    """A generator on the device; without a seed from the system's entropy."""
    generator = torch.Generator(device=device)
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(int(seed))
    return generator


def draw_seed(generator: torch.Generator) -> int:
    """A seed for an op, from the generator."""
    return int(torch.randint(0, 2**62, (), generator=generator, device=generator.device))
