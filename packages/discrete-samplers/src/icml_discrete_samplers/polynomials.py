"""Energies of sparse terms: polynomials of any order, QUBO and Ising problems, with labels.

E(x) = sum over terms of c_t prod_{i in t} value(x_i), and log rho = -beta E. Labels and terms are sorted
once, so that neither the order nor the hashing of what was given changes a sample, and a hash of the problem
goes with the samples.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Hashable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Literal

import torch
from icml_kernels import SparseTerms, sparse_terms
from jaxtyping import Float64, Int64
from torch import Tensor

from icml_discrete_samplers.checks import require_sizes

Domain = Literal["binary", "spin"]
Term = tuple[Hashable, ...]


class Polynomial:
    """A polynomial in variables of two (or V) values; x is in symbols, samples come back in the domain.

    Args:
        terms: for each product of variables, a tuple of labels, its coefficient; ``()`` is the constant.
        domain: symbols 0, 1, ... count as themselves (``"binary"``), or evenly from -1 to 1 (``"spin"``).
        V: symbols a site.
        beta: inverse temperature: log rho = -beta E.
        variables: all labels, where some are in no term.

    Raises:
        ValueError: no variables, an unknown domain, coefficients or beta that are not finite numbers, a
            variable twice in a term where V > 2.

    Example:
        ``Polynomial({("a", "b"): -1.0, ("a",): 0.5}, domain="spin")``
    """

    def __init__(
        self,
        terms: Mapping[Any, float],
        domain: Domain = "binary",
        V: int = 2,
        *,
        beta: float = 1.0,
        variables: Sequence[Hashable] = (),
    ) -> None:
        if domain not in ("binary", "spin"):
            raise ValueError(f"domain {domain!r} is neither 'binary' nor 'spin'")
        if not math.isfinite(beta):
            raise ValueError(f"beta={beta} must be a finite number")
        keys = {key: _variables(key) for key in terms}
        labels = _sorted({*variables, *itertools.chain.from_iterable(keys.values())})
        require_sizes(len(labels), V)
        place = {label: i for i, label in enumerate(labels)}
        found: dict[tuple[int, ...], list[float]] = {}
        for key, names in keys.items():
            coefficient = float(terms[key])
            if not math.isfinite(coefficient):
                raise ValueError(f"the coefficient of {key!r} is {terms[key]!r}; it must be a finite number")
            sites = _reduced([place[name] for name in names], domain, V, key)
            found.setdefault(sites, []).append(coefficient)
        # Rounded once, so that the order of equal terms changes no bit.
        merged = {sites: math.fsum(parts) for sites, parts in found.items()}
        self.domain: Domain = domain
        self.D, self.V, self.beta = len(labels), int(V), float(beta)
        self.variables: tuple[Hashable, ...] = tuple(labels)
        self.offset = merged.pop((), 0.0)
        self.coefficients = {sites: merged[sites] for sites in sorted(merged, key=lambda s: (len(s), s))}
        kept = [sites for sites, c in self.coefficients.items() if c != 0.0]
        numbers = torch.tensor([self.coefficients[s] for s in kept], dtype=torch.float64)
        self.terms: SparseTerms = sparse_terms(self.D, kept, -self.beta * numbers, self._values())
        self._by_order = [
            (torch.tensor([s for s in kept if len(s) == n]), numbers[[len(s) == n for s in kept]])
            for n in sorted({len(s) for s in kept})
        ]

    def _values(self) -> Float64[Tensor, " V"]:
        symbols = torch.arange(self.V, dtype=torch.float64)
        return symbols if self.domain == "binary" else 2 * symbols / (self.V - 1) - 1

    def energy(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """E(x), the constant included."""
        values = self._values().to(x.device)[x]
        total = torch.full((len(x),), self.offset, dtype=torch.float64, device=x.device)
        for sites, numbers in self._by_order:
            total = total + values[:, sites.to(x.device)].prod(-1) @ numbers.to(x.device)
        return total

    def log_density(self, x: Int64[Tensor, "n D"]) -> Float64[Tensor, " n"]:
        """-beta E(x)."""
        return -self.beta * self.energy(x)

    def decode(self, x: Int64[Tensor, "n D"]) -> Tensor:
        """Symbols in the domain: -1 and 1 of a spin problem, 0 and 1 of a binary one."""
        values = self._values().to(x.device)[x]
        return values if self.domain == "spin" and self.V > 2 else values.long()

    def labelled(self, x: Int64[Tensor, "n D"]) -> list[dict[Hashable, float]]:
        """Each state as a dict from label to value in the domain."""
        return [dict(zip(self.variables, row, strict=True)) for row in self.decode(x).tolist()]

    def sampleset(self, x: Int64[Tensor, "n D"]) -> Any:
        """The states as a ``dimod.SampleSet`` with energies.

        Raises:
            NeedsError: dimod is not installed.
            ValueError: V > 2, which dimod has no vartype for.
        """
        if self.V != 2:
            raise ValueError(f"a dimod.SampleSet holds two symbols a variable, and V={self.V}")
        dimod = _dimod()
        return dimod.SampleSet.from_samples(
            (self.decode(x).cpu().numpy(), list(self.variables)),
            vartype="SPIN" if self.domain == "spin" else "BINARY",
            energy=self.energy(x).cpu().numpy(),
            info={"fingerprint": self.fingerprint},
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the problem: labels, domain, temperature, terms and constant."""
        terms = [[list(sites), c.hex()] for sites, c in self.coefficients.items()]
        head = [self.domain, self.V, self.beta.hex(), self.offset.hex()]
        labels = [f"{type(v).__name__}:{v!r}" for v in self.variables]
        return sha256(json.dumps([head, labels, terms]).encode()).hexdigest()[:16]

    def as_ising(self) -> Polynomial:
        """The same energies, of spins -1 and 1, the constant included."""
        return self._in("spin")

    def as_qubo(self) -> Polynomial:
        """The same energies, of 0 and 1, the constant included."""
        return self._in("binary")

    def _in(self, domain: Domain) -> Polynomial:
        if self.V != 2:
            raise ValueError(f"V={self.V}: only problems of two symbols are both binary and spin problems")
        terms: dict[Term, float] = {(): self.offset}
        # s = 2 x - 1, and x = s / 2 + 1 / 2.
        slope, shift = (2.0, -1.0) if domain == "binary" else (0.5, 0.5)
        for sites, c in self.coefficients.items():
            if domain == self.domain:
                terms[tuple(self.variables[i] for i in sites)] = c
                continue
            for size in range(len(sites) + 1):
                for chosen in itertools.combinations(sites, size):
                    name = tuple(self.variables[i] for i in chosen)
                    terms[name] = terms.get(name, 0.0) + c * slope**size * shift ** (len(sites) - size)
        return Polynomial(terms, domain, beta=self.beta, variables=self.variables)


