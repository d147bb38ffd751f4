"""Public names of a package, each imported on first use (PEP 562), so that importing the package is free."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def attach(
    package: str, names: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Give the ``__getattr__``, ``__dir__`` and ``__all__`` of a package whose names load on first use.

    Args:
        package: the package's ``__name__``.
        names: each public name, and the submodule that defines it.

    Raises:
        ValueError: where a public name equals the submodule's, since importing the submodule would
            then silently replace the object by the module.

    Example:
        ``__getattr__, __dir__, __all__ = attach(__name__, {"SSO": "optimizer"})``
    """
    for name, module in names.items():
        if name in names.values():
            raise ValueError(
                f"{package}: the public name {name!r} is also a submodule's name; rename one of the two"
            )
        if "." in module or not module.isidentifier():
            raise ValueError(f"{package}: {module!r}, the home of {name!r}, is not the name of a submodule")

    def get(name: str) -> Any:
        if name not in names:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{package}.{names[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    def listing() -> list[str]:
        return sorted({*vars(sys.modules[package]), *names})

    return get, listing, sorted(names)
