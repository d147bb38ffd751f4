"""Learning-rate schedules: a factor of the peak rate by step, after a linear warm-up."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[float], float]
"""Share of the steps done after warm-up, in [0, 1) → factor."""

SCHEDULES: dict[str, Schedule] = {
    "constant": lambda done: 1.0,
    "linear": lambda done: 1.0 - done,
    "cosine": lambda done: 0.5 * (1.0 + math.cos(math.pi * done)),
}


def factor(schedule: str | Schedule, step: int, steps: int, warmup: int = 0) -> float:
    """Factor of the peak rate at ``step`` of ``steps``: (step + 1) / warmup first, then the schedule.

    Raises:
        ValueError: an unknown schedule.
    """
    if step < warmup:
        return (step + 1) / warmup
    rule = SCHEDULES.get(schedule) if isinstance(schedule, str) else schedule
    if rule is None:
        raise ValueError(f"there is no schedule {schedule!r}; there are {', '.join(SCHEDULES)}")
    return float(rule((step - warmup) / max(1, steps - warmup)))
