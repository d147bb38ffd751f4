"""Triton kernels compiled ahead of time for a GPU that need not be there, and what they cost.

A module with Triton kernels lists the specialisations that it launches as :class:`Specialization`
records; :func:`compile_ahead` builds one for a target and reads its registers, spills and shared
memory. It does not work under ``TRITON_INTERPRET=1``, which replaces the compiler.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SM_80, SM_90, SM_120, GFX942 = "sm_80", "sm_90", "sm_120", "gfx942"
TARGETS = (SM_80, SM_90, SM_120, GFX942)


@dataclass(frozen=True)
class Specialization:
    """One way in which a kernel is launched.

    Attributes:
        kernel: a function decorated by ``triton.jit``.
        signature: Triton's type of every argument that is not a constant, such as ``{"x": "*fp32"}``.
        constants: value of every ``tl.constexpr`` argument.
        num_warps: warps of a program.
        divisible: arguments that are multiples of 16, as Triton finds out at a launch.
    """

    kernel: Any
    signature: dict[str, str]
    constants: dict[str, Any] = field(default_factory=dict)
    num_warps: int = 4
    divisible: tuple[str, ...] = ()

    def __str__(self) -> str:
        kind = "fp64" if "*fp64" in self.signature.values() else "fp32"
        blocks = "x".join(f"{v}" for k, v in self.constants.items() if k.startswith("BLOCK"))
        return "-".join([self.kernel.__name__.lstrip("_"), kind, blocks, *self.divisible])


@dataclass(frozen=True)
class Report:
    """What a compiled kernel uses; registers and spills are None where the tool chain does not say.

    Attributes:
        target: as in ``TARGETS``.
        registers: of a thread.
        spilled_bytes: local memory of a thread, in bytes.
        shared_bytes: shared memory of a program, in bytes.
        fused: whether products and sums may be fused.
        ttir: Triton's intermediate code.
    """

    target: str
    registers: int | None
    spilled_bytes: int | None
    shared_bytes: int
    fused: bool
    ttir: str = field(repr=False)


def compile_ahead(what: Specialization, target: str) -> Report:
    """Compile one specialisation for one target.

    Raises:
        ValueError: for a target that is not in ``TARGETS``.
        RuntimeError: under Triton's interpreter.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if target not in TARGETS:
        raise ValueError(f"target {target!r} is not one of {', '.join(TARGETS)}")
    if not isinstance(what.kernel, triton.runtime.jit.JITFunction):
        raise RuntimeError("kernels were loaded under TRITON_INTERPRET=1; compile them in another process")
    backend = (
        GPUTarget("hip", target, 64)
        if target == GFX942
        else GPUTarget("cuda", int(target.removeprefix("sm_")), 32)
    )
    names = what.kernel.arg_names
    signature = {name: what.signature.get(name, "constexpr") for name in names}
    # Triton marks pointers at multiples of 16 bytes, and integers that are such multiples, at every launch.
    multiples = [name for name in names if signature[name].startswith("*") or name in what.divisible]
    attributes = {(names.index(name),): [["tt.divisibility", 16]] for name in multiples}
    source = ASTSource(fn=what.kernel, signature=signature, constexprs=dict(what.constants), attrs=attributes)
    options = {"num_warps": what.num_warps, "enable_fp_fusion": True}
    compiled = triton.compile(source, target=backend, options=options)
    registers, spilled = _usage(compiled.asm["cubin"]) if "cubin" in compiled.asm else (None, None)
    return Report(
        target,
        registers,
        spilled,
        compiled.metadata.shared,
        compiled.metadata.enable_fp_fusion,
        compiled.asm["ttir"],
    )


def _usage(cubin: bytes) -> tuple[int, int]:
    """Registers and local memory of the only function in a cubin, by Triton's own cuobjdump."""
    import triton.backends.nvidia

    tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        listing = subprocess.run(
            [tool, "-res-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    found = re.findall(r"REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)", listing)
    if len(found) != 1:
        raise RuntimeError(f"cuobjdump -res-usage gave no single usage line:\n{listing}")
    registers, stack, local = map(int, found[0])
    return registers, stack + local
