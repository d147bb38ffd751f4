"""Local energies E(x) = Σ_x' ⟨x|H|x'⟩ ψ(x') / ψ(x), with a bound on what is in memory at once."""

from __future__ import annotations

from typing import Any

import torch
from icml_kernels import largest_hidden_angle, rbm_log_ratios
from jaxtyping import Int8, Num
from torch import Tensor, nn

from icml_mpvmc.hamiltonian import Hamiltonian, as_spins
from icml_mpvmc.metropolis import LARGEST_ANGLE
from icml_mpvmc.models import RBM, AmplitudePhase
from icml_mpvmc.pauli import PauliSum
from icml_mpvmc.precision import DTYPES, arithmetic, precision_name

CHUNK = 8192
"""Rows of one forward pass."""
MAX_BYTES = 2**27
"""Bytes of matrix elements and ratios that are held at once."""


@torch.no_grad()
def local_energies(
    model: nn.Module,
    H: Hamiltonian,
    x: Int8[Tensor, "rows spins"],
    *,
    chunk: int = CHUNK,
    max_bytes: int = MAX_BYTES,
    compiled: bool = True,
) -> Num[Tensor, " rows"]:
    """Local energies in the precision of the model, summed in float64; complex where ψ or H is.

    The compiled loop is float64 whatever the precision of the parameters.

    Restricted Boltzmann machines and Pauli sums go through a compiled loop of O(hidden) for each connected
    state. For other models no forward pass has more rows than ``chunk``, connected states included; states
    whose element is zero are never evaluated.

    Args:
        model: gives log ψ.
        H: the Hamiltonian.
        x: spins ±1.
        chunk: rows of a forward pass.
        max_bytes: of intermediate results.
        compiled: use the compiled loop where there is one.

    Raises:
        ValueError: a chunk below 1, spins of another number than the Hamiltonian's, or other than ±1.
    """
    if chunk < 1:
        raise ValueError(f"chunk={chunk}; a forward pass needs a row at least")
    x = as_spins(x, H.n_spins)
    if compiled and isinstance(H, PauliSum) and (parts := _machines(model)) is not None:
        return _compiled(parts, H, x, max_bytes)
    parts_of_rows = []
    # A row of elements, its flipped states and their amplitudes: 16 + spins + 16 bytes for each connection.
    slots = max(1, min(H.n_connected, max_bytes // (32 + H.n_spins)))
    widest = max(slots * (32 + H.n_spins), 16 * terms_of(H))
    rows = max(1, min(len(x), max_bytes // widest)) if len(x) else 1
    rows = min(rows, chunk)
    for part in x.split(rows):
        here = _log_psi(model, part, chunk)
        diagonal = H.diagonal(part)
        kind = (
            torch.complex128 if here.is_complex() or diagonal.is_complex() or not H.is_real else torch.float64
        )
        total = diagonal.to(kind)
        for begin in range(0, H.n_connected, slots):
            found = H.connected(part, begin, min(begin + slots, H.n_connected))
            if len(found.row):
                there = _log_psi(model, found.x, chunk)
                terms = found.element.to(kind) * torch.exp(there - here[found.row]).to(kind)
                total = total.index_add(0, found.row, terms)
        parts_of_rows.append(total)
    return torch.cat(parts_of_rows) if parts_of_rows else torch.empty(0, dtype=torch.float64, device=x.device)


def terms_of(H: Hamiltonian) -> int:
    """Strings whose signs a row of elements needs at once."""
    return H.n_terms if isinstance(H, PauliSum) else 0


def _log_psi(model: nn.Module, x: Tensor, chunk: int) -> Tensor:
    """log ψ in float64 or complex128, in passes of at most ``chunk`` rows."""
    kind = next((p.dtype for p in model.parameters()), torch.float64)
    name = precision_name(kind) if kind in DTYPES.values() else "f64"
    with arithmetic(name, x.device):
        found = [model(part.to(kind)) for part in x.split(chunk)]
    value = torch.cat(found)
    return value.to(torch.complex128 if value.is_complex() else torch.float64)


def _machines(model: nn.Module) -> list[tuple[RBM, complex]] | None:
    """The Boltzmann machines whose sum is log ψ, where it is nothing else and angles are small."""
    parts: list[tuple[Any, complex]] = (
        [(model.amplitude, 1.0), (model.phase, 1j)] if isinstance(model, AmplitudePhase) else [(model, 1.0)]
    )
    for machine, _ in parts:
        if type(machine) is not RBM or machine.weight.dtype not in (torch.float32, torch.float64):
            return None
        if largest_hidden_angle(machine.weight.double(), machine.hidden_bias.double()) >= LARGEST_ANGLE:
            return None
    return parts


def _compiled(parts: list[tuple[RBM, complex]], H: PauliSum, x: Tensor, max_bytes: int) -> Tensor:
    kind = torch.complex128 if len(parts) > 1 or not H.is_real else torch.float64
    ptr, sites = H.flip_ptr.to(x.device), H.flip_sites.to(x.device)
    parameters = [tuple(t.detach().double() for t in (m.weight, m.hidden_bias, m.visible)) for m, _ in parts]
    masks = max(1, min(H.n_connected, max_bytes // 64))
    rows = max(1, max_bytes // max(64 * masks, 16 * terms_of(H)))
    found = []
    for part in x.split(rows):
        total = H.diagonal(part).to(kind)
        for begin in range(0, H.n_connected, masks):
            end = min(begin + masks, H.n_connected)
            bounds = ptr[begin : end + 1]
            chosen = bounds - bounds[0], sites[int(bounds[0]) : int(bounds[-1])]
            ratios = [rbm_log_ratios(*p, part, *chosen) for p in parameters]
            gain = ratios[0] if len(parts) == 1 else torch.complex(ratios[0], ratios[1])
            total = total + (H.elements(part, begin, end).to(kind) * torch.exp(gain).to(kind)).sum(1)
        found.append(total)
    return torch.cat(found) if found else torch.empty(0, dtype=kind, device=x.device)
