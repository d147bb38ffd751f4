"""Parameters of the classical prior by Boltzmann inversion, per class of term, so that they carry over to
any protein.

For each class of term, U = -kT log p(feature) + const, with the Jacobian divided out: r² for distances, and
sin θ for angles (histograms are taken over cos θ, which does that). There are two levels of classes: the term
by its beads and residue ("bond CA-CB(ALA)", "phi ALA"), and the same by bead names alone ("any bond CA-CB"),
used where the first is rare.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

import numpy as np
from jaxtyping import Float

from icml_flashschnet.geometry import angle_cosines, dihedral_angles, distances
from icml_flashschnet.structure import Molecule
from icml_flashschnet.topology import excluded_pairs
from icml_flashschnet.units import BOLTZMANN

FORMAT = 1
NARROW_DIHEDRALS = frozenset({"omega", "chirality", "carbonyl"})
"""Kinds with one well: one Fourier term, whose strength follows from the spread of the angles."""
ANGLE_FORMS = {"5bead": "cosine", "ca": "quartic", None: "cosine"}
"""Angles of a CA trace have two wells, helix and strand."""
GRIDS = {"bond": (0.0, 12.0, 2400), "angle": (-1.0, 1.0, 400), "dihedral": (-math.pi, math.pi, 360)}
"""Lowest and highest value and number of bins of each feature (Å, cos θ, radians)."""
BROAD_BINS = 4
"""Bins of a dihedral with several wells that are taken together."""
CONTACT_LEVEL = 0.25
"""kT of the repulsion at the inner flank of g(r), which is where g is exp(-0.25) of its far value. The tail
of r^-6 is
long: with 1 kT there, the many contacts of a folded protein add up to a pressure that its forces do not have
(residual forces of crambin grow), while 0.25 kT lowers them and still gives 16 kT at half the distance."""
PAIR_BIN = 0.05
"""Å, of the histograms of non-bonded distances."""
TAIL = 0.005
"""Fraction of the samples beyond either end of the range over which a parabola is fitted."""
MAX_RESIDUAL = 1.0
"""Weighted root mean square deviation of a fit, in kT, above which it is refused."""
DISTANCES_AT_ONCE = 2_000_000
"""Pair distances in memory at once, over several frames."""


@dataclass(frozen=True)
class FittedTerm:
    """One row of the table of prior terms.

    Attributes:
        name: class of the term: "bond CA-CB(ALA)".
        form: "harmonic", "cosine", "quartic", "fourier" or "repulsion".
        count: samples that it rests on.
        parameters: k (kcal/mol/Å²) and r0 (Å); k (kcal/mol) and cos θ0; a, b, c, d, k, v0; v0, the sine and
            then the cosine coefficients (kcal/mol); or σ (Å).
        residual: deviation of the fit from -kT log p, weighted by the samples, kcal/mol.
    """

    name: str
    form: str
    count: int
    parameters: tuple[float, ...]
    residual: float


@dataclass(frozen=True)
class PriorParameters:
    """A prior that is not bound to a molecule yet: terms by class, and how they were fitted.

    Attributes:
        terms: rows by name.
        representation: of the molecules that it serves.
        temperature: at which the samples were drawn, K.
        cutoff: where the repulsion ends, Å.
        exclusion: bonds from which on two beads repel each other.
        rare: classes left to the pooled class of the same beads, with their number of samples.
    """

    terms: Mapping[str, FittedTerm]
    representation: str | None
    temperature: float
    cutoff: float
    exclusion: int
    rare: Mapping[str, int] = field(default_factory=dict)

    def table(self) -> str:
        """The terms as text: name, samples, parameters, residual."""
        lines = [f"{'term':<34}{'samples':>10}  {'residual':>8}  parameters"]
        for term in self.terms.values():
            values = "  ".join(f"{p:.4g}" for p in term.parameters)
            lines.append(f"{term.name:<34}{term.count:>10}  {term.residual:>8.3f}  {values}")
        lines += [f"{name:<34}{count:>10}  too rare: pooled" for name, count in self.rare.items()]
        return "\n".join(lines)

    def term(self, *names: str) -> FittedTerm:
        """The first of the named classes that there is, from the special to the pooled.

        Raises:
            ValueError: none of them was fitted.
        """
        for name in names:
            if name in self.terms:
                return self.terms[name]
        raise ValueError(
            f"the prior has no term {names[0]!r}, nor {names[-1]!r}: fit it on data that hold such beads"
        )

    def to_json(self) -> str:
        """All of it as JSON text."""
        terms = [[t.name, t.form, t.count, [float(f"{p:.7g}") for p in t.parameters], round(t.residual, 4)]
                 for t in self.terms.values()]  # fmt: skip
        rest = {k: v for k, v in asdict(self).items() if k not in ("terms", "rare")}
        return json.dumps(
            {"format": FORMAT, **rest, "rare": dict(self.rare), "terms": terms}, ensure_ascii=False
        )

    @classmethod
    def from_json(cls, text: str) -> PriorParameters:
        """Read what `to_json` wrote.

        Raises:
            ValueError: not such a text, or of another format.
        """
        try:
            raw = json.loads(text)
            if raw["format"] != FORMAT:
                raise ValueError(f"prior parameters of format {raw['format']}, this version reads {FORMAT}")
            terms = [
                FittedTerm(n, form, int(c), tuple(map(float, p)), float(r))
                for n, form, c, p, r in raw["terms"]
            ]
            return cls(
                terms={t.name: t for t in terms},
                representation=raw["representation"],
                temperature=float(raw["temperature"]),
                cutoff=float(raw["cutoff"]),
                exclusion=int(raw["exclusion"]),
                rare=dict(raw["rare"]),
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"these are no prior parameters: {error!r}") from error


def bond_names(molecule: Molecule) -> list[tuple[str, str]]:
    """Special and pooled class of each bond."""
    return _names("bond", molecule, molecule.bonds)


def angle_names(molecule: Molecule) -> list[tuple[str, str]]:
    """Special and pooled class of each angle."""
    return _names("angle", molecule, molecule.angles)


def dihedral_names(molecule: Molecule) -> list[tuple[str, str]]:
    """Special and pooled class of each dihedral: φ, ψ and chirality by their residue, ω and the plane of
    C=O by the residue that follows the peptide bond."""
    result = []
    for kind, beads in zip(molecule.topology.dihedral_kinds, molecule.dihedrals, strict=True):
        if kind in ("proper", "trace"):
            labels = [molecule.labels[b] for b in beads] if kind == "proper" else ["CA"] * 4
            special = f"{kind} {'-'.join(min(labels, labels[::-1]))}"
            result.append((special, f"any {kind}"))
            continue
        # By the order of beads (topology.py) the second lies in the residue that is meant, the last for ω.
        own = molecule.residue_of[beads[3] if kind == "omega" else beads[1]]
        result.append((f"{kind} {molecule.residues[own].name}", f"any {kind}"))
    return result


def pair_name(first: str, second: str) -> str:
    """Class of the repulsion between two labels."""
    return f"repulsion {'-'.join(sorted((first, second)))}"


def plain(label: str) -> str:
    """A label without its residue: "CB(ALA)" becomes "CB"."""
    return label.partition("(")[0]


def fit_prior(
    samples: Iterable[tuple[Molecule, Float[np.ndarray, "frames beads 3"]]],
    *,
    temperature: float = 300.0,
    min_count: int = 500,
    cutoff: float = 8.0,
    exclusion: int = 4,
    fourier_order: int = 4,
) -> PriorParameters:
    """Fit all classes of terms that occur in one or more sampled molecules.

    Args:
        samples: molecules, and positions (Å) sampled from equilibrium.
        temperature: of the sampling, K.
        min_count: samples below which a class is left to the pooled one, and the pooled one is refused.
        cutoff: end of the repulsion, Å.
        exclusion: bonds between two beads from which on they repel each other.
        fourier_order: highest multiple of the dihedrals with several wells (φ, ψ and those of a trace).

    Raises:
        ValueError: no samples; different representations; positions that do not fit the molecule; a pooled
            class with fewer than `min_count` samples, or whose fit opens downwards or is off by over 1 kT.
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive (K), got {temperature}")
    histograms = _Histograms(cutoff)
    representations = set()
    for molecule, coords in samples:
        if coords.ndim != 3 or coords.shape[1:] != (molecule.n_beads, 3):
            raise ValueError(f"coords must be [frames, {molecule.n_beads}, 3], got {list(coords.shape)}")
        if not np.isfinite(coords).all():
            raise ValueError("coords are not finite")
        representations.add(molecule.representation)
        histograms.add(molecule, coords, exclusion)
    if len(representations) != 1:
        raise ValueError(f"one representation is needed, got {representations or 'no samples'}")
    representation = representations.pop()
    kt = BOLTZMANN * temperature
    angle_form = ANGLE_FORMS[representation]
    terms: dict[str, FittedTerm] = {}
    rare: dict[str, int] = {}
    for name, histogram in sorted(histograms.counts.items()):
        pooled, count = name.startswith("any "), int(histogram.sum())
        kind = name.removeprefix("any ").split()[0]
        if count < min_count:
            if pooled and kind != "repulsion":
                raise ValueError(
                    f"{name.removeprefix('any ')!r} has {count} samples, fewer than min_count={min_count}: "
                    "sample longer, or lower min_count"
                )
            rare[name] = count
            continue
        try:
            terms[name] = _fit(name, kind, histogram, kt, cutoff, angle_form, fourier_order)
        except ValueError:
            if pooled:
                raise
            rare[name] = count
    return PriorParameters(terms, representation, temperature, cutoff, exclusion, rare)


