"""Whether weights will fit, asked before they are allocated."""

from __future__ import annotations

import os
from pathlib import Path

import torch


def available_bytes(device: torch.device | str = "cpu") -> int | None:
    """Free memory of a device, or of the machine; None where the system does not say."""
    device = torch.device(device)
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(needed: int, device: torch.device | str, what: str) -> None:
    """Refuse what cannot fit.

    Raises:
        MemoryError: more bytes are needed than are free; names both.
    """
    free = available_bytes(device)
    if free is not None and needed > free:
        raise MemoryError(
            f"{what} needs {needed:,} bytes for its weights and {free:,} are free on {device}; "
            "ask for a smaller dtype, such as torch.bfloat16, or another device"
        )
