"""Sums of Pauli strings, in which strings that flip the same spins are one row of the matrix.

A string is kept as c X^f Z^z, with f the spins that it flips and z those whose signs it takes; Y = i X Z.
Basis states are spins ±1 with σz = x, and ⟨x|X^f Z^z|x'⟩ = Π_{i in z} x'_i where x' is x with f flipped. A
sum with N² strings and N different f, as (Σσz)(Σσx), has N connected states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Int8, Num
from torch import Tensor

from icml_mpvmc.hamiltonian import Connected, Hamiltonian, Sector, conserves, digest

HERMITIAN_TOLERANCE = 1e-10
"""Largest asymmetry, relative to the largest coefficient, that is taken for rounding."""
ROUNDING = 1e-13
"""Off-diagonal elements below this share of the largest coefficient are zero."""


class PauliSum(Hamiltonian):
    """Σ_t c_t P_t with Pauli strings P_t on ``n_spins`` spins.

    Args:
        terms: any of

            - ``[("ZZI", 1.0), ("IXI", -0.5)]``: one letter a spin;
            - ``[("ZZ", (0, 1), 1.0), ("X", (1,), -0.5)]``: letters and the spins that they stand on;
            - ``[("ZZ", edges [E, 2], 1.0)]``: the same for many places at once, the coefficient one number or
              [E];
            - a mapping from such a string, from ``((0, "Z"), (1, "Z"))`` (as OpenFermion's ``terms``) or from
            a
              mapping ``{0: "Z"}`` (as PennyLane's Pauli words) to coefficients.
        n_spins: how many spins; by default as many as the terms name.
        hermitian: refuse a sum that is not.
        sectors: groups of spins whose sum is conserved.
        exchange_pairs: pairs [P, 2] that an exchange rule should propose.

    Raises:
        ValueError: a letter that is none of I, X, Y, Z, a spin named twice in a term or out of range, no
            terms, full strings of different lengths, a sum that is not Hermitian (the message has the largest
            asymmetry), or one that leaves the sectors.

    Example:
        >>> PauliSum([("ZZ", (0, 1), 1.0), ("X", (0,), -1.0), ("X", (1,), -1.0)]).n_connected
        2
    """

    def __init__(
        self,
        terms: Iterable[Sequence[Any]] | Mapping[Any, complex],
        n_spins: int | None = None,
        *,
        hermitian: bool = True,
        sectors: Sequence[Sector] = (),
        exchange_pairs: np.ndarray | None = None,
    ) -> None:
        groups = [_group(*term) for term in _as_list(terms)]
        groups = [g for g in groups if len(g[2])]
        if not groups:
            raise ValueError("a Pauli sum needs a term at least; got none")
        lengths = {g[3] for g in groups if g[3]}
        if len(lengths) > 1:
            raise ValueError(f"full strings have different lengths: {sorted(lengths)}")
        flips, signs, coefficients = _stacked(groups)
        highest = int(max(flips.max(initial=-1), signs.max(initial=-1), max(g[3] for g in groups) - 1))
        n_spins = highest + 1 if n_spins is None else n_spins
        if highest >= n_spins:
            raise ValueError(f"a term acts on spin {highest}, and there are {n_spins}")
        if n_spins < 1:
            raise ValueError("a Pauli sum needs a spin at least; give n_spins")
        super().__init__(n_spins, sectors, exchange_pairs)
        flips, signs, coefficients = _merged(flips, signs, coefficients)
        overlap = _overlaps(flips, signs)
        # (X^f Z^z)† = (-1)^|f∩z| X^f Z^z
        asymmetry = np.abs(coefficients.conj() * overlap - coefficients)
        scale = float(np.abs(coefficients).max(initial=0.0))
        self.is_hermitian = bool(asymmetry.max(initial=0.0) <= HERMITIAN_TOLERANCE * max(scale, 1e-300))
        if hermitian and not self.is_hermitian:
            worst = int(asymmetry.argmax())
            raise ValueError(
                f"the sum is not Hermitian: the largest asymmetry is {asymmetry[worst]:.3g}, of the term "
                f"that flips {_named(flips[worst])} and takes the signs of {_named(signs[worst])}"
            )
        # As a function of the row x: Π_z x'_i = (-1)^|f∩z| Π_z x_i.
        values = coefficients * overlap
        self.is_real = bool((np.abs(values.imag) <= HERMITIAN_TOLERANCE * max(scale, 1e-300)).all())
        self._store(flips, signs, values.real.copy() if self.is_real else values)
        if not conserves(self, self.sectors):
            raise ValueError("the sum of Pauli strings does not conserve the sums of its sectors")

    def _store(self, flips: np.ndarray, signs: np.ndarray, values: np.ndarray) -> None:
        """Terms sorted by what they flip, then masks as bounds and spins; the diagonal apart."""
        masks, of_term = np.unique(flips, axis=0, return_inverse=True)
        of_term = of_term.reshape(-1)
        diagonal = (masks < 0).all(1)
        number = np.cumsum(~diagonal) - 1
        number[diagonal] = -1
        of_term = number[of_term]
        masks = masks[~diagonal]
        widths = (masks >= 0).sum(1)
        self.flip_ptr = torch.from_numpy(np.concatenate([[0], np.cumsum(widths)]).astype(np.int64))
        self.flip_sites = torch.from_numpy(masks[masks >= 0].astype(np.int64))
        self._masks = masks.astype(np.int32)
        self._largest = float(np.abs(values).max(initial=0.0))
        self.n_connected = len(masks)
        width = (signs >= 0).sum(1)
        self._parts: list[tuple[Tensor, Tensor, Tensor]] = []
        for k in np.unique(width):
            rows = np.flatnonzero(width == k)
            rows = rows[np.argsort(of_term[rows], kind="stable")]
            sites = np.sort(signs[rows], axis=1)[:, signs.shape[1] - k :]
            self._parts.append(
                (
                    torch.from_numpy(of_term[rows].astype(np.int32)),
                    torch.from_numpy(np.ascontiguousarray(sites.astype(np.int32))),
                    torch.from_numpy(values[rows]),
                )
            )

    def fingerprint(self) -> str:
        """A digest of all strings and coefficients."""
        arrays = [self.flip_ptr, self.flip_sites, *(t for part in self._parts for t in part)]
        return digest(self.n_spins, [t.numpy() for t in arrays])

    @property
    def n_terms(self) -> int:
        """Different strings."""
        return sum(len(part[0]) for part in self._parts)

    @property
    def nbytes(self) -> int:
        """What the sum occupies."""
        tensors = [self.flip_ptr, self.flip_sites, *(t for part in self._parts for t in part)]
        return sum(t.numel() * t.element_size() for t in tensors) + self._masks.nbytes

    @property
    def one_norm(self) -> float:
        """Σ |c|, a bound on the largest |eigenvalue|."""
        return float(sum(part[2].abs().sum() for part in self._parts))

    def diagonal(self, x: Int8[Tensor, "rows spins"]) -> Num[Tensor, " rows"]:
        """⟨x|H|x⟩, float64 or complex128."""
        return self._elements(x, -1, 0)[:, 0]

    def elements(
        self, x: Int8[Tensor, "rows spins"], begin: int = 0, end: int | None = None
    ) -> Num[Tensor, "rows masks"]:
        """⟨x|H|x'⟩ for x' = x with the spins of each mask from ``begin`` up to ``end`` flipped."""
        end = self.n_connected if end is None else end
        found = self._elements(x, begin, end)
        # Strings that cancel leave rounding, which would lead out of a sector.
        return torch.where(found.abs() > ROUNDING * self._largest, found, 0.0)

    def _elements(self, x: Tensor, begin: int, end: int) -> Tensor:
        first, count = (-1, 1) if begin < 0 else (begin, end - begin)
        kind = torch.float64 if self.is_real else torch.complex128
        out = torch.zeros(len(x), count, dtype=kind, device=x.device)
        for of_term, sites, values in self._parts:
            low, high = torch.searchsorted(
                of_term, torch.tensor([first, first + count], dtype=torch.int32)
            ).tolist()
            if low == high:
                continue
            place = (of_term[low:high].long() - first).to(x.device)
            weights = values[low:high].to(x.device)
            if sites.shape[1] == 0:
                out.index_add_(1, place, weights.expand(len(x), -1).contiguous())
                continue
            columns = sites[low:high].long().to(x.device)
            signs = x[:, columns[:, 0]]
            for k in range(1, columns.shape[1]):
                signs = signs * x[:, columns[:, k]]
            if begin < 0:
                out[:, 0] += signs.to(kind) @ weights
            else:
                out.index_add_(1, place, signs.to(kind) * weights)
        return out

    def connected(self, x: Int8[Tensor, "rows spins"], begin: int, end: int) -> Connected:
        """The states that slots ``begin`` up to ``end`` lead to, where the element is not zero."""
        elements = self.elements(x, begin, end)
        row, slot = torch.nonzero(elements, as_tuple=True)
        flipped = x[row]
        masks = torch.from_numpy(self._masks[begin:end]).long().to(x.device)[slot]
        for k in range(masks.shape[1]):
            there = torch.nonzero(masks[:, k] >= 0)[:, 0]
            flipped[there, masks[there, k]] *= -1
        return Connected(flipped, elements[row, slot], row)

    @classmethod
    def from_algebra(
        cls, operator: Mapping[tuple[int, int], complex], n_spins: int, **options: Any
    ) -> PauliSum:
        """From coefficients of X^f Z^z, with f and z as bits of integers (see ``icml_mpvmc.fermions``)."""
        terms = {}
        for (f, z), value in operator.items():
            letters, phase = {}, 1.0 + 0j
            for i in range(n_spins):
                x_bit, z_bit = f >> i & 1, z >> i & 1
                if x_bit and z_bit:  # X Z = -i Y
                    letters[i], phase = "Y", phase * -1j
                elif x_bit or z_bit:
                    letters[i] = "X" if x_bit else "Z"
            terms[tuple(letters.items())] = value * phase
        return cls(terms, n_spins, **options)


def _as_list(terms: Iterable[Sequence[Any]] | Mapping[Any, complex]) -> list[tuple[Any, ...]]:
    if not isinstance(terms, Mapping):
        return [tuple(term) for term in terms]
    found: list[tuple[Any, ...]] = []
    for key, value in terms.items():
        if isinstance(key, str):
            found.append((key, value))
        elif hasattr(key, "items"):
            found.append((dict(key.items()), value))
        else:
            found.append((_letters_of_pairs(key), value))
    return found


def _letters_of_pairs(key: Any) -> dict[int, str]:
    letters: dict[int, str] = {}
    for pair in key:
        if len(pair) != 2:
            raise ValueError(f"the key {key!r} is neither a string nor made of pairs (spin, letter)")
        site, letter = (pair[1], pair[0]) if isinstance(pair[0], str) else pair
        if site in letters:
            raise ValueError(f"the key {key!r} names spin {site} twice")
        letters[int(site)] = letter
    return letters


def _group(letters: Any, *rest: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Flips [E, a], signs [E, b] and coefficients [E] of X^f Z^z, and how many spins a full string has."""
    if len(rest) == 1:
        (coefficient,) = rest
        if isinstance(letters, str):
            length, pairs = len(letters), [(i, c) for i, c in enumerate(letters) if c.upper() != "I"]
        else:
            length, pairs = 0, [(i, c) for i, c in letters.items() if c.upper() != "I"]
        word, sites = "".join(c for _, c in pairs), np.array([[i for i, _ in pairs]], dtype=np.int64)
    elif len(rest) == 2:
        word, length = str(letters), 0
        sites = np.atleast_2d(np.asarray(rest[0], dtype=np.int64)).reshape(-1, len(word))
        coefficient = rest[1]
    else:
        raise ValueError(
            f"the term {(letters, *rest)!r} is neither (string, coefficient) nor (letters, spins, "
            "coefficient)"
        )
    word = word.upper()
    if set(word) - set("IXYZ"):
        raise ValueError(f"the term {letters!r} has letters other than I, X, Y and Z")
    kept = [k for k, c in enumerate(word) if c != "I"]
    word, sites = "".join(word[k] for k in kept), sites[:, kept]
    if sites.size and sites.max() >= 2**31 - 1:
        raise ValueError(f"the term {letters!r} names spin {int(sites.max())}, which is no 32-bit number")
    if sites.size and sites.min() < 0:
        raise ValueError(f"the term {letters!r} names spin {int(sites.min())}")
    ordered = np.sort(sites, axis=1)
    if (np.diff(ordered, axis=1) == 0).any():
        raise ValueError(f"the term {letters!r} names a spin twice; multiply the letters first")
    values = np.broadcast_to(np.asarray(coefficient, dtype=complex), (len(sites),))
    if not np.isfinite(values).all():
        raise ValueError(f"the coefficient of {letters!r} is not finite")
    values = values * 1j ** word.count("Y")
    flips = sites[:, [k for k, c in enumerate(word) if c in "XY"]]
    signs = sites[:, [k for k, c in enumerate(word) if c in "YZ"]]
    return flips, signs, values, length


def _stacked(groups: list[tuple[np.ndarray, np.ndarray, np.ndarray, int]]) -> tuple[np.ndarray, ...]:
    """Rows of spins in rising order, filled up with -1 in front."""
    found = []
    for column in (0, 1):
        width = max(g[column].shape[1] for g in groups)
        rows = np.full((sum(len(g[2]) for g in groups), width), -1, dtype=np.int32)
        at = 0
        for g in groups:
            part = np.sort(g[column], axis=1)
            rows[at : at + len(part), width - part.shape[1] :] = part
            at += len(part)
        found.append(rows)
    return found[0], found[1], np.concatenate([g[2] for g in groups])


def _merged(flips: np.ndarray, signs: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, ...]:
    """Equal strings summed."""
    both = np.concatenate([flips, signs], axis=1)
    if both.shape[1] == 0:
        return flips[:1], signs[:1], values.sum(keepdims=True)
    order = np.lexsort(both.T[::-1])
    both, values = both[order], values[order]
    begins = np.concatenate([[True], (np.diff(both, axis=0) != 0).any(1)])
    summed = np.add.reduceat(values, np.flatnonzero(begins))
    unique = both[begins]
    return unique[:, : flips.shape[1]], unique[:, flips.shape[1] :], summed


def _overlaps(flips: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """(-1)^|f∩z| of each row."""
    shared = np.zeros(len(flips), dtype=np.int64)
    for k in range(flips.shape[1]):
        column = flips[:, k : k + 1]
        shared += ((signs == column) & (column >= 0)).sum(1)
    return 1 - 2 * (shared % 2)


def _named(row: np.ndarray) -> str:
    return "spins " + ", ".join(str(i) for i in row if i >= 0) if (row >= 0).any() else "nothing"
