"""How good drawn objects are: success, diversity, uniqueness, novelty, their harmonic mean; exact TV and JSD.

Uniqueness is counted before duplicates are taken away, so that a collapse shows, and among all that was
drawn, so that a leak does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from icml_leakgfn.exact import ExactFlows, PolicyDistribution
from icml_leakgfn.samples import Samples


class MoleculeMetrics:
    """Figures of a set of molecules with scores.

    Args:
        top: how many of the best are judged; 100 in the paper.
        success: a molecule succeeds from this score on.
        similarity: with a reference set, a molecule is novel below this similarity to its nearest neighbour;
            None: where it is not in the set.

    Raises:
        ValueError: no positive ``top``.
    """

    def __init__(self, *, top: int = 100, success: float = 0.5, similarity: float | None = None) -> None:
        if top < 1:
            raise ValueError(f"top={top} must be positive")
        self.top, self.success, self.similarity = top, success, similarity

    def evaluate(
        self,
        subject: Samples | tuple[Sequence[str], Sequence[float]] | PolicyDistribution,
        *,
        reference: Iterable[str] | None = None,
        exact: ExactFlows | None = None,
    ) -> dict[str, float | None]:
        """Named figures.

        - ``success``: share of all drawn objects that reach the threshold;
        - ``uniqueness``: different finished objects by all that were drawn, so that leaking and failing cost;
        - ``top_mean``, ``diversity``: mean score, and mean Tanimoto distance of pairs, of the best different
        ones;
        - ``harmonic_mean``: of top_mean, diversity and uniqueness;
        - ``novelty``: of the best, against the reference set; None without one;
        - ``cut``: share that was cut off;
        - with ``exact``, of a policy's distribution: ``total_variation``, ``jensen_shannon``, ``leak``.

        Args:
            subject: drawn objects, or SMILES with scores; or a policy's exact distribution.
            reference: SMILES.
            exact: the exact flows that a distribution is compared with.

        Raises:
            ValueError: different numbers of SMILES and scores, no object, or a distribution without exact
                flows.
        """
        if isinstance(subject, PolicyDistribution):
            if exact is None:
                raise ValueError(
                    "a distribution is compared with exact flows: give exact=exact_flow(env, reward)"
                )
            return {
                "total_variation": subject.total_variation(exact),
                "jensen_shannon": subject.jensen_shannon(exact),
                "leak": subject.leak,
            }
        smiles, scores, cut = _listed(subject)
        if not smiles:
            raise ValueError("there is no object to judge")
        finished = ~np.isnan(scores)
        unique: dict[str, float] = {}
        for name, score, good in zip(smiles, scores, finished, strict=True):
            if good:
                unique.setdefault(name, float(score))
        best = sorted(unique.items(), key=lambda item: (-item[1], item[0]))[: self.top]
        names = [name for name, _ in best]
        figures: dict[str, float | None] = {
            "success": float((scores[finished] >= self.success).sum() / len(smiles)),
            "uniqueness": len(unique) / len(smiles),
            "top_mean": float(np.mean([score for _, score in best])) if best else 0.0,
            "diversity": diversity(names),
            "cut": cut,
            "novelty": None if reference is None else novelty(names, reference, self.similarity),
        }
        parts = [figures["top_mean"], figures["diversity"], figures["uniqueness"]]
        figures["harmonic_mean"] = harmonic_mean([float(p or 0.0) for p in parts])
        return figures


def _listed(subject: Any) -> tuple[list[str], Float[ndarray, " n"], float]:
    if isinstance(subject, Samples):
        scores = subject.score_raw if subject.score_raw.ndim == 1 else subject.score_raw.mean(axis=1)
        return subject.smiles, scores, float((subject.done == 1).mean()) if len(subject) else 0.0
    smiles, given = subject
    scores = np.asarray(given, dtype=np.float64)
    if len(smiles) != len(scores):
        raise ValueError(f"{len(smiles)} SMILES and {len(scores)} scores; there must be as many")
    return list(smiles), scores, 0.0


def harmonic_mean(values: Sequence[float]) -> float:
    """The harmonic mean; 0 where a value is 0 or below."""
    return 0.0 if min(values) <= 0 else len(values) / sum(1 / v for v in values)


def _prints(smiles: Iterable[str]) -> list[Any]:
    from rdkit import Chem

    from icml_leakgfn.scores import fingerprint

    mols = (Chem.MolFromSmiles(name) for name in smiles)
    return [fingerprint(mol) for mol in mols if mol is not None]


def diversity(smiles: Sequence[str]) -> float:
    """Mean Tanimoto distance of all pairs; 0 for fewer than two."""
    from rdkit import DataStructs

    prints = _prints(smiles)
    if len(prints) < 2:
        return 0.0
    total = sum(sum(DataStructs.BulkTanimotoSimilarity(prints[k], prints[:k])) for k in range(1, len(prints)))
    return 1.0 - total / (len(prints) * (len(prints) - 1) / 2)


def novelty(smiles: Sequence[str], reference: Iterable[str], similarity: float | None = None) -> float:
    """Share of molecules that are not in a reference set, or not within a similarity of any of its
    members.
    """
    from rdkit import Chem, DataStructs

    if not smiles:
        return 0.0
    if similarity is None:
        mols = (Chem.MolFromSmiles(name) for name in reference)
        known = {Chem.MolToSmiles(mol) for mol in mols if mol is not None}
        return sum(name not in known for name in smiles) / len(smiles)
    prints = _prints(reference)
    new = [
        max(DataStructs.BulkTanimotoSimilarity(p, prints), default=0.0) < similarity for p in _prints(smiles)
    ]
    return sum(new) / len(smiles)
