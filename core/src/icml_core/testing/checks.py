"""What each contract means, as checks: each takes ``make(seed) -> Example`` and raises where it is broken."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from icml_core.components import Example
from icml_core.testing.equality import difference
from icml_core.testing.optimizers import CHECKS as OPTIMIZER_CHECKS

Make: TypeAlias = Callable[..., Example]
Check: TypeAlias = Callable[[Make], None]


def check_result(make: Make) -> None:
    """The result of the example's call is right."""
    example = make()
    example.check(_outcome(example))


def check_same_seed(make: Make) -> None:
    """The same seed gives the same result, in two examples of their own."""
    found = difference(_outcome(make()), _outcome(make()))
    assert found is None, f"the same seed gives two results: {found}"


def check_inputs_untouched(make: Make) -> None:
    """A call leaves its inputs as they were."""
    example = make()
    inputs, before = example.inputs(), example.inputs()
    example.call(example.build(), inputs)
    found = difference(inputs, before)
    assert found is None, f"the call changed its inputs: {found}"


def check_global_state(make: Make) -> None:
    """Neither building nor calling touches the global random state or torch's global settings."""
    example = make()
    _outcome(example)  # imports that a first call makes may draw
    before = _global_state()
    _outcome(example)
    found = difference(_global_state(), before)
    assert found is None, f"global state was changed: {found}"


def check_bad_input(make: Make) -> None:
    """Bad input raises ValueError or TypeError with a text, where the example has some."""
    example = make()
    if example.bad is None:
        return
    try:
        example.call(example.build(), example.bad())
    except (ValueError, TypeError) as error:
        assert str(error).strip(), f"{type(error).__name__} without a message"
    else:
        raise AssertionError("bad input was accepted")


def check_gradients(make: Make) -> None:
    """Every parameter that wants a gradient gets one that is finite."""
    module, loss = _loss(make())
    loss.backward()
    missing = [n for n, p in module.named_parameters() if p.requires_grad and p.grad is None]
    assert not missing, f"no gradient reaches {', '.join(missing)}"
    wild = [
        n for n, p in module.named_parameters() if p.grad is not None and not bool(p.grad.isfinite().all())
    ]
    assert not wild, f"the gradient of {', '.join(wild)} is not finite"


def check_state_dict(make: Make) -> None:
    """Loading the state dict of one instance into another makes it give the same result."""
    example = make()
    module = example.build()
    other = make(1).build()
    other.load_state_dict(module.state_dict())
    found = difference(dict(module.state_dict()), dict(other.state_dict()))
    assert found is None, f"the state dict does not go there and back: {found}"
    found = difference(
        example.call(module, example.inputs()), example.call(other, example.inputs()), tolerance=1e-6
    )
    assert found is None, f"the loaded module gives another result: {found}"


def check_float64(make: Make) -> None:
    """In double precision the result is double, and close to the single-precision one."""
    import torch

    example = make()
    single = example.call(example.build(), example.inputs())
    module = example.build().double()
    double = example.call(module, _to_double(example.inputs()))
    for got, wanted in zip(_tensors(double), _tensors(single), strict=True):
        if wanted.is_floating_point():
            assert got.dtype == torch.float64, f"a double input gives {got.dtype}"
            torch.testing.assert_close(got, wanted.double(), rtol=1e-3, atol=1e-4, check_dtype=False)


def check_loss_gradient(make: Make) -> None:
    """The gradient to every floating input agrees with central differences in double precision."""
    import torch

    example = make()
    loss, inputs = example.build(), _to_double(example.inputs())
    if isinstance(loss, torch.nn.Module):
        loss = loss.double()
    wanted = [t for t in _tensors(inputs) if t.is_floating_point()]
    for tensor in wanted:
        tensor.requires_grad_(True)
    value = example.call(loss, inputs)
    assert value.ndim == 0, f"a loss is a scalar, got shape {list(value.shape)}"
    gradients = torch.autograd.grad(value, wanted, allow_unused=True)
    generator = torch.Generator().manual_seed(0)
    step = 1e-6
    for tensor, gradient in zip(wanted, gradients, strict=True):
        direction = torch.randn(tensor.shape, generator=generator, dtype=torch.float64)
        with torch.no_grad():
            tensor += step * direction
            up = float(example.call(loss, inputs))
            tensor -= 2 * step * direction
            down = float(example.call(loss, inputs))
            tensor += step * direction
        slope = 0.0 if gradient is None else float((gradient * direction).sum())
        wanted_slope = (up - down) / (2 * step)
        assert math.isclose(slope, wanted_slope, rel_tol=1e-4, abs_tol=1e-7), (
            f"{slope} against {wanted_slope}"
        )


def check_resumed(make: Make) -> None:
    """Stopped half-way and continued from its checkpoint, it gives the result of the whole."""
    example = make()
    if example.resumed is None:
        return
    whole = _outcome(example)
    with tempfile.TemporaryDirectory() as directory:
        halves = example.resumed(example.build(), example.inputs(), Path(directory))
    found = difference(whole, halves)
    assert found is None, f"resuming gives another result: {found}"


