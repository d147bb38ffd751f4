"""What every Hamiltonian offers: its diagonal, the states that it connects a state with, and its sectors.

The convention is that of rows: ⟨x|H|x'⟩ multiplies ψ(x') in the local energy of x.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int, Int8, Num
from scipy import sparse
from torch import Tensor

MAX_ENUMERATED = 20
"""Spins up to which all states are listed."""
FEW_ROWS, MANY_ROWS = 8, 64
"""Random states on which a conserved sum is checked: fewer where states are large."""
AT_ONCE = 2**26
"""Spins of connected states that a check holds at once."""
NEGLIGIBLE = 1e-9
"""Elements below this share of the largest do not count against a conserved sum."""


@dataclass(frozen=True)
class Sector:
    """Spins whose sum is conserved.

    Attributes:
        sites: the spins.
        total: the sum of their values ±1: twice the magnetisation.
    """

    sites: tuple[int, ...]
    total: int

    def __post_init__(self) -> None:
        count = len(self.sites)
        if abs(self.total) > count or (count - self.total) % 2:
            raise ValueError(
                f"{count} spins ±1 cannot have the sum {self.total}; an odd number of spins has no total_sz=0"
            )


@dataclass(frozen=True)
class Connected:
    """Off-diagonal elements that are not zero.

    Attributes:
        x: the states x', int8 [found, spins].
        element: ⟨x|H|x'⟩, [found].
        row: which row of the given x each belongs to, rising, [found].
    """

    x: Int8[Tensor, "found spins"]
    element: Num[Tensor, " found"]
    row: Int[Tensor, " found"]


class Hamiltonian:
    """A Hermitian operator on spins ±1.

    Attributes:
        n_spins: how many spins.
        sectors: groups of spins whose sum it conserves, within which is sampled.
        exchange_pairs: pairs [P, 2] for exchange moves; all pairs within a sector by default.
        n_connected: largest number of states that it connects a state with.
        is_real: whether all its elements are.
        is_hermitian: whether it is its own adjoint.
    """

    n_connected: int
    is_real: bool = True
    is_hermitian: bool = True

    def __init__(
        self, n_spins: int, sectors: Sequence[Sector] = (), exchange_pairs: np.ndarray | None = None
    ) -> None:
        self.n_spins = n_spins
        self.sectors = tuple(sectors)
        named = [i for sector in self.sectors for i in sector.sites]
        if len(set(named)) != len(named) or any(not 0 <= i < n_spins for i in named):
            raise ValueError(f"the sectors must name different spins below {n_spins}; got {named}")
        self.exchange_pairs = exchange_pairs if exchange_pairs is not None else pairs_within(self.sectors)

    def diagonal(self, x: Int8[Tensor, "rows spins"]) -> Num[Tensor, " rows"]:
        """⟨x|H|x⟩."""
        raise TypeError(f"{type(self).__name__} does not say what its diagonal is")

    def connected(self, x: Int8[Tensor, "rows spins"], begin: int, end: int) -> Connected:
        """The states that the connections number ``begin`` up to ``end`` of each row lead to."""
        raise TypeError(f"{type(self).__name__} does not say what it connects")

    def fingerprint(self) -> str:
        """What tells this operator from others: a digest of its elements on fixed states of its sectors."""
        generator = torch.Generator().manual_seed(20260)
        x = random_states(FEW_ROWS, self.n_spins, self.sectors, generator)
        found = self.connected(x, 0, self.n_connected)
        parts = [self.diagonal(x), found.element, found.x, found.row]
        return digest(self.n_spins, [t.cpu().numpy() for t in parts])

    def to_sparse(self, x: Int8[Tensor, "states spins"] | None = None) -> sparse.csr_array:
        """The matrix over the states of the sectors, or over the given ones; rows are x, columns x'.

        Raises:
            ValueError: more than 20 spins without a list of states, or elements that lead out of it.
        """
        states = enumerate_spins(self.n_spins, self.sectors) if x is None else x
        numbers = state_numbers(states)
        order = np.argsort(numbers)
        rows, columns, data = (
            [np.arange(len(states))],
            [np.arange(len(states))],
            [self.diagonal(states).numpy()],
        )
        step = max(1, 2**24 // max(1, len(states)))
        for begin in range(0, self.n_connected, step):
            found = self.connected(states, begin, min(begin + step, self.n_connected))
            other = state_numbers(found.x)
            place = np.minimum(np.searchsorted(numbers, other, sorter=order), len(numbers) - 1)
            column = order[place]
            inside = numbers[column] == other
            if not inside.all():
                raise ValueError(
                    "the operator leads out of the given states: a sector that it does not conserve?"
                )
            rows.append(found.row.numpy())
            columns.append(column)
            data.append(found.element.numpy())
        entries = np.concatenate(data)
        shape = (len(states), len(states))
        return sparse.csr_array((entries, (np.concatenate(rows), np.concatenate(columns))), shape=shape)


def digest(n_spins: int, arrays: Sequence[np.ndarray]) -> str:
    """SHA-256 of arrays, those of floating numbers rounded to nine decimals."""
    total = hashlib.sha256(str(n_spins).encode())
    for array in arrays:
        exact = np.round(array, 9) + 0.0 if array.dtype.kind in "fc" else array
        total.update(np.ascontiguousarray(exact).tobytes())
    return total.hexdigest()


def conserves(H: Hamiltonian, sectors: Sequence[Sector], *, seed: int = 0) -> bool:
    """Whether H leads up to 64 random states of the sectors to such states only."""
    if not sectors:
        return True
    rows = max(FEW_ROWS, min(MANY_ROWS, AT_ONCE // max(1, H.n_connected * H.n_spins)))
    x = random_states(rows, H.n_spins, sectors, torch.Generator().manual_seed(seed))
    slots = max(1, AT_ONCE // (rows * H.n_spins))
    for begin in range(0, H.n_connected, slots):
        found = H.connected(x, begin, min(begin + slots, H.n_connected))
        size = found.element.abs()
        if not bool(
            in_sectors(found.x[size > NEGLIGIBLE * size.amax()], sectors).all() if len(size) else True
        ):
            return False
    return True


def random_states(
    rows: int, n_spins: int, sectors: Sequence[Sector], generator: torch.Generator
) -> Int8[Tensor, "rows spins"]:
    """Independent states, uniform within the sectors."""
    x = (2 * torch.randint(0, 2, (rows, n_spins), generator=generator) - 1).to(torch.int8)
    for sector in sectors:
        count = len(sector.sites)
        up = (count + sector.total) // 2
        order = torch.rand(rows, count, generator=generator).argsort(1)
        x[:, list(sector.sites)] = torch.where(order < up, 1, -1).to(torch.int8)
    return x


def pairs_within(sectors: Sequence[Sector]) -> np.ndarray:
    """All pairs of spins of one sector, [P, 2]."""
    found = [
        np.stack([np.asarray(s.sites)[index] for index in np.triu_indices(len(s.sites), 1)], axis=1)
        for s in sectors
    ]
    return np.concatenate(found).astype(np.int64) if found else np.zeros((0, 2), dtype=np.int64)


def enumerate_spins(n_spins: int, sectors: Sequence[Sector] = ()) -> Int8[Tensor, "states spins"]:
    """All states, those of the sectors only: bits count from the first spin, and 0 is +1 (as in Kronecker
    products).

    Raises:
        ValueError: more than 20 spins.
    """
    if n_spins > MAX_ENUMERATED:
        raise ValueError(f"{n_spins} spins have 2**{n_spins} states; up to {MAX_ENUMERATED} are enumerated")
    numbers = torch.arange(2**n_spins)
    shifts = torch.arange(n_spins - 1, -1, -1)
    x = (1 - 2 * (numbers[:, None] >> shifts & 1)).to(torch.int8)
    return x[in_sectors(x, sectors)]


def in_sectors(x: Int8[Tensor, "rows spins"], sectors: Sequence[Sector]) -> Tensor:
    """Which rows have the sums of all sectors."""
    inside = torch.ones(len(x), dtype=torch.bool, device=x.device)
    for sector in sectors:
        inside &= x[:, list(sector.sites)].long().sum(1) == sector.total
    return inside


def state_numbers(x: Int8[Tensor, "rows spins"]) -> np.ndarray:
    """The inverse of ``enumerate_spins``, int64.

    Raises:
        ValueError: more than 62 spins.
    """
    n = x.shape[1]
    if n > 62:
        raise ValueError(f"{n} spins do not fit into an integer of 64 bits")
    bits = (x.cpu().numpy() < 0).astype(np.int64)
    return bits @ (np.int64(1) << np.arange(n - 1, -1, -1, dtype=np.int64))


def as_spins(
    x: object, n_spins: int | None = None, *, encoding: str = "pm1", device: torch.device | str | None = None
) -> Int8[Tensor, "rows spins"]:
    """Spins ±1 as int8, from numbers of any dtype.

    Args:
        x: [rows, spins].
        n_spins: how many there must be.
        encoding: ``"pm1"`` for ±1, ``"01"`` for bits where 0 is +1.

    Raises:
        ValueError: another shape, encoding, or values that are not of the encoding.
    """
    tensor = torch.as_tensor(x) if not isinstance(x, Tensor) else x
    if device is not None:
        tensor = tensor.to(device)
    if tensor.dim() != 2 or (n_spins is not None and tensor.shape[1] != n_spins):
        raise ValueError(f"spins have shape {list(tensor.shape)}; expected [rows, {n_spins or 'spins'}]")
    if encoding == "01":
        if tensor.numel() and not bool(((tensor == 0) | (tensor == 1)).all()):
            raise ValueError("encoding='01' takes the values 0 (up) and 1 (down); others were given")
        return (1 - 2 * tensor.long()).to(torch.int8)
    if encoding != "pm1":
        raise ValueError(f"encoding={encoding!r}; expected 'pm1' or '01'")
    if tensor.numel() and not bool((tensor.abs() == 1).all()):
        raise ValueError("spins must be +1 or -1; for bits 0 and 1 say encoding='01'")
    return tensor.to(torch.int8)
