import doctest
from importlib import import_module
from pathlib import Path

import icml_btt
import pytest

MODULES = sorted(path.stem for path in Path(icml_btt.__file__).parent.glob("[a-z]*.py"))


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_in_docstrings_run(name):
    result = doctest.testmod(import_module(f"icml_btt.{name}"), raise_on_error=False)
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder()
    found = [t for name in MODULES for t in finder.find(import_module(f"icml_btt.{name}")) if t.examples]
    assert len(found) >= 6
