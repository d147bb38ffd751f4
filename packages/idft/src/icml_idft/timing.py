"""Time of calls in this process, for the claims."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

Call = Callable[[], Any]


def race(calls: Mapping[str, Call], *, repeats: int) -> dict[str, float]:
    """Smallest time of each call in seconds, the calls taking turns."""
    seconds = dict.fromkeys(calls, math.inf)
    for call in calls.values():
        call()  # what is compiled and cached on first use does not count
    for _ in range(repeats):
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    return seconds
