"""What every operator is tested with: one table of cases, run over every route, and its derivatives.

A case holds the arguments of a public function in float64. ``check_route`` compares value, first and
second derivatives under one route with the reference in float64; ``check_raw_ops`` runs PyTorch's own
``opcheck`` on every raw operator that the function reaches; ``check_derivatives`` compares with finite
differences and across autograd, ``torch.func`` and ``torch.compile``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from icml_kernels.dispatch import NAMESPACE

Arguments = tuple[Any, ...]
Function = Callable[..., Any]


@dataclass(frozen=True)
class Case:
    """One row of an operator's table of cases.

    Attributes:
        name: what is particular about it; the test's id.
        arguments: builds the arguments of the public function, floating tensors in float64 on the CPU.
        options: keyword arguments.
        large: too much work for Triton's interpreter.
    """

    name: str
    arguments: Callable[[], Arguments]
    options: tuple[tuple[str, Any], ...] = ()
    large: bool = False

    def bind(self, function: Function) -> Function:
        """The function with this case's options filled in."""
        options = dict(self.options)
        return lambda *arguments: function(*arguments, **options)

    def __str__(self) -> str:
        return self.name


@contextmanager
def use_route(route: str) -> Iterator[None]:
    """Set ``ICML_KERNELS`` inside the block."""
    before = os.environ.get("ICML_KERNELS")
    os.environ["ICML_KERNELS"] = route
    try:
        yield
    finally:
        if before is None:
            del os.environ["ICML_KERNELS"]
        else:
            os.environ["ICML_KERNELS"] = before


def cast(arguments: Arguments, dtype: torch.dtype) -> Arguments:
    """The arguments with every floating tensor in another precision."""
    return tuple(a.to(dtype) if _is_float(a) else a for a in arguments)


def move(arguments: Arguments, device: str) -> Arguments:
    """The arguments with every tensor, and whatever else has a ``to``, on another device."""
    return tuple(a.to(device) if hasattr(a, "to") else a for a in arguments)


def derivatives(function: Function, arguments: Arguments, order: int = 2) -> list[Tensor]:
    """Value, gradients by every floating argument, gradients of those: of contractions with fixed tensors."""
    inputs = [a.detach().requires_grad_() if _is_float(a) else a for a in arguments]
    leaves = [a for a in inputs if _is_float(a)]
    level = _tuple(function(*inputs))
    results = [t.detach() for t in level]
    for derivative in range(order):
        active = [t for t in level if t.requires_grad]
        if not active:
            break
        cotangents = [_fixed(t) for t in active]
        level = torch.autograd.grad(
            active, leaves, cotangents, create_graph=derivative + 1 < order, materialize_grads=True
        )
        results += [t.detach() for t in level]
    return results


def check_route(
    function: Function,
    arguments: Arguments,
    *,
    route: str = "auto",
    dtype: torch.dtype = torch.float64,
    device: str = "cpu",
    order: int = 2,
    tolerance: float | None = None,
) -> None:
    """Value and derivatives under a route equal the reference's in float64.

    Args:
        function: the public function.
        arguments: of a case.
        route: one of ``dispatch.ROUTES``.
        dtype: precision under the route.
        device: where the route runs; the reference runs on the CPU.
        order: highest derivative.
        tolerance: largest difference allowed, relative to the largest entry of each tensor; 1e-11 in
            float64 and 2e-5 in float32 by default.

    Raises:
        AssertionError: where a tensor differs.
    """
    tolerance = tolerance or {torch.float64: 1e-11, torch.float32: 2e-5}[dtype]
    # The reference sees the same rounded inputs, so that only the arithmetic differs.
    rounded = cast(arguments, dtype)
    with use_route("reference"):
        expected = derivatives(function, cast(rounded, torch.float64), order)
    with use_route(route):
        actual = [t.cpu() for t in derivatives(function, move(rounded, device), order)]
    assert len(actual) == len(expected)
    for position, (a, e) in enumerate(zip(actual, expected, strict=True)):
        assert (a.dtype, a.shape) == (dtype, e.shape)
        scale = float(e.abs().max()) if e.numel() else 0.0
        error = float((a.double() - e).abs().max()) if e.numel() else 0.0
        assert error <= tolerance * max(scale, 1e-30), (
            f"result {position} of shape {list(e.shape)} differs by {error:.3g} of {scale:.3g}"
        )


def check_raw_ops(function: Function, arguments: Arguments, order: int = 2) -> set[str]:
    """``torch.library.opcheck`` on every operator of the namespace that value and derivatives call.

    Returns:
        The names of the operators checked.
    """
    with _Recorder() as recorder:
        derivatives(function, arguments, order)
    for op, (args, kwargs) in recorder.calls.items():
        torch.library.opcheck(op, args, kwargs)
    return {op.name() for op in recorder.calls}


