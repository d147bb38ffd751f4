"""The contract checks themselves: each passes a sound object and catches one that breaks it."""

import random
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from icml_core import Component, Example
from icml_core.registry import Entry
from icml_core.testing import _run_check, component_checks
from icml_core.testing.checks import CHECKS, EVERY
from icml_core.testing.equality import difference


@dataclass(frozen=True)
class Total:
    value: float

    def verify(self, problem):
        if self.value != sum(problem):
            raise ValueError(f"{self.value} is not the sum {sum(problem)}")


class Adder:
    def solve(self, problem):
        if not problem:
            raise ValueError("nothing to add; give numbers")
        return Total(sum(problem))


def sound(seed=0):
    return Example(
        build=Adder,
        inputs=lambda: [1, 2, 3],
        call=lambda solver, problem: solver.solve(problem),
        check=lambda result: None,
        corrupt=lambda total: Total(total.value + 1),
        bad=lambda: [],
    )


def having(**changes):
    return lambda seed=0: replace(sound(seed), **changes)


ALL = EVERY | {f"Solver-{name}": check for name, check in CHECKS["Solver"].items()}


@pytest.mark.parametrize("name", ALL)
def test_a_sound_solver_passes(name):
    ALL[name](sound)
    assert difference(sound().call(Adder(), [1]), Total(1)) is None


def draws_globally(solver, problem):
    random.random()
    return solver.solve(problem)


def eats_its_input(solver, problem):
    total = solver.solve(problem)
    problem.pop()
    return total


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("result", {"check": lambda result: pytest.fail("wrong")}),
        ("same-seed", {"call": lambda solver, problem: random.random()}),
        ("inputs-untouched", {"call": eats_its_input}),
        ("global-state", {"call": draws_globally}),
        ("bad-input", {"bad": lambda: [1]}),
        ("resumed", {"resumed": lambda solver, problem, directory: Total(0)}),
        ("Solver-verify-accepts", {"call": lambda solver, problem: Total(-1)}),
        ("Solver-verify-refuses", {"corrupt": lambda total: total}),
        ("Solver-verify-refuses", {"corrupt": None}),
        ("Solver-has-bad-input", {"bad": None}),
    ],
)
def test_a_check_catches_what_it_is_for(name, changes):
    with pytest.raises((AssertionError, ValueError, pytest.fail.Exception)):
        ALL[name](having(**changes))


class Dice:
    def sample(self, n, *, seed):
        generator = random.Random(seed)
        return [generator.random() for _ in range(n)]


class Deaf(Dice):
    def sample(self, n, *, seed):
        return [0.5] * n


class Short(Dice):
    def sample(self, n, *, seed):
        return super().sample(max(1, n), seed=seed)


def test_sampler_checks():
    for check in CHECKS["Sampler"].values():
        check(having(build=Dice))
    with pytest.raises(AssertionError, match="another seed"):
        CHECKS["Sampler"]["seeds"](having(build=Deaf))
    with pytest.raises(AssertionError, match=r"sample\(0\)"):
        CHECKS["Sampler"]["counts"](having(build=Short))


def test_evaluator_checks():
    figures = CHECKS["Evaluator"]["figures"]
    figures(having(call=lambda evaluator, subject: {"a": 1.0, "b": None}))
    for bad in ([1.0], {"a": float("nan")}, {"a": object()}):
        with pytest.raises((AssertionError, TypeError, ValueError)):
            figures(having(call=lambda evaluator, subject, bad=bad: bad))


class Fitter:
    def fit(self, data):
        return sum(data)


def test_trainer_checks():
    check = CHECKS["Trainer"]["can-resume"]
    resumed = having(build=Fitter, resumed=lambda fitter, data, directory: fitter.fit(data))
    check(resumed)
    with pytest.raises(AssertionError, match="needs resumed"):
        check(having(build=Fitter))
    EVERY["resumed"](
        having(build=Fitter, call=lambda f, data: f.fit(data), resumed=lambda f, data, directory: sum(data))
    )


def entry(implements=()):
    component = Component(
        "demo.thing", "json:dumps", summary="s", implements=implements, example="test_testing_home:example"
    )
    return Entry(component, "solver", "demo", "icml-demo")


def test_an_unknown_contract_is_refused():
    with pytest.raises(ValueError, match="unknown contract 'Modul'"):
        list(component_checks(entry(("Modul",))))


