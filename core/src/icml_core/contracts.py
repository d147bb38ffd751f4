"""The contracts: what a component may be plugged into, each small and tested (:mod:`icml_core.testing`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

from icml_core.errors import UnknownNameError


@runtime_checkable
class Module(Protocol):
    """A ``torch.nn.Module``.

    Tested: every parameter gets a gradient, the state dict goes there and back, float64 works.
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def parameters(self) -> Iterator[Any]: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> Any: ...


@runtime_checkable
class TorchOptimizer(Protocol):
    """A ``torch.optim.Optimizer``: the component's target is called as ``target(params, **options)``.

    Tested: state dict, parameter groups, closure, parameters without gradient, learning-rate
    schedulers, and that the loss of a probe problem falls.
    """

    param_groups: list[dict[str, Any]]

    def step(self, closure: Callable[[], Any] | None = None) -> Any: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...
    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None: ...


@runtime_checkable
class Loss(Protocol):
    """A callable that gives a scalar tensor. Tested: its gradient against finite differences."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...


@runtime_checkable
class Trainer(Protocol):
    """Fits something: ``fit(...)`` returns the trainer or its result.

    Tested: stopped half-way and resumed from its checkpoint, it gives the same result.
    """

    def fit(self, *args: Any, **kwargs: Any) -> Any: ...


@runtime_checkable
class Sampler(Protocol):
    """Draws ``n`` samples: ``sample(n, *, seed, ...)``.

    Tested: ``n`` of 0 and 1, that the result has length ``n``, the same seed gives the same samples
    and another seed others.
    """

    def sample(self, n: int, *, seed: int, **options: Any) -> Any: ...


@runtime_checkable
class CausalLM(Protocol):
    """A language model in the calling convention of Hugging Face transformers.

    Tested: a batch gives what each sequence gives alone, left padding included.
    """

    def __call__(self, input_ids: Any, attention_mask: Any = None, **kwargs: Any) -> Any: ...


@runtime_checkable
class Decoder(Protocol):
    """Generates token ids: ``generate(input_ids, ...)`` as in Hugging Face transformers.

    Tested: the prompt is kept, a batch equals its members alone.
    """

    def generate(self, input_ids: Any, **kwargs: Any) -> Any: ...


class Solution(Protocol):
    """What a solver returns: it can be verified against the problem without trusting the solver."""

    def verify(self, problem: Any) -> None:
        """Return None where the solution is right; raise ``ValueError`` saying what is wrong where not."""


@runtime_checkable
class Solver(Protocol):
    """Turns a problem into a :class:`Solution`.

    Tested: ``verify`` accepts the solution and refuses the corrupted one; bad input raises.
    """

    def solve(self, problem: Any, **options: Any) -> Solution: ...


@runtime_checkable
class Evaluator(Protocol):
    """Gives named figures of a subject. Tested: the same figures each time, serialisable as JSON."""

    def evaluate(self, subject: Any, **options: Any) -> Mapping[str, float]: ...


CONTRACTS: Mapping[str, type] = {
    contract.__name__: contract
    for contract in (
        Module, TorchOptimizer, Loss, Trainer, Sampler, CausalLM, Decoder, Solver, Evaluator,
    )
}  # fmt: skip


def check_contract_name(name: str) -> None:
    """Refuse a name that is no contract.

    Raises:
        UnknownNameError: names the nearest.
    """
    if name not in CONTRACTS:
        from icml_core.registry import nearest

        near = nearest(name, CONTRACTS, count=1) or nearest(name.capitalize(), CONTRACTS, count=1)
        hint = f"did you mean {near[0]}?" if near else f"the contracts are {', '.join(CONTRACTS)}"
        raise UnknownNameError(f"unknown contract {name!r}; {hint}")