def check_derivatives(
    function: Function,
    arguments: Arguments,
    *,
    by: Sequence[int] | None = None,
    forward_mode: bool = True,
) -> None:
    """Finite differences (first and second order), ``torch.func`` and autograd agree, in float64.

    Args:
        function: the public function.
        arguments: of a small case.
        by: positions of the arguments to differentiate; all floating ones by default.
        forward_mode: also check ``jvp`` and ``torch.func.hessian``.

    Raises:
        AssertionError: where two derivatives differ.
    """
    positions = tuple(by) if by is not None else tuple(k for k, a in enumerate(arguments) if _is_float(a))
    loss = _scalar(function, arguments)
    leaves = [arguments[k].detach().clone().requires_grad_() for k in positions]

    def partial(*values: Tensor) -> Any:
        return function(*_filled(arguments, positions, values))

    assert torch.autograd.gradcheck(partial, leaves, check_forward_ad=forward_mode)
    assert torch.autograd.gradgradcheck(partial, leaves, check_fwd_over_rev=forward_mode)

    expected = torch.autograd.grad(
        loss(*_filled(arguments, positions, leaves)), leaves, materialize_grads=True
    )
    values = [leaf.detach() for leaf in leaves]
    for k, value, gradient in zip(positions, values, expected, strict=True):

        def along(v: Tensor, k: int = k) -> Tensor:
            return loss(*_filled(arguments, (k,), (v,)))

        torch.testing.assert_close(torch.func.grad(along)(value), gradient)
        batch = torch.stack([value, 0.5 * value, value.flip(0)])
        one_by_one = torch.stack([torch.func.grad(along)(v) for v in batch])
        torch.testing.assert_close(torch.func.vmap(torch.func.grad(along))(batch), one_by_one)
        by_reverse = torch.func.jacrev(torch.func.jacrev(along))(value)
        if forward_mode:
            torch.testing.assert_close(torch.func.hessian(along)(value), by_reverse)


def check_compiled(
    function: Function, arguments: Arguments, *, by: int = 0, backend: str = "aot_eager"
) -> None:
    """``torch.compile(fullgraph=True)`` gives the eager value, gradient and second derivative.

    Args:
        function: the public function.
        arguments: of a small case.
        by: position of the argument to differentiate.
        backend: of ``torch.compile``; what is tested is the tracing.

    Raises:
        AssertionError: where a compiled result differs from the eager one.
    """
    # The closures below have the same code for every op, and Dynamo counts its recompilations by code.
    torch._dynamo.reset()
    loss = _scalar(function, arguments)

    def along(v: Tensor) -> Tensor:
        return loss(*_filled(arguments, (by,), (v,)))

    def compiled(f: Function) -> Function:
        return torch.compile(f, fullgraph=True, backend=backend)

    value = arguments[by].detach()
    torch.testing.assert_close(compiled(along)(value), along(value))
    first = torch.func.grad(along)
    torch.testing.assert_close(compiled(first)(value), first(value))
    leaf = value.clone().requires_grad_()
    compiled(along)(leaf).backward()
    torch.testing.assert_close(leaf.grad, first(value))
    second = torch.func.grad(lambda v: (first(v) ** 2).sum())
    torch.testing.assert_close(compiled(second)(value), second(value))


class _Recorder(TorchDispatchMode):
    """Keeps the first call of each operator of the namespace."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, tuple[tuple[Any, ...], dict[str, Any]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == NAMESPACE and func not in self.calls:
            detached = tuple(a.detach() if isinstance(a, Tensor) else a for a in args)
            self.calls[func] = (detached, dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _is_float(a: Any) -> bool:
    return isinstance(a, Tensor) and a.is_floating_point()


def _tuple(value: Any) -> tuple[Tensor, ...]:
    return (value,) if isinstance(value, Tensor) else tuple(value)


def _fixed(like: Tensor) -> Tensor:
    """A tensor of numbers in -1..1 that depends on the shape alone."""
    generator = torch.Generator().manual_seed(like.numel())
    numbers = torch.rand(like.shape, generator=generator, dtype=torch.float64) * 2 - 1
    return numbers.to(like.device, like.dtype)


def _filled(arguments: Arguments, positions: Sequence[int], values: Sequence[Any]) -> list[Any]:
    filled = list(arguments)
    for position, value in zip(positions, values, strict=True):
        filled[position] = value
    return filled


def _scalar(function: Function, arguments: Arguments) -> Function:
    """The function's results, squared and contracted with fixed tensors: its Hessian is not zero."""
    weights = [_fixed(t) for t in _tuple(function(*arguments))]
    return lambda *values: sum(
        (t * t * w).sum() for t, w in zip(_tuple(function(*values)), weights, strict=True)
    )
