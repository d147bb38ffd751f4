"""What a plug-in tells the host: its components, its paper, and a tiny example of each component."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

KINDS = ("model", "sampler", "optimizer", "solver", "evaluator")

_NAME = re.compile(r"[a-z][a-z0-9_-]*\.[a-z][a-z0-9_-]*")
_TARGET = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


def resolve(target: str) -> Any:
    """Import the object that ``"package.module:name"`` names.

    Raises:
        ValueError: the string has another form.
        ImportError: the module cannot be imported, or lacks the name.
    """
    if not _TARGET.fullmatch(target):
        raise ValueError(f"{target!r} is not of the form 'package.module:name'")
    module, _, name = target.partition(":")
    try:
        return getattr(import_module(module), name)
    except AttributeError as error:
        raise ImportError(f"module {module!r} has no {name!r}") from error


@dataclass(frozen=True, slots=True)
class Paper:
    """The paper that a plug-in implements; ``arxiv`` is its number there, or empty."""

    title: str
    arxiv: str = ""
    venue: str = "ICML 2026"
    authors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Component:
    """One named thing that a plug-in offers.

    ``target``, ``example`` and ``job`` are import strings (``"package.module:name"``), resolved on
    first use, so that listing components imports none of the methods.

    Attributes:
        name: ``<entry point>.<name>``, in lower case: ``"btt.cc"``.
        target: the object itself: a class or function.
        summary: one line for ``icml list``.
        implements: the contracts it honours, by name (see :mod:`icml_core.contracts`).
        example: a function ``(seed) -> Example`` for the contract tests.
        job: the function that ``icml run <name>`` executes.
        requires: requirements beyond the distribution's own, such as ``("openmm>=8.2",)``; without
            them the component is listed as needing them.
    """

    name: str
    target: str
    summary: str
    implements: tuple[str, ...] = ()
    example: str | None = None
    job: str | None = None
    requires: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"component name {self.name!r} is not of the form 'plugin.name' in lower case")
        for role in ("target", "example", "job"):
            value = getattr(self, role)
            if value is not None and not _TARGET.fullmatch(value):
                raise ValueError(
                    f"component {self.name!r}: {role}={value!r} is not of the form 'package.module:name'"
                )
        if not self.summary.strip() or "\n" in self.summary:
            raise ValueError(f"component {self.name!r}: the summary must be one line")
        for role in ("implements", "requires"):
            if isinstance(getattr(self, role), str):
                raise TypeError(f"component {self.name!r}: {role} must be a tuple of strings")

    def load(self) -> Any:
        """The component itself, imported now."""
        return resolve(self.target)


@dataclass(frozen=True, slots=True)
class Example:
    """A tiny instance of a component, from which the contract tests know how to use it.

    Attributes:
        build: makes the component; calling it twice gives two equal objects. (TorchOptimizer: makes
            a factory ``(params) -> optimizer``.)
        inputs: makes the inputs of one call, fresh and equal each time.
        call: ``call(component, inputs)`` gives the result to look at.
        check: ``check(result)`` raises where the result is wrong.
        corrupt: (Solver) makes of a right solution one that ``verify`` must refuse.
        bad: makes inputs that ``call`` must refuse with ``ValueError`` or ``TypeError``.
        resumed: ``resumed(component, inputs, directory)`` does what ``call`` does in two halves, the
            second from the checkpoint that the first left in ``directory``; the result must be equal.
        expected_failures: names of contract checks that this component cannot pass, with the reason.
    """

    build: Callable[[], Any]
    inputs: Callable[[], Any]
    call: Callable[[Any, Any], Any]
    check: Callable[[Any], None]
    corrupt: Callable[[Any], Any] | None = None
    bad: Callable[[], Any] | None = None
    resumed: Callable[[Any, Any, Path], Any] | None = None
    expected_failures: Mapping[str, str] = field(default_factory=dict)