class QUBO(Polynomial):
    """Quadratic binary (or spin) energy E(x) = sum_ij Q_ij x_i x_j + offset from what users have.

    Args:
        Q: a square array or SciPy sparse matrix (the diagonal is linear, both triangles count), a dict from
            pairs of labels to numbers (``(a, a)`` is linear), or a ``dimod.BinaryQuadraticModel``, whose
            domain is kept.
        offset: the constant.
        beta: inverse temperature.

    Raises:
        TypeError: something else.
        ValueError: a matrix that is not square, or as :class:`Polynomial`.
    """

    def __init__(self, Q: Any, offset: float = 0.0, *, beta: float = 1.0) -> None:
        terms, variables, domain = _quadratic(Q)
        terms[()] = terms.get((), 0.0) + float(offset)
        super().__init__(terms, domain, beta=beta, variables=variables)


def _quadratic(Q: Any) -> tuple[dict[Term, float], list[Hashable], Domain]:
    if hasattr(Q, "vartype") and hasattr(Q, "linear") and hasattr(Q, "quadratic"):
        terms: dict[Term, float] = {(): float(Q.offset)}
        terms |= {(v,): float(c) for v, c in Q.linear.items()}
        terms |= {tuple(pair): float(c) for pair, c in Q.quadratic.items()}
        return terms, list(Q.variables), "spin" if Q.vartype.name == "SPIN" else "binary"
    if isinstance(Q, Mapping):
        found: dict[Term, float] = {}
        for key, c in Q.items():
            names = _variables(key)
            if len(names) != 2:
                raise ValueError(f"the key {key!r} of a QUBO must be a pair of labels; (a, a) is linear")
            # Both orders of a pair may be given; they add up.
            name = tuple(_sorted(set(names)))
            found[name] = found.get(name, 0.0) + float(c)
        return found, [], "binary"
    if hasattr(Q, "tocoo") or hasattr(Q, "__array__") or isinstance(Q, (list, tuple, Tensor)):
        return _of_matrix(Q)
    raise TypeError(
        f"Q is a {type(Q).__name__}; expected a square array, a SciPy sparse matrix, a dict of pairs "
        "or a dimod "
        "BinaryQuadraticModel"
    )


def _of_matrix(Q: Any) -> tuple[dict[Term, float], list[Hashable], Domain]:
    import numpy as np
    from scipy.sparse import coo_array

    matrix = coo_array(Q if hasattr(Q, "tocoo") else np.asarray(Q, dtype=float))
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"Q has shape {matrix.shape}; expected a square matrix")
    found: dict[Term, float] = {}
    for i, j, c in zip(*(part.tolist() for part in (*matrix.coords, matrix.data)), strict=True):
        name = (i,) if i == j else (min(i, j), max(i, j))
        found[name] = found.get(name, 0.0) + c
    return found, list(range(matrix.shape[0])), "binary"


def _variables(key: Any) -> tuple[Hashable, ...]:
    """The labels of a term's key: a tuple or a set of them, or one label."""
    if isinstance(key, frozenset):
        return tuple(_sorted(key))
    return tuple(key) if isinstance(key, tuple) else (key,)


def _sorted(labels: Any) -> list[Hashable]:
    """Labels in an order that depends on them alone."""
    try:
        return sorted(labels)
    except TypeError:
        return sorted(labels, key=lambda v: (type(v).__name__, repr(v)))


def _reduced(sites: list[int], domain: Domain, V: int, key: Any) -> tuple[int, ...]:
    """x x = x of 0 and 1, and s s = 1 of -1 and 1."""
    if len(set(sites)) == len(sites):
        return tuple(sorted(sites))
    if V > 2:
        raise ValueError(f"the term {key!r} has a variable twice, which V={V} symbols do not reduce")
    if domain == "binary":
        return tuple(sorted(set(sites)))
    return tuple(sorted(i for i in set(sites) if sites.count(i) % 2))


def _dimod() -> Any:
    try:
        import dimod
    except ImportError as error:
        from icml_core.errors import NeedsError, install_command

        raise NeedsError("dimod>=0.12", hint=install_command("icml-discrete-samplers[dimod]")) from error
    return dimod