class _Histograms:
    """Counts of each feature by class, filled molecule by molecule."""

    def __init__(self, cutoff: float) -> None:
        self.cutoff = cutoff
        self.counts: dict[str, np.ndarray] = {}

    def add(self, molecule: Molecule, coords: np.ndarray, exclusion: int) -> None:
        """Count the features of all frames of one molecule."""
        n = molecule.n_beads
        pairs = np.stack(np.triu_indices(n, 1), 1)
        excluded = excluded_pairs(molecule.bonds, n, exclusion)
        pairs = pairs[~np.isin(pairs[:, 0] * n + pairs[:, 1], excluded[:, 0] * n + excluded[:, 1])]
        contacts = _columns(
            [
                (
                    pair_name(molecule.labels[i], molecule.labels[j]),
                    f"any {pair_name(plain(molecule.labels[i]), plain(molecule.labels[j]))}",
                )
                for i, j in pairs
            ]
        )
        bonds, angles = _columns(bond_names(molecule)), _columns(angle_names(molecule))
        dihedrals = _columns(dihedral_names(molecule))
        pair_grid = (0.0, self.cutoff, round(self.cutoff / PAIR_BIN))
        frames = max(1, DISTANCES_AT_ONCE // (len(pairs) + 1))
        for start in range(0, len(coords), frames):
            x = np.asarray(coords[start : start + frames], dtype=np.float64)
            self._count(bonds, distances(x, molecule.bonds), GRIDS["bond"])
            self._count(angles, angle_cosines(x, molecule.angles), GRIDS["angle"])
            self._count(dihedrals, dihedral_angles(x, molecule.dihedrals), GRIDS["dihedral"])
            self._count(contacts, distances(x, pairs), pair_grid)

    def _count(
        self, columns: Mapping[str, np.ndarray], values: np.ndarray, grid: tuple[float, float, int]
    ) -> None:
        """Add values [frames, terms] to the histograms of their classes."""
        low, high, bins = grid
        place = ((values - low) * (bins / (high - low))).astype(np.int64)
        # cos θ = 1 and φ = π belong to the last bin; distances beyond the grid are not counted.
        if low < 0:
            place[place == bins] = bins - 1
        for name, chosen in columns.items():
            part = place[:, chosen].ravel()
            counted = np.bincount(part[(part >= 0) & (part < bins)], minlength=bins)
            self.counts[name] = self.counts.get(name, 0) + counted


def _columns(names: Sequence[tuple[str, str]]) -> dict[str, np.ndarray]:
    """Terms of each class, special and pooled."""
    found: dict[str, list[int]] = {}
    for column, levels in enumerate(names):
        for name in levels:
            found.setdefault(name, []).append(column)
    return {name: np.array(columns) for name, columns in found.items()}


def _fit(
    name: str, kind: str, histogram: np.ndarray, kt: float, cutoff: float, angle_form: str, order: int
) -> FittedTerm:
    count = int(histogram.sum())
    if kind == "repulsion":
        return FittedTerm(name, "repulsion", count, (_range(histogram, cutoff, kt),), 0.0)
    low, high, bins = GRIDS[kind if kind in GRIDS else "dihedral"]
    x = low + (np.arange(bins) + 0.5) * (high - low) / bins
    if kind == "bond":
        k, centre, residual = _parabola(name, x, histogram, x**2, kt)
        return FittedTerm(name, "harmonic", count, (k, centre), residual)
    if kind == "angle" and angle_form == "cosine":
        k, centre, residual = _parabola(name, x, histogram, np.ones_like(x), kt)
        return FittedTerm(name, "cosine", count, (k, float(np.clip(centre, -1.0, 1.0))), residual)
    if kind == "angle":
        return FittedTerm(name, "quartic", count, *_quartic(x, histogram, kt))
    if kind in NARROW_DIHEDRALS:
        return FittedTerm(name, "fourier", count, *_one_well(x, histogram, kt))
    return FittedTerm(name, "fourier", count, *_fourier(x, histogram, kt, order))


def _parabola(
    name: str, x: np.ndarray, histogram: np.ndarray, jacobian: np.ndarray, kt: float
) -> tuple[float, float, float]:
    """k and centre of k (x - x0)² by least squares to -kT log(p / jacobian), weighted by the counts."""
    share = np.cumsum(histogram) / histogram.sum()
    inside = (share >= TAIL) & (share <= 1.0 - TAIL) & (histogram > 0)
    if inside.sum() < 4:
        raise ValueError(
            f"{name!r}: {int(inside.sum())} bins hold samples, a parabola needs 4 (was the bond constrained?)"
        )
    u = -kt * np.log(histogram[inside] / jacobian[inside])
    centre = float(np.average(x[inside], weights=histogram[inside]))
    a, b, c = _least_squares(
        np.stack([(x[inside] - centre) ** 2, x[inside] - centre, np.ones(inside.sum())], 1),
        u,
        histogram[inside],
    )
    fitted = a * (x[inside] - centre) ** 2 + b * (x[inside] - centre) + c
    residual = _deviation(fitted - u, histogram[inside])
    if not a > 0:
        raise ValueError(
            f"{name!r}: the parabola opens downwards (k = {a:.3g}): the samples have more than one peak"
        )
    if residual > MAX_RESIDUAL * kt:
        raise ValueError(
            f"{name!r}: the parabola is off by {residual / kt:.2g} kT: the samples have more than one peak, "
            "or are no equilibrium"
        )
    return float(a), float(centre - b / (2.0 * a)), residual


def _quartic(x: np.ndarray, histogram: np.ndarray, kt: float) -> tuple[tuple[float, ...], float]:
    """a, b, c, d, k, v0 of the restricted quartic; k is set to kT, which keeps straight angles away."""
    u, weight = _smoothed(histogram, kt)
    wall = kt / (1.0 - x**2)
    a, b, c, d, v0 = _least_squares(np.stack([x**4, x**3, x**2, x, np.ones_like(x)], 1), u - wall, weight)
    fitted = a * x**4 + b * x**3 + c * x**2 + d * x + v0 + wall
    return (float(a), float(b), float(c), float(d), kt, float(v0)), _deviation(fitted - u, weight)


def _one_well(phi: np.ndarray, histogram: np.ndarray, kt: float) -> tuple[tuple[float, ...], float]:
    """v0, s, c of v0 + s sin φ + c cos φ: the von Mises density with the mean and spread of the samples.

    Its concentration from the mean resultant length R: κ = 1/(R³ - 4R² + 3R) for R >= 0.85, else the
    middle branch of the same authors (Best and Fisher, Commun. Stat. B10, 493 (1981)). v0 puts the minimum
    at 0.
    """
    weight = histogram / histogram.sum()
    c, s = float((weight * np.cos(phi)).sum()), float((weight * np.sin(phi)).sum())
    r = math.hypot(c, s)
    kappa = 1.0 / (r**3 - 4.0 * r**2 + 3.0 * r) if r >= 0.85 else -0.4 + 1.39 * r + 0.43 / (1.0 - r)
    sine, cosine = -kt * kappa * s / r, -kt * kappa * c / r
    visited = histogram > 0
    difference = sine * np.sin(phi) + cosine * np.cos(phi)
    difference = difference[visited] + kt * np.log(histogram[visited])
    difference -= np.average(difference, weights=histogram[visited])
    return (kt * kappa, sine, cosine), _deviation(difference, histogram[visited])


def _fourier(
    phi: np.ndarray, histogram: np.ndarray, kt: float, order: int
) -> tuple[tuple[float, ...], float]:
    """v0 and the coefficients of sin nφ and cos nφ up to the order, by least squares to -kT log p."""
    histogram = histogram.reshape(-1, BROAD_BINS).sum(1)
    phi = phi.reshape(-1, BROAD_BINS).mean(1)
    u, weight = _smoothed(histogram, kt)
    multiples = np.arange(1, order + 1)
    columns = (
        [np.sin(n * phi) for n in multiples] + [np.cos(n * phi) for n in multiples] + [np.ones_like(phi)]
    )
    design = np.stack(columns, 1)
    solution = _least_squares(design, u, weight)
    residual = _deviation(design @ solution - u, histogram)
    v0 = -float((design[:, :-1] @ solution[:-1]).min())
    return (v0, *(float(v) for v in solution[:-1])), residual


def _range(histogram: np.ndarray, cutoff: float, kt: float) -> float:
    """σ with (σ/r)⁶ = n kT where g(r), coming from contact, first reaches e^-n of its far value."""
    r = (np.arange(len(histogram)) + 0.5) * PAIR_BIN
    density = histogram / r**2
    far = density[r > 0.75 * cutoff].mean()
    reached = np.nonzero(density >= far * math.exp(-CONTACT_LEVEL))[0]
    flank = float(r[reached[0]]) if len(reached) else cutoff
    return flank * (CONTACT_LEVEL * kt) ** (1.0 / 6.0)


def _smoothed(histogram: np.ndarray, kt: float) -> tuple[np.ndarray, np.ndarray]:
    """-kT log p with half a count added to every bin, which bounds what was never seen; and weights."""
    weight = np.sqrt(histogram + 0.5)
    return -kt * np.log((histogram + 0.5) / histogram.sum()), weight


def _least_squares(design: np.ndarray, target: np.ndarray, weight: np.ndarray) -> np.ndarray:
    root = np.sqrt(weight)
    return np.linalg.lstsq(design * root[:, None], target * root, rcond=None)[0]


def _deviation(difference: np.ndarray, weight: np.ndarray) -> float:
    return float(np.sqrt(np.average(difference**2, weights=weight)))


def _names(kind: str, molecule: Molecule, terms: np.ndarray) -> list[tuple[str, str]]:
    result = []
    for beads in terms:
        labels = [molecule.labels[b] for b in beads]
        short = [plain(label) for label in labels]
        special, pooled = min(labels, labels[::-1]), min(short, short[::-1])
        result.append((f"{kind} {'-'.join(special)}", f"any {kind} {'-'.join(pooled)}"))
    return result
