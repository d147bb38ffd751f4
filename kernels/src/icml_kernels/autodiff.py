"""Derivatives above the raw operators, right under autograd, ``torch.func`` and ``torch.compile``.

One ``torch.autograd.Function`` in the ``setup_context`` style stands above each raw operator. Two
facts about PyTorch (measured with 2.15) shape what ``differentiable`` does:

- Dynamo refuses a Function with a ``jvp`` (which ``torch.func.hessian`` needs), and it traces into
  any other Function so that the second of two nested ``torch.func.grad`` is silently zero. Put into
  the graph as one call, both are right.
- Marking a call for that imports ``torch._dynamo``, so it is done when Dynamo first meets one.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

_callables: list[Callable[..., Any]] = []


def differentiable(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """Give the callable that applies an autograd Function.

    The class has ``generate_vmap_rule = True``, ``forward`` without a context, ``setup_context``,
    ``backward`` (which calls such a callable again where the derivative shall have a derivative) and
    ``jvp`` (written with calls of that kind and plain torch; PyTorch allows no ``torch.func``
    transform inside it). ``setup_context`` calls both ``save_for_backward`` and ``save_for_forward``.
    """

    # PyTorch binds the arguments to this signature at every call, and would derive it anew each time.
    function.forward.__signature__ = inspect.signature(function.forward)  # type: ignore[attr-defined]

    def in_graph(*args: Any) -> Any:
        _refuse_forward_over_forward(function.__name__)
        return function.apply(*args)

    def call(*args: Any) -> Any:
        if torch.compiler.is_compiling():
            _put_calls_into_the_graph()
        return in_graph(*args)

    _callables.append(in_graph)
    call.__name__ = call.__qualname__ = function.__name__
    call.__doc__ = function.__doc__
    return call


def _refuse_forward_over_forward(name: str) -> None:
    """Two nested forward-mode transforms lose the inner tangent in any custom Function: refuse them."""
    stack = torch._C._functorch.get_interpreter_stack()
    if stack is not None and sum(level.key() == torch._C._functorch.TransformType.Jvp for level in stack) > 1:
        raise RuntimeError(
            f"{name}: forward mode inside forward mode (jvp or jacfwd of jvp or jacfwd) is wrong with "
            "a custom Function; take torch.func.hessian, or jacfwd of jacrev"
        )


def _put_calls_into_the_graph() -> None:
    for function in _callables:
        torch.compiler.allow_in_graph(function)


# What torch.compiler.assume_constant_result sets: Dynamo runs the function itself while it traces.
# The decorator would import torch._dynamo here.
_put_calls_into_the_graph._dynamo_marked_constant = True  # type: ignore[attr-defined]


def zeros_for_none(tangents: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    """Replace the ``None`` that autograd passes for an absent gradient or tangent by zeros."""
    return [torch.zeros_like(x) if t is None else t for t, x in zip(tangents, like, strict=True)]
