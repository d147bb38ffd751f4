"""Scores of molecules: drug-likeness, ease of synthesis, similarity to a drug, and whatever can be
imported.
"""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from icml_leakgfn.rewards import PRESETS, OnError, Reward, Shaping

# Drugs to be similar to, a stand-in for the activity oracles, which are trained files that a user supplies.
DRUGS = {
    "celecoxib": "Cc1ccc(cc1)-c1cc(nn1-c1ccc(cc1)S(N)(=O)=O)C(F)(F)F",
    "imatinib": "Cc1ccc(NC(=O)c2ccc(CN3CCN(C)CC3)cc2)cc1Nc1nccc(-c2cccnc2)n1",
    "risperidone": "CC1=C(CCN2CCC(CC2)c2noc3cc(F)ccc23)C(=O)N2CCCCC2=N1",
}
_BITS, _RADIUS = 2048, 2  # Morgan fingerprints, as usual for comparing molecules


def qed(mol: Any) -> float:
    """Quantitative estimate of drug-likeness (Bickerton et al. 2012), 0 to 1."""
    from rdkit.Chem import QED

    return float(QED.qed(mol))


def synthetic_accessibility(mol: Any) -> float:
    """(10 - SA) / 9 with the SA score of Ertl and Schuffenhauer (2009): 1 for the easiest."""
    return (10.0 - float(_sascorer().calculateScore(mol))) / 9.0


@cache
def _sascorer() -> Any:
    """The SA score lies in RDKit's Contrib folder, which is no package.

    Raises:
        FileNotFoundError: this RDKit came without Contrib.
    """
    import rdkit
    from rdkit.Chem import RDConfig

    homes = [Path(RDConfig.RDContribDir), Path(rdkit.__file__).parent / "Contrib"]
    where = next(
        (h / "SA_Score" / "sascorer.py" for h in homes if (h / "SA_Score" / "sascorer.py").is_file()), None
    )
    if where is None:
        raise FileNotFoundError("this RDKit came without Contrib/SA_Score, which holds the SA score")
    spec = importlib.util.spec_from_file_location("icml_leakgfn_sascorer", where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def _fingerprints() -> Any:
    from rdkit.Chem import rdFingerprintGenerator

    return rdFingerprintGenerator.GetMorganGenerator(radius=_RADIUS, fpSize=_BITS)


def fingerprint(mol: Any) -> Any:
    """Morgan fingerprint of radius 2 in 2048 bits."""
    return _fingerprints().GetFingerprint(mol)


class SimilarityTo:
    """Tanimoto similarity of counted Morgan fingerprints to a drug, 0 to 1.

    Args:
        reference: a name of ``DRUGS``, or SMILES.

    Raises:
        ValueError: neither.
    """

    def __init__(self, reference: str = "celecoxib") -> None:
        from rdkit import Chem

        self.smiles = DRUGS.get(reference, reference)
        mol = Chem.MolFromSmiles(self.smiles) if self.smiles else None
        if mol is None:
            raise ValueError(f"reference={reference!r} is neither SMILES nor one of {', '.join(DRUGS)}")
        self._print = _fingerprints().GetCountFingerprint(mol)

    def __call__(self, mol: Any) -> float:
        """The similarity of a molecule."""
        from rdkit import DataStructs

        return float(DataStructs.TanimotoSimilarity(self._print, _fingerprints().GetCountFingerprint(mol)))


def find_score(name: str) -> Callable[[Any], Any]:
    """A score by name: ``qed``, ``sa``, ``similarity:celecoxib``, ``similarity:SMILES``, or
    ``package.module:function``.

    A module in the working directory is found too.

    Raises:
        ValueError: another form, or a name that the module lacks.
        ImportError: the module cannot be imported.
    """
    if name == "qed":
        return qed
    if name == "sa":
        return synthetic_accessibility
    kind, _, rest = name.partition(":")
    if kind == "similarity":
        return SimilarityTo(rest or "celecoxib")
    if not kind or not rest:
        raise ValueError(
            f"reward {name!r} is none of qed, sa, similarity:DRUG, and has not the form "
            "package.module:function"
        )
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.insert(0, here)
    try:
        module = import_module(kind)
    finally:
        if added:
            sys.path.remove(here)
    found = getattr(module, rest, None)
    if not callable(found):
        raise ValueError(f"reward {name!r}: module {kind!r} has no function {rest!r}")
    return found


def molecule_reward(
    score: str | Callable[[Any], Any],
    *,
    shaping: Shaping | None = None,
    vectorised: bool | None = None,
    takes: str | None = None,
    on_error: OnError = "raise",
    constraint: Callable[[Any], bool] | None = None,
) -> Reward:
    """A shaped reward from a score of molecules.

    Args:
        score: a name, see :func:`find_score`, or a function of an RDKit molecule, or of SMILES.
        shaping: by default the official one of the task, else max(score, 0.01)/1 to the power 4.
        vectorised: whether it takes a list; by default what its attribute of this name says.
        takes: "object" (molecules) or "smiles"; by default what the annotation of its first parameter says.
        on_error: "raise" or "floor".
        constraint: what does not hold is worth nothing.

    Raises:
        ValueError: an unknown name.
    """
    function = find_score(score) if isinstance(score, str) else score
    preset = PRESETS.get(score) if isinstance(score, str) else None
    if shaping is None:
        shaping = preset or Shaping(0.01, 1.0, 4.0)
    taken: Any = takes or _takes(function)
    return Reward(
        function,
        vectorised=vectorised,
        takes=taken,
        shaping=shaping,
        on_error=on_error,
        constraint=constraint,
    )


def _takes(function: Callable[[Any], Any]) -> str:
    """ "smiles" where the first parameter is annotated as text, or as a list of it."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        return "object"
    note = str(parameters[0].annotation) if parameters else ""
    return "smiles" if "str" in note else "object"
