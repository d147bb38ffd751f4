"""Exact answers for small systems and for chains of free fermions: what everything else is tested with."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Float64, Int8
from scipy.sparse.linalg import eigsh
from torch import Tensor, nn

from icml_mpvmc.hamiltonian import Hamiltonian, Sector, enumerate_spins
from icml_mpvmc.models import amplitude_of

DENSE = 64
"""States up to which the matrix is diagonalised densely."""


def ground_energy(H: Hamiltonian) -> float:
    """The lowest eigenvalue within the sectors, by Lanczos on the sparse matrix (up to 20 spins).

    Raises:
        ValueError: more spins.
    """
    return ground_state_vector(H)[0]


def ground_state_vector(
    H: Hamiltonian,
) -> tuple[float, Float[np.ndarray, " states"], Int8[Tensor, "states spins"]]:
    """Energy, amplitudes and the states that they belong to."""
    states = enumerate_spins(H.n_spins, H.sectors)
    matrix = H.to_sparse(states)
    if len(states) <= DENSE:
        values, vectors = np.linalg.eigh(matrix.toarray())
        return float(values[0]), vectors[:, 0], states
    start = np.random.default_rng(0).normal(size=len(states))
    values, vectors = eigsh(matrix, k=1, which="SA", v0=start)
    return float(values[0]), vectors[:, 0], states


def tfim_chain_energy(n_spins: int, J: float = 1.0, h: float = 1.0) -> float:
    """Ground energy of the periodic TFIM chain: -Σ_k √(J² + h² - 2 J h cos k), k = (2j + 1) π / N.

    By free fermions (Pfeuty, Annals of Physics 57 (1970) 79) in the sector of even parity, for even N.

    Raises:
        ValueError: an odd or too small N.

    Example:
        >>> round(tfim_chain_energy(16, 1.0, 0.5), 6)
        -17.016712
    """
    if n_spins < 4 or n_spins % 2:
        raise ValueError(f"n_spins={n_spins}; the closed form is for even chains of 4 spins or more")
    k = (2 * np.arange(n_spins) + 1) * math.pi / n_spins
    return -float(np.sqrt(J * J + h * h - 2 * J * h * np.cos(k)).sum())


def distribution(
    model: nn.Module, n_spins: int, sectors: tuple[Sector, ...] = ()
) -> tuple[Int8[Tensor, "states spins"], Float64[Tensor, " states"]]:
    """All states and their probabilities |ψ|² / Σ|ψ|², normalised in float64."""
    states = enumerate_spins(n_spins, sectors)
    with torch.no_grad():
        log_p = 2.0 * amplitude_of(model)(states).real.double()
    return states, torch.softmax(log_p, 0)


def energy(model: nn.Module, H: Hamiltonian) -> tuple[float, float]:
    """⟨ψ|H|ψ⟩ / ⟨ψ|ψ⟩ and the variance ⟨H²⟩ - ⟨H⟩², over all states."""
    states = enumerate_spins(H.n_spins, H.sectors)
    with torch.no_grad():
        log_psi = model(states)
    log_psi = log_psi.to(torch.complex128) if log_psi.is_complex() else log_psi.double()
    psi = torch.exp(log_psi - log_psi.real.max()).numpy()
    psi = psi / np.linalg.norm(psi)
    image = H.to_sparse(states) @ psi
    mean = float((psi.conj() @ image).real)
    return mean, max(0.0, float(np.linalg.norm(image) ** 2) - mean**2)
