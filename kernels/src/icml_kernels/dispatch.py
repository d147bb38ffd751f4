"""Raw operators of the namespace ``icml``, and the choice of the code that serves each call.

An operator has up to three implementations: the reference (plain torch, any device), a numba one
(CPU) and a Triton one (CUDA and ROCm). PyTorch's dispatcher sees the device; the environment
variable ``ICML_KERNELS`` overrides it: ``auto`` (the default), ``reference`` (the definition,
everywhere) or ``triton`` (also for CPU tensors, which needs Triton's interpreter).

The operators are registered with ``torch.library.Library`` and not with ``custom_op``: the first
call of a ``custom_op`` imports the whole of ``torch._dynamo``, which takes longer than
``import torch`` itself.
"""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.metadata import version
from typing import Any

import torch
from torch import Tensor

ROUTES = ("auto", "reference", "triton")
NAMESPACE = "icml"

_library = torch.library.Library(NAMESPACE, "FRAGMENT")


def route() -> str:
    """The route asked for by ``ICML_KERNELS``, read at every call.

    Raises:
        ValueError: where the variable has another value than those of ``ROUTES``.
    """
    asked = os.environ.get("ICML_KERNELS", "auto")
    if asked not in ROUTES:
        raise ValueError(f"ICML_KERNELS={asked!r} is not one of {', '.join(ROUTES)}; unset it or correct it")
    return asked


def routes() -> dict[str, str]:
    """What runs operators on each kind of device here, in words: ``{"cpu": "numba 0.68.1", "cuda": ...}``.

    Raises:
        ValueError: where ``ICML_KERNELS`` has another value than those of ``ROUTES``.
    """
    asked = route()
    if asked == "reference":
        return dict.fromkeys(("cpu", "cuda"), "plain torch, as ICML_KERNELS=reference asks")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cpu = f"numba {version('numba')}" if _numba_works() else "plain torch; numba cannot be imported"
        lacking = "plain torch; Triton or a C compiler is missing"
        cuda = f"Triton {version('triton')}" if _triton_works() else lacking
    if asked == "triton":
        cpu = "Triton's interpreter, as ICML_KERNELS=triton asks"
    return {"cpu": cpu, "cuda": cuda if torch.cuda.is_available() else f"{cuda}; no device here"}


def raw_op(
    name: str,
    reference: Callable[..., Any],
    *,
    fake: Callable[..., Any],
    cpu: str | None = None,
    cuda: str | None = None,
) -> Callable[..., Any]:
    """Register the operator ``icml::<name>`` and give the callable that runs it.

    The operator has no derivative of its own; ``icml_kernels.autodiff.differentiable`` stands above
    it. A vmapped call loops over the batch.

    Args:
        name: the operator's name; its schema is public from then on.
        reference: the definition in plain torch. Its annotations (``Tensor``, ``Tensor | None``,
            ``int``, ``float``, ``bool``, ``str``, tuples of ``Tensor`` as result) give the schema.
            It changes no input and returns none.
        fake: shapes and dtypes of the results, by ``torch.empty``, from the same arguments.
        cpu: import string ``module:function`` of the numba implementation, loaded on the first CPU
            call; it takes the same arguments.
        cuda: the same for the Triton implementation.
    """
    qualified = f"{NAMESPACE}::{name}"
    schema = torch.library.infer_schema(reference, mutates_args=())
    _library.define(name + schema, tags=(torch.Tag.pt2_compliant_tag,))
    op = getattr(getattr(torch.ops, NAMESPACE), name).default

    def serve(device: str) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            if torch.is_grad_enabled() and any(isinstance(a, Tensor) and a.requires_grad for a in args):
                raise RuntimeError(
                    f"{qualified} is a raw operator without a derivative; call the public function of "
                    "icml_kernels, or detach its inputs"
                )
            return _without_dynamo(_implementation(device, route(), reference, cpu, cuda))(*args)

        return run

    _library.impl(name, serve("other"), "CompositeExplicitAutograd")
    _library.impl(name, serve("cpu"), "CPU")
    _library.impl(name, serve("cuda"), "CUDA")
    torch.library.register_fake(qualified, fake, lib=_library)
    torch.library.register_vmap(qualified, _loop_over_batch(op), lib=_library)
    return op


@cache
def _implementation(
    device: str, asked: str, reference: Callable[..., Any], cpu: str | None, cuda: str | None
) -> Callable[..., Any]:
    if asked == "reference":
        return reference
    if asked == "triton" and device == "cpu" and cuda is not None:
        if os.environ.get("TRITON_INTERPRET") != "1":
            raise RuntimeError(
                "ICML_KERNELS=triton with CPU tensors needs Triton's interpreter: set TRITON_INTERPRET=1 "
                "before Python starts, or use ICML_KERNELS=auto"
            )
        return _load(cuda)
    if device == "cpu" and cpu is not None:
        return _load(cpu) if _numba_works() else reference
    if device == "cuda" and cuda is not None:
        return _load(cuda) if _triton_works() else reference
    return reference


def _load(target: str) -> Callable[..., Any]:
    module, _, function = target.partition(":")
    return getattr(import_module(module), function)


@cache
def _numba_works() -> bool:
    try:
        import_module("numba")
    except ImportError as error:
        warnings.warn(f"numba cannot be imported ({error}); icml-kernels runs plain torch", stacklevel=2)
        return False
    return True


@cache
def _triton_works() -> bool:
    """Triton builds its launcher with a C compiler, so that both must be there."""
    try:
        import_module("triton")
    except ImportError as error:
        warnings.warn(f"Triton cannot be imported ({error}); icml-kernels runs plain torch", stacklevel=2)
        return False
    if os.name != "nt" and not (os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")):
        warnings.warn("Triton needs a C compiler and found none; icml-kernels runs plain torch", stacklevel=2)
        return False
    return True


def _without_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Between two compiled graphs Dynamo would trace into the implementation; keep it out, if it is there."""
    return _disabled(function) if "torch._dynamo" in sys.modules else function


@cache
def _disabled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compiler.disable(function)


def _loop_over_batch(op: Callable[..., Any]) -> Callable[..., Any]:
    def rule(info: Any, in_dims: tuple[Any, ...], *args: Any) -> tuple[Any, Any]:
        results = [
            op(*(a.select(d, b) if isinstance(d, int) else a for a, d in zip(args, in_dims, strict=True)))
            for b in range(info.batch_size)
        ]
        if isinstance(results[0], Tensor):
            return torch.stack(results), 0
        return tuple(torch.stack(part) for part in zip(*results, strict=True)), (0,) * len(results[0])

    return rule
