"""O_k(x) = ∂ log ψ(x) / ∂W_k for every sample: the rows from which gradients and S are built."""

from __future__ import annotations

import torch
from jaxtyping import Int8, Num
from torch import Tensor, nn

from icml_mpvmc.hamiltonian import as_spins
from icml_mpvmc.models import AmplitudePhase

CHUNK = 1024


def log_derivatives(
    model: nn.Module, x: Int8[Tensor, "rows spins"], *, chunk: int = CHUNK
) -> Num[Tensor, "rows parameters"]:
    """The derivatives of log ψ by all parameters that are trained, in the order of ``model.parameters()``.

    A model with a method ``log_derivatives`` is asked for them; others are differentiated row by row in one
    vectorised pass. Real for a real log ψ; for an amplitude with a phase [∂A, i ∂Φ].

    Args:
        model: gives log ψ, real, or is an ``AmplitudePhase``.
        x: spins ±1.
        chunk: rows of a pass.

    Raises:
        ValueError: spins other than ±1, or a complex log ψ of another model.
    """
    x = as_spins(x)
    if isinstance(model, AmplitudePhase):
        first = log_derivatives(model.amplitude, x, chunk=chunk)
        second = log_derivatives(model.phase, x, chunk=chunk)
        zero = torch.zeros_like
        return torch.complex(torch.cat([first, zero(second)], 1), torch.cat([zero(first), second], 1))
    own = getattr(model, "log_derivatives", None)
    if own is not None and all(p.requires_grad for p in model.parameters()):
        return torch.cat([own(part) for part in x.split(chunk)]) if len(x) else own(x)
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    kind = next(model.parameters()).dtype
    fixed = dict(model.named_buffers())
    fixed.update({name: p.detach() for name, p in model.named_parameters() if not p.requires_grad})
    refuse_complex(model, x[:1])
    detached = {name: p.detach() for name, p in parameters.items()}

    def value(given: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, {**given, **fixed}, (row[None],))[0]

    by_row = torch.func.vmap(torch.func.grad(value), (None, 0))
    found = []
    for part in x.split(chunk):
        gradients = by_row(detached, part.to(kind))
        found.append(torch.cat([gradients[name].flatten(1) for name in parameters], 1))
    width = sum(p.numel() for p in parameters.values())
    return torch.cat(found) if found else torch.empty(0, width, dtype=kind, device=x.device)


def trained_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are not frozen."""
    return [p for p in model.parameters() if p.requires_grad]


def refuse_complex(model: nn.Module, x: Int8[Tensor, "rows spins"]) -> None:
    """Say what to use instead of a module whose log ψ is complex.

    Raises:
        ValueError: it is, and the module is no ``AmplitudePhase``.
    """
    if isinstance(model, AmplitudePhase) or not len(x):
        return
    kind = next((p.dtype for p in model.parameters()), torch.float64)
    with torch.no_grad():
        value = model(x.to(kind))
    if kind.is_complex or value.is_complex():
        raise ValueError(
            "log ψ of this model is complex; build AmplitudePhase(amplitude, phase) from two real networks "
            "to train it"
        )
