"""A text task with exact labels that is on every machine: SciPy's docstrings, and which subpackage each is
from.

Each public name of eleven subpackages: its docstring up to "Parameters", without call signatures and
back-ticks; duplicates and texts below 40 characters are dropped. Classes are unbalanced, from 32 to some 330.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version

import numpy as np

from icml_loes.calibration import calibration_split

SUBPACKAGES = (
    "linalg", "stats", "signal", "optimize", "sparse", "special", "ndimage", "integrate", "interpolate",
    "spatial", "fft",
)  # fmt: skip
LEAST_CHARACTERS = 40

_SIGNATURE = re.compile(r"^\s*[\w.]+\([^\n]*\)\s*(->[^\n]*)?(\n|$)")
_CHANGING = re.compile(r" at 0x[0-9a-fA-F]+|\{'[^}]*'\}")
_HEADING = re.compile(r"\n\s*Parameters\s*\n")


@dataclass(frozen=True)
class TextTask:
    """Texts and labels.

    Attributes:
        texts: what the model reads.
        labels: class of each.
        classes: names of the classes.
        version: of SciPy, which the texts depend on.
    """

    texts: tuple[str, ...]
    labels: np.ndarray
    classes: tuple[str, ...]
    version: str

    def sample(self, n: int, seed: int) -> TextTask:
        """n texts at random, classes in proportion, in their order."""
        chosen, _ = calibration_split(self.labels, n, seed=seed, least_per_class=4)
        return TextTask(tuple(self.texts[i] for i in chosen), self.labels[chosen], self.classes, self.version)

    def length_terciles(self) -> np.ndarray:
        """0, 1 or 2: how long a text is, in characters."""
        lengths = np.array([len(t) for t in self.texts])
        return np.searchsorted(np.quantile(lengths, (1 / 3, 2 / 3)), lengths, side="right")


@cache
def scipy_docstrings() -> TextTask:
    """All texts, in the order of subpackages and names."""
    texts: list[str] = []
    labels: list[int] = []
    seen: set[str] = set()
    for label, subpackage in enumerate(SUBPACKAGES):
        module = import_module(f"scipy.{subpackage}")
        names = getattr(module, "__all__", None) or [n for n in dir(module) if not n.startswith("_")]
        for name in sorted(names):
            text = summary(inspect.getdoc(getattr(module, name, None)) or "")
            if len(text) >= LEAST_CHARACTERS and text not in seen:
                seen.add(text)
                texts.append(text)
                labels.append(label)
    return TextTask(tuple(texts), np.array(labels), SUBPACKAGES, version("scipy"))


def summary(docstring: str) -> str:
    """A docstring's prose before its parameters, on one line.

    Example:
        >>> summary("f(x)\\n\\nThe `square` of x.\\n\\nParameters\\n----------\\nx : float")
        'The square of x.'
    """
    text = _HEADING.split("\n" + docstring, maxsplit=1)[0]
    text = text.lstrip("\n")
    while match := _SIGNATURE.match(text):
        text = text[match.end() :].lstrip("\n")
        if not match.end():
            break
    # Addresses of objects and printed sets differ from process to process.
    return " ".join(_CHANGING.sub("", text).replace("`", "").split())