def check_can_resume(make: Make) -> None:
    """A Trainer has ``fit``, and its example says how to resume."""
    example = make()
    assert callable(getattr(example.build(), "fit", None)), "a Trainer needs fit"
    assert example.resumed is not None, "a Trainer's example needs resumed"


def check_sample_counts(make: Make) -> None:
    """``sample`` gives as many as asked for, also none and one."""
    sampler = make().build()
    for n in (0, 1, 2):
        drawn = sampler.sample(n, seed=5)
        assert len(drawn) == n, f"sample({n}) has length {len(drawn)}"


def check_sample_seeds(make: Make) -> None:
    """The same seed gives the same samples, another seed others."""
    first, again, other = (make().build().sample(2, seed=seed) for seed in (5, 5, 6))
    found = difference(first, again)
    assert found is None, f"the same seed gives other samples: {found}"
    assert difference(first, other) is not None, "another seed gives the same samples"


def check_verify_accepts(make: Make) -> None:
    """``verify`` accepts the solution."""
    example = make()
    problem = example.inputs()
    example.call(example.build(), problem).verify(problem)


def check_verify_refuses(make: Make) -> None:
    """``verify`` refuses the corrupted solution, saying why."""
    example = make()
    assert example.corrupt is not None, "a Solver's example needs corrupt"
    problem = example.inputs()
    corrupted = example.corrupt(example.call(example.build(), problem))
    try:
        corrupted.verify(problem)
    except ValueError as error:
        assert str(error).strip(), "verify refuses without saying why"
    else:
        raise AssertionError("verify accepts a corrupted solution")


def check_solver_bad_input(make: Make) -> None:
    """A Solver's example has bad input."""
    assert make().bad is not None, "a Solver's example needs bad"


def check_figures(make: Make) -> None:
    """The figures are finite or null numbers under names, and JSON takes them."""
    figures = _outcome(make())
    assert isinstance(figures, Mapping), f"figures must be a mapping, got {type(figures).__name__}"
    json.dumps(dict(figures), allow_nan=False)


def check_batch(make: Make) -> None:
    """Logits of a left-padded batch equal those of each sequence alone."""
    import torch

    example = make()
    model, inputs = example.build(), example.inputs()
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    together = model(input_ids=ids, attention_mask=mask).logits
    for row in range(len(ids)):
        kept = mask[row].bool()
        alone = model(input_ids=ids[row, kept][None]).logits[0]
        torch.testing.assert_close(together[row, kept], alone, rtol=1e-3, atol=1e-3)


def check_generate(make: Make) -> None:
    """``generate`` keeps the prompt, and a batch of equal prompts gives equal continuations."""
    import torch

    example = make()
    decoder, inputs = example.build(), example.inputs()
    ids = inputs["input_ids"][:1]
    alone = decoder.generate(ids, max_new_tokens=4)
    assert torch.equal(alone[:, : ids.shape[1]], ids), "the prompt was changed"
    both = decoder.generate(ids.repeat(2, 1), max_new_tokens=4)
    assert torch.equal(both[0], alone[0]), "a batch gives another continuation than its member alone"


EVERY: Mapping[str, Check] = {
    "result": check_result,
    "same-seed": check_same_seed,
    "inputs-untouched": check_inputs_untouched,
    "global-state": check_global_state,
    "bad-input": check_bad_input,
    "resumed": check_resumed,
}

CHECKS: dict[str, Mapping[str, Check]] = {
    "Module": {"gradients": check_gradients, "state-dict": check_state_dict, "float64": check_float64},
    "Loss": {"gradient": check_loss_gradient},
    "TorchOptimizer": OPTIMIZER_CHECKS,
    "Trainer": {"can-resume": check_can_resume},
    "Sampler": {"counts": check_sample_counts, "seeds": check_sample_seeds},
    "CausalLM": {"batch": check_batch},
    "Decoder": {"generate": check_generate},
    "Solver": {
        "verify-accepts": check_verify_accepts,
        "verify-refuses": check_verify_refuses,
        "has-bad-input": check_solver_bad_input,
    },
    "Evaluator": {"figures": check_figures},
}


def _outcome(example: Example) -> Any:
    return example.call(example.build(), example.inputs())


def _loss(example: Example) -> tuple[Any, Any]:
    """The module, and a scalar that depends on all its floating results."""
    module = example.build()
    results = [t for t in _tensors(example.call(module, example.inputs())) if t.is_floating_point()]
    assert results, "the call gives no floating tensor"
    return module, sum((t * t).sum() for t in results)


def _tensors(value: Any) -> Iterator[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif hasattr(value, "__dataclass_fields__"):
        for name in value.__dataclass_fields__:
            yield from _tensors(getattr(value, name))


def _to_double(value: Any) -> Any:
    import torch

    if isinstance(value, torch.Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, dict):
        return {k: _to_double(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_to_double(v) for v in value)
    return value


def _global_state() -> dict[str, Any]:
    """The global random states and settings of the libraries that are loaded."""
    import random

    state: dict[str, Any] = {"random": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = [str(part) for part in numpy.random.get_state()]
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state()
        state["dtype"] = str(torch.get_default_dtype())
        state["deterministic"] = torch.are_deterministic_algorithms_enabled()
        state["grad"] = torch.is_grad_enabled()
        state["threads"] = torch.get_num_threads()
    return state
