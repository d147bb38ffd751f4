"""Time and memory of calls in this process, for the claims."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from torch.profiler import ProfilerActivity, profile

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


def peak_bytes(call: Call) -> int:
    """Bytes of the tensors on the CPU that a call has alive at once, beyond those before it."""
    call()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak
