"""The contract tests: :func:`check_plugin` gives one pytest case for each component and check.

A package's test module says::

    from icml_core.testing import check_plugin

    test_contracts = check_plugin("sso")

What a component cannot do is listed, with the reason, in its example's ``expected_failures``; a check
listed there that passes after all is a failure, so that no excuse outlives its cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from icml_core.components import Example, resolve
from icml_core.contracts import CONTRACTS
from icml_core.registry import Entry, Plugin, Registry
from icml_core.testing.checks import CHECKS, EVERY, Check

__all__ = ["EXAMPLE_SECONDS", "build_example", "check_plugin", "component_checks"]

EXAMPLE_SECONDS = 1.0  # how long an example's call may take on an ordinary machine, imports apart


def check_plugin(name: str) -> Callable[[Any], None]:
    """A pytest test of the plug-in ``name``: its contracts, its light imports, its smoke claims."""
    import pytest

    cases = []
    plugin = Registry.discover(strict=False).plugin(name)
    for entry in plugin.entries:
        if entry.component.example is None:
            continue
        for check_name, check in component_checks(entry):
            cases.append(pytest.param((entry, check_name, check), id=f"{entry.name}-{check_name}"))
    cases.append(pytest.param((plugin, "names", _check_names), id=f"{name}-names"))
    cases.append(pytest.param((plugin, "imports", _check_imports), id=f"{name}-light-imports"))
    cases.append(pytest.param((plugin, "public", _check_public_names), id=f"{name}-public-names"))
    cases.append(pytest.param((plugin, "jobs", _check_jobs), id=f"{name}-jobs"))
    if plugin.claims is not None:
        suite = resolve(plugin.claims)
        for measure in suite.measures.values():
            for ablation in (None, *measure.ablations):
                label = f"{measure.name}{f'-{ablation}' if ablation else ''}"
                case = (plugin, "smoke", _smoke(plugin.claims, suite.name, measure, ablation))
                cases.append(pytest.param(case, id=f"{name}-smoke-{label}"))
        cases.append(pytest.param((plugin, "claims", _check_claims), id=f"{name}-claims"))

    @pytest.mark.parametrize("case", cases)
    def test_contracts(case: Any) -> None:
        subject, check_name, check = case
        if isinstance(subject, Plugin):
            check(subject)
        else:
            _run_check(subject, check_name, check)

    return test_contracts


def component_checks(entry: Entry) -> Iterator[tuple[str, Check]]:
    """The checks of a component: those for all, then those of each contract it names.

    Raises:
        ValueError: it names a contract that does not exist.
    """
    yield from EVERY.items()
    for contract in entry.component.implements:
        if contract not in CONTRACTS:
            raise ValueError(f"{entry.name} names an unknown contract {contract!r}")
        for name, check in CHECKS.get(contract, {}).items():
            yield f"{contract}-{name}", check


def build_example(entry: Entry, seed: int = 0) -> Example:
    """The example of a component.

    Raises:
        TypeError: its function returned something else.
    """
    assert entry.component.example is not None
    example = resolve(entry.component.example)(seed)
    if not isinstance(example, Example):
        raise TypeError(f"{entry.component.example} returned {example!r}; expected an icml_core.Example")
    return example


def _run_check(entry: Entry, name: str, check: Check) -> None:
    import pytest

    from icml_core.requirements import first_unmet

    if (needs := first_unmet(entry.component.requires)) is not None:
        pytest.skip(str(needs))
    example = build_example(entry)
    if (reason := example.expected_failures.get(name)) is None:
        check(lambda seed=0: build_example(entry, seed))
        return
    try:
        check(lambda seed=0: build_example(entry, seed))
    except Exception as error:
        pytest.xfail(f"{reason} ({type(error).__name__})")
    raise AssertionError(f"{entry.name} passes {name!r}; remove it from expected_failures ({reason!r})")


def _check_names(plugin: Plugin) -> None:
    """Targets, examples and jobs can be imported, and expected failures name checks that exist."""
    from icml_core.requirements import first_unmet

    for entry in plugin.entries:
        component = entry.component
        if first_unmet(component.requires) is None:
            for target in (component.target, component.example, component.job):
                if target is not None:
                    resolve(target)
            if component.example is not None:
                known = {name for name, _ in component_checks(entry)}
                unknown = set(build_example(entry).expected_failures) - known
                assert not unknown, f"{entry.name} excuses checks that do not exist: {sorted(unknown)}"


def _check_imports(plugin: Plugin) -> None:
    """Importing the plug-in, its package, jobs, claims and examples loads no heavy library."""
    import subprocess
    import sys
    from importlib.util import find_spec

    package = plugin.module.rpartition(".")[0]
    modules = [package, plugin.module]
    modules += [m for m in (f"{package}.{n}" for n in ("jobs", "claims", "examples")) if find_spec(m)]
    code = f"import {', '.join(modules)}, sys; print(*sorted({{m.partition('.')[0] for m in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    heavy = {"torch", "numpy", "numba", "scipy", "triton", "matplotlib", "pandas", "sklearn", "transformers"}
    loaded = heavy & set(done.stdout.split())
    assert not loaded, f"importing {', '.join(modules)} loads {', '.join(sorted(loaded))}"


def _check_public_names(plugin: Plugin) -> None:
    """Every public name resolves, and type checkers are told of the same names."""
    import ast
    from importlib import import_module
    from pathlib import Path

    package = import_module(plugin.module.rpartition(".")[0])
    assert package.__file__ is not None
    names = set(getattr(package, "__all__", ()))
    assert names <= set(dir(package))
    for name in names:
        getattr(package, name)
    told = {
        alias.asname or alias.name
        for node in ast.parse(Path(package.__file__).read_text(encoding="utf-8")).body
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert told == names, f"TYPE_CHECKING imports differ from __all__: {sorted(told ^ names)}"


def _check_jobs(plugin: Plugin) -> None:
    """Every job's options can be read from its signature, and a misspelt one is refused by name."""
    from icml_core.errors import UserError
    from icml_core.options import job_parameters, parse

    for entry in plugin.entries:
        if entry.component.job is None:
            continue
        job = resolve(entry.component.job)
        assert (job.__doc__ or "").strip(), f"{entry.component.job} has no docstring, so no help"
        for parameter in job_parameters(job):
            flag = "--" + parameter.name.replace("_", "-")
            try:
                parse(entry.name, job, [f"{flag}q", "1"])
            except UserError as error:
                assert flag in str(error), f"{entry.name}: {flag}q is refused without naming {flag}: {error}"
            else:
                raise AssertionError(f"{entry.name} takes the unknown option {flag}q")


def _smoke(target: str, suite: str, measure: Any, ablation: str | None) -> Callable[[Plugin], None]:
    def check(plugin: Plugin) -> None:
        import pytest

        from icml_core.measuring import Task, perform

        seed = measure.seed(suite, 0)
        task = Task(target, measure.name, 0, seed, "smoke", ablation, None, exclusive=measure.exclusive)
        outcome = perform(task)
        if outcome.needs:
            pytest.skip(outcome.needs)
        assert outcome.error is None, outcome.traceback
        wanted = {
            figure
            for claim in resolve(target).claims.values()
            if claim.measure is measure
            for figure in (claim.figure, claim.baseline)
            if figure is not None
        }
        assert wanted <= set(outcome.figures), f"{measure.name} gives no {wanted - set(outcome.figures)}"

    return check


def _check_claims(plugin: Plugin) -> None:
    """The suite is named as the plug-in, and every measure serves a claim."""
    assert plugin.claims is not None
    suite = resolve(plugin.claims)
    assert suite.name == plugin.name, f"the suite is called {suite.name!r}, the plug-in {plugin.name!r}"
    idle = set(suite.measures) - {claim.measure.name for claim in suite.claims.values()}
    assert not idle, f"no claim uses {sorted(idle)}"
