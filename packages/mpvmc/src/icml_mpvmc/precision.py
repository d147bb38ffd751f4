"""Names of precisions, what this machine can do with them, and calls that keep to them."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

DTYPES: dict[str, torch.dtype] = {
    "bf16": torch.bfloat16,
    "f16": torch.float16,
    "tf32": torch.float32,
    "f32": torch.float32,
    "f64": torch.float64,
}
_ALIASES = {
    "bfloat16": "bf16", "float16": "f16", "half": "f16", "float32": "f32", "float": "f32",
    "float64": "f64", "double": "f64",
}  # fmt: skip


def precision_name(dtype: str | torch.dtype, *, auto: bool = False) -> str:
    """One of ``DTYPES``, from a name or a torch dtype; ``"auto"`` too where that is allowed.

    Raises:
        ValueError: for anything else.
    """
    name = str(dtype).removeprefix("torch.")
    name = _ALIASES.get(name, name)
    if name in DTYPES or (auto and name == "auto"):
        return name
    allowed = [*DTYPES, *(["auto"] if auto else [])]
    raise ValueError(f"unknown dtype {dtype!r}; expected one of {', '.join(allowed)}")


def has_fast_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 matrices by instructions of its own (AVX512-BF16 or AMX)."""
    if not torch.backends.mkldnn.is_available():
        return False
    capability = torch.backends.cpu.get_cpu_capability()
    if "AVX512" not in capability and "AMX" not in capability:
        return False
    probe = getattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", None)
    flags = _cpu_flags()
    return bool(flags & {"avx512_bf16", "amx_bf16"}) if flags else bool(probe is not None and probe())


def _cpu_flags() -> set[str]:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("flags"):
                    return set(line.split(":", 1)[1].split())
    except OSError:
        return set()
    return set()


def check_precision(name: str, device: torch.device | str, *, force: bool = False) -> None:
    """Refuse what is slower than what it replaces.

    Raises:
        ValueError: float16 on a CPU without ``force``.
    """
    if torch.device(device).type != "cpu" or force:
        return
    if name == "f16":
        raise ValueError(
            "dtype='f16' on a CPU is 15 to 25 times as slow as f64 where no instruction multiplies float16 "
            "matrices; use 'bf16' or 'f32', or pass force=True"
        )
    if name == "bf16" and not has_fast_bf16():
        warnings.warn(
            "this CPU has no instructions for bfloat16 products, which are slower here than float32; use "
            "'f32'",
            stacklevel=3,
        )


def ladder(device: torch.device | str) -> tuple[str, ...]:
    """The precisions that the automatic policy goes through, from the fastest: bf16, f16 (GPU), f32, f64."""
    if torch.device(device).type == "cuda":
        return ("bf16", "f16", "f32", "f64")
    return ("bf16", "f32", "f64") if has_fast_bf16() else ("f32", "f64")


@contextmanager
def arithmetic(name: str, device: torch.device | str) -> Iterator[None]:
    """Run the body with TF32 products exactly where the precision is called ``"tf32"``.

    PyTorch's settings are global; they are put back.
    """
    if torch.device(device).type != "cuda":
        yield
        return
    wanted = "high" if name == "tf32" else "highest"
    before, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(wanted)
    torch.backends.cudnn.allow_tf32 = name == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
        torch.backends.cudnn.allow_tf32 = cudnn


def device_of(model: Any) -> torch.device:
    """Where a module's first parameter lies; the CPU where it has none."""
    if isinstance(model, torch.nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            return tensor.device
    return torch.device("cpu")
