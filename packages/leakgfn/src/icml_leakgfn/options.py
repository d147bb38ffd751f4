"""What the sampler's options may be; each error names the option, what was given and what is expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from icml_leakgfn.environments import as_budget


def check_shares(**shares: float) -> None:
    """Probabilities and shares.

    Raises:
        ValueError: one outside 0 to 1.
    """
    for name, value in shares.items():
        if not 0 <= value <= 1:
            raise ValueError(f"{name}={value} must lie in 0 to 1")


def budget_range(budgets: Sequence[int] | None, env: Any) -> tuple[int, int]:
    """Least and largest L_max of trajectories; by default the environment's alone.

    Raises:
        ValueError: a range that falls, or leaves 1 to the horizon; or a world whose full space has no object
            where a shorter limit makes one.
    """
    if budgets is None:
        return env.max_length, env.max_length
    low, high = budgets
    if low < high and env.truncation == "cap" and getattr(env, "stop", "capped") == "closed":
        raise ValueError(
            "truncation='cap' with stop='closed' makes objects that are none under another limit: "
            "no chemical flow serves several budgets. Use stop='capped', or one budget"
        )
    as_budget([low, high], env, 2)
    if low > high:
        raise ValueError(f"budgets={(low, high)} must rise")
    return low, high


def further_budgets(hindsight: int | None, several: bool) -> int:
    """Under how many further budgets a trajectory is learnt.

    Raises:
        ValueError: a negative number, or a positive one where there is one budget alone.
    """
    if hindsight is None:
        return int(several)
    if hindsight < 0 or (hindsight and not several):
        raise ValueError(
            f"hindsight={hindsight}: further budgets need loss='leak' and budgets=(least, largest)"
        )
    return hindsight
