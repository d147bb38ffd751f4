"""Every rule by its name: ``make_rule("ccd", d=3, V=4)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from icml_ccd.coherent_plus import CCDPlus
from icml_ccd.coherent_rules import CCD, CCDDS
from icml_ccd.local_rules import AgreementRule, LocalRule, ThresholdRule
from icml_ccd.released_rule import CCDReleased
from icml_ccd.step_state import Rule

confidence, neg_entropy, margin, left_to_right, random = (
    partial(LocalRule, name) for name in LocalRule.NAMES
)
threshold, klass = ThresholdRule, AgreementRule
ccd, ccd_ds, ccd_released, ccd_plus = CCD, CCDDS, CCDReleased, CCDPlus

RULES: dict[str, Callable[..., Any]] = {
    "confidence": confidence,
    "neg_entropy": neg_entropy,
    "margin": margin,
    "left_to_right": left_to_right,
    "random": random,
    "threshold": threshold,
    "klass": klass,
    "ccd": ccd,
    "ccd_ds": ccd_ds,
    "ccd_released": ccd_released,
    "ccd_plus": ccd_plus,
}
"""Name → what makes the rule."""


def make_rule(name: str, /, **options: Any) -> Rule:
    """A rule by its name.

    Args:
        name: one of ``RULES``.
        options: of that rule.

    Raises:
        ValueError: an unknown name or option; an option out of range.

    Example:
        >>> make_rule("ccd", d=2).settings()
        {'d': 2, 'V': 4, 'warmup': 2, 'least': 2}
    """
    if name not in RULES:
        raise ValueError(f"there is no rule {name!r}; there are {', '.join(RULES)}")
    known = set(inspect.signature(RULES[name]).parameters)
    if unknown := sorted(set(options) - known):
        takes = f"takes {', '.join(sorted(known))}" if known else "takes no options"
        raise ValueError(f"the rule {name!r} {takes}, not {', '.join(unknown)}")
    rule: Rule = RULES[name](**options)
    return rule
