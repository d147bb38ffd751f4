"""Whether a requirement such as ``"openmm>=8.2"`` or ``"cuda"`` is met here."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import metadata, util

from icml_core.errors import NeedsError, install_command


def unmet(requirement: str) -> NeedsError | None:
    """What is wrong with ``requirement`` here, or None where it is met.

    Args:
        requirement: a distribution with an optional version specifier, or ``"cuda"``.
    """
    if requirement == "cuda":
        return None if has_cuda() else NeedsError("cuda", hint="run it on a machine with a CUDA device")
    from packaging.requirements import Requirement

    parsed = Requirement(requirement)
    try:
        found = metadata.version(parsed.name)
    except metadata.PackageNotFoundError:
        return NeedsError(requirement, hint=install_command(requirement))
    if parsed.specifier.contains(found, prereleases=True):
        return None
    return NeedsError(requirement, found, install_command(requirement))


def first_unmet(requirements: Iterable[str]) -> NeedsError | None:
    """The first requirement that is not met here."""
    return next((error for r in requirements if (error := unmet(r)) is not None), None)


@cache
def has_cuda() -> bool:
    """Whether torch is installed and sees a CUDA device."""
    if util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())
