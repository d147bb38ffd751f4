"""What the tests of this family share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile


@pytest.fixture
def peak_bytes() -> Callable[[Callable[[], Any]], int]:
    """Bytes of the tensors that live at once during a call, as torch's allocator reports them."""

    def measure(call: Callable[[], Any]) -> int:
        call()  # what is compiled and cached on first use does not count
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
            call()
        events = recorded.profiler.kineto_results.events()
        changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
        live = peak = 0
        for _, change in changes:
            live += change
            peak = max(peak, live)
        return peak

    return measure
