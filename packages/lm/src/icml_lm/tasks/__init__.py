"""Synthetic tasks with exact answers, and the small models that are trained on them."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_lm.tasks.digit_ops import DigitOps as DigitOps
    from icml_lm.tasks.markov_world import MarkovWorld as MarkovWorld
    from icml_lm.tasks.rubric_world import RubricWorld as RubricWorld
    from icml_lm.tasks.vault import Vault as Vault

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "DigitOps": "digit_ops",
        "MarkovWorld": "markov_world",
        "RubricWorld": "rubric_world",
        "Vault": "vault",
    },
)
