"""Memory of a call in this process, for calls that are too small for the peak of the whole process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile


def peak_bytes(call: Callable[[], Any], device: torch.device | str = "cpu") -> int:
    """Bytes of the tensors that a call holds at once, beyond those alive before it.

    The call is made twice: what is compiled and cached on first use does not count.

    Example:
        >>> peak_bytes(lambda: torch.ones(1000) + torch.ones(1000))
        12000
    """
    call()
    if torch.device(device).type != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        call()
        return torch.cuda.max_memory_allocated(device) - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        call()
    events = recorded.profiler.kineto_results.events()  # type: ignore[union-attr]
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    live = peak = 0
    for _, change in changes:
        live += change
        peak = max(peak, live)
    return peak