def test_expected_failures_are_reported_and_must_really_fail(monkeypatch):
    import sys
    import types

    home = types.ModuleType("test_testing_home")
    monkeypatch.setitem(sys.modules, "test_testing_home", home)
    excuses = {"bad-input": "accepts everything"}
    home.example = having(bad=lambda: [1], expected_failures=excuses)
    with pytest.raises(pytest.xfail.Exception, match="accepts everything"):
        _run_check(entry(), "bad-input", EVERY["bad-input"])
    home.example = having(expected_failures=excuses)
    with pytest.raises(AssertionError, match="remove it from expected_failures"):
        _run_check(entry(), "bad-input", EVERY["bad-input"])


@dataclass
class Box:
    value: object
    label: str = "x"
    extra: dict = field(default_factory=dict)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (1.0, 1.0, True),
        (float("nan"), float("nan"), True),
        (1.0, 1, False),
        ([1, [2]], [1, [2]], True),
        ([1, [2]], [1, [3]], False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (Box(1), Box(1), True),
        (Box(1, extra={"k": [1.0]}), Box(1, extra={"k": [2.0]}), False),
        (Path("a"), Path("a"), True),
        (Adder(), Adder(), True),
    ],
)
def test_difference(first, second, same):
    assert (difference(first, second) is None) is same


def test_difference_of_arrays():
    numpy = pytest.importorskip("numpy")
    ones = numpy.ones(3)
    assert difference(ones, ones.copy()) is None
    assert "float32" in difference(ones, ones.astype("float32"))
    assert "differ by up to" in difference(ones, ones * 1.1)
    assert difference(ones, ones * (1 + 1e-9), tolerance=1e-6) is None
    assert difference(numpy.arange(3), numpy.arange(3)) is None
    assert difference(ones * numpy.nan, ones * numpy.nan) is None


torch = pytest.importorskip("torch") if __import__("importlib.util").util.find_spec("torch") else None
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed beside the core")


@needs_torch
def test_module_checks():
    import torch

    def linear(seed=0, module=torch.nn.Linear):
        def build():
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                return module(3, 2)

        return Example(build, lambda: torch.ones(4, 3), lambda m, x: m(x), lambda r: None)

    for check in CHECKS["Module"].values():
        check(linear)

    class Deaf(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).detach().requires_grad_()

    with pytest.raises(AssertionError, match="no gradient reaches"):
        CHECKS["Module"]["gradients"](lambda seed=0: linear(seed, Deaf))

    class Single(torch.nn.Linear):
        def forward(self, x):
            return super().forward(x).float()

    with pytest.raises(AssertionError, match="float32"):
        CHECKS["Module"]["float64"](lambda seed=0: linear(seed, Single))


@needs_torch
@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_torchs_own_optimizers_pass_the_battery(name):
    import torch

    def make(seed=0):
        build = lambda: lambda params: getattr(torch.optim, name)(params, lr=0.05)  # noqa: E731
        return Example(build, lambda: None, lambda factory, _: None, lambda r: None)

    for check in CHECKS["TorchOptimizer"].values():
        check(make)
    assert CHECKS["TorchOptimizer"]


@needs_torch
def test_the_battery_catches_an_optimizer_that_forgets_its_state():
    import torch

    class Forgetful(torch.optim.SGD):
        def load_state_dict(self, state_dict):
            pass

    class Still(torch.optim.SGD):
        def step(self, closure=None):
            return None

    def make(kind):
        return lambda seed=0: Example(
            lambda: lambda params: kind(params, lr=0.05, momentum=0.9), lambda: None, lambda f, _: None, print
        )

    with pytest.raises(AssertionError):
        CHECKS["TorchOptimizer"]["state-dict"](make(Forgetful))
    with pytest.raises(AssertionError, match="the probe's loss went from"):
        CHECKS["TorchOptimizer"]["loss-falls"](make(Still))
    with pytest.raises(AssertionError, match="returned nothing"):
        CHECKS["TorchOptimizer"]["closure"](make(Still))


@needs_torch
def test_loss_check():
    import torch

    def make(loss):
        def inputs():
            generator = torch.Generator().manual_seed(0)
            return [torch.randn(5, 3, generator=generator), torch.randn(5, 3, generator=generator)]

        return lambda seed=0: Example(lambda: loss, inputs, lambda f, x: f(*x), lambda r: None)

    CHECKS["Loss"]["gradient"](make(torch.nn.MSELoss()))

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return (a * b).sum()

        @staticmethod
        def backward(ctx, gradient):
            a, b = ctx.saved_tensors
            return gradient * b, gradient * a * 1.01

    with pytest.raises(AssertionError, match="against"):
        CHECKS["Loss"]["gradient"](make(Wrong.apply))
