"""Golden-section search: the maximum of a concave function, with an interval that holds it."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_deepcontour.search import GoldenSection as GoldenSection
    from icml_deepcontour.search import Maximum as Maximum
    from icml_deepcontour.search import Problem as Problem

__getattr__, __dir__, __all__ = lazy.attach(
    __name__, {"GoldenSection": "search", "Maximum": "search", "Problem": "search"}
)
