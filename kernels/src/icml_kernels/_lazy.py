"""Public names that load on first use (PEP 562), so that importing the package costs nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(
    package: str, homes: Mapping[str, tuple[str, ...]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Give the ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names load on first use.

    Args:
        package: the package's ``__name__``.
        homes: for each submodule, dotted and relative to the package, the public names it defines.
    """
    where = {name: module for module, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it offers {sorted(where)}")
        value = getattr(import_module(f"{package}.{where[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where})

    return get, listing, sorted(where)
