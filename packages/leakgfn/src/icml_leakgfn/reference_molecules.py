"""Molecules to compare with: the MOSES set (Polykovskiy et al. 2020), where its package is installed."""

from __future__ import annotations

import csv
import gzip
import importlib.util
from pathlib import Path
from typing import Literal

import numpy as np
from icml_core.errors import NeedsError

SPLITS = ("train", "test", "test_scaffolds")
_LONGEST_LINE = 10_000  # no SMILES of the set has more than a hundred characters


def moses_smiles(
    split: Literal["train", "test", "test_scaffolds"] = "train", limit: int | None = None, *, seed: int = 0
) -> list[str]:
    """SMILES of MOSES; a random sample where ``limit`` is given.

    The package ``molsets`` is never imported, only its file is read.

    Args:
        split: which part.
        limit: how many.
        seed: of the sample.

    Raises:
        NeedsError: molsets is not installed.
        ValueError: another split, a limit that is not positive, or a damaged file.
    """
    if split not in SPLITS:
        raise ValueError(f"split={split!r} is none of {', '.join(SPLITS)}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} must be positive")
    spec = importlib.util.find_spec("moses")
    homes = [] if spec is None else [Path(home) for home in spec.submodule_search_locations or ()]
    file = next((p for h in homes if (p := h / "dataset" / "data" / f"{split}.csv.gz").is_file()), None)
    if file is None:
        raise NeedsError("molsets", hint="its data alone are read: pip install --no-deps molsets")
    found = []
    with gzip.open(file, "rt", encoding="utf-8") as stream:
        rows = csv.reader(iter(lambda: stream.readline(_LONGEST_LINE), ""))
        header = next(rows, [])
        if "SMILES" not in header:
            raise ValueError(f"{file} has the columns {header}; expected SMILES among them")
        column = header.index("SMILES")
        found = [row[column] for row in rows if len(row) > column]
    if limit is None or limit >= len(found):
        return found
    chosen = np.random.default_rng(seed).choice(len(found), limit, replace=False)
    return [found[k] for k in np.sort(chosen)]
