"""The host: finds plug-ins that each bring the method of one paper, runs them, and verifies their claims."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_core.claims import ClaimSuite as ClaimSuite
    from icml_core.components import Component as Component
    from icml_core.components import Example as Example
    from icml_core.components import Paper as Paper
    from icml_core.errors import NeedsError as NeedsError
    from icml_core.errors import UserError as UserError
    from icml_core.hookspecs import hookimpl as hookimpl
    from icml_core.registry import Registry as Registry
    from icml_core.run import Run as Run
    from icml_core.run import resumable as resumable

__version__ = "0.1.0"

# Grows by one whenever hooks, contracts or the claim suite gain something that plug-ins can rely on.
api_version = 1

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "ClaimSuite": "claims",
        "Component": "components",
        "Example": "components",
        "NeedsError": "errors",
        "Paper": "components",
        "Registry": "registry",
        "Run": "run",
        "UserError": "errors",
        "hookimpl": "hookspecs",
        "resumable": "run",
    },
)
