"""The process in which ``step_measurement.peak_growth`` measures: prints bytes as JSON."""

from __future__ import annotations

import ctypes
import gc
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

from icml_flashschnet.step_measurement import Step, StepCase

STEPS = 3


def main(request: str) -> None:
    """Measure each route of a JSON request and print its growth in bytes."""
    wanted = json.loads(request)
    routes, threads = wanted.pop("routes"), wanted.pop("threads")
    torch.set_num_threads(threads)
    case = StepCase(**wanted)
    tiny = replace(case, n_beads=12, n_replicas=1)
    for step in tiny.steps(*routes).values():
        step()
    steps = case.steps(*routes)
    print(json.dumps({route: growth(step, case.device) for route, step in steps.items()}))


def growth(step: Step, device: str) -> int:
    """Bytes by which this process, or the GPU's allocator, grows at its peak during a few steps."""
    return _device_growth(step) if device.startswith("cuda") else _resident_growth(step)


def _device_growth(step: Step) -> int:
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    for _ in range(STEPS):
        step()
    return torch.cuda.max_memory_allocated() - before


def _resident_growth(step: Step) -> int:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew at the present size
    before = _status("VmRSS")
    for _ in range(STEPS):
        step()
    return _status("VmHWM") - before


def _status(key: str) -> int:
    """A size from the kernel's account of this process, bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{key}:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


if __name__ == "__main__":
    main(sys.argv[1])
