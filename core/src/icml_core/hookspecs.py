"""The hooks. A plug-in implements those it has something for, in the module its entry point names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from icml_core.components import Component, Paper

GROUP = "icml"

hookspec = pluggy.HookspecMarker(GROUP)
hookimpl = pluggy.HookimplMarker(GROUP)


@hookspec
def icml_models() -> Iterable[Component]:  # type: ignore[empty-body]
    """Networks and other maps from inputs to predictions."""


@hookspec
def icml_samplers() -> Iterable[Component]:  # type: ignore[empty-body]
    """What draws: Markov chains, generative models, dynamics, instance generators, decoders."""


@hookspec
def icml_optimizers() -> Iterable[Component]:  # type: ignore[empty-body]
    """What improves parameters or designs: torch optimizers, losses, trainers, black-box optimizers."""


@hookspec
def icml_solvers() -> Iterable[Component]:  # type: ignore[empty-body]
    """What turns a problem into a solution that can be verified."""


@hookspec
def icml_evaluators() -> Iterable[Component]:  # type: ignore[empty-body]
    """What turns a subject into named figures."""


@hookspec(firstresult=True)
def icml_paper() -> Paper:  # type: ignore[empty-body]
    """The paper that the plug-in implements."""


@hookspec(firstresult=True)
def icml_claims() -> str:  # type: ignore[empty-body]
    """The import string of the plug-in's :class:`~icml_core.claims.ClaimSuite`."""
