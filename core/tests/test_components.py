import pytest
from icml_core import Component
from icml_core.components import resolve


def test_a_target_is_imported_on_demand():
    assert resolve("json:dumps") is __import__("json").dumps
    assert Component("a.b", "json:dumps", summary="s").load()([1]) == "[1]"


@pytest.mark.parametrize("target", ["json", "json.dumps", "json:", ":dumps", "json:a.b", "../x:y"])
def test_a_malformed_target_is_refused(target):
    with pytest.raises(ValueError, match="not of the form"):
        Component("a.b", target, summary="s")


def test_a_missing_name_is_an_import_error():
    with pytest.raises(ImportError, match="has no 'nothing'"):
        resolve("json:nothing")


@pytest.mark.parametrize("name", ["a", "A.b", "a.b.c", "a b.c", ".a", "a."])
def test_a_malformed_name_is_refused(name):
    with pytest.raises(ValueError, match="not of the form"):
        Component(name, "json:dumps", summary="s")


def test_a_summary_is_one_line():
    with pytest.raises(ValueError, match="one line"):
        Component("a.b", "json:dumps", summary="one\ntwo")


def test_a_contract_given_as_text_is_refused():
    with pytest.raises(TypeError, match="tuple of strings"):
        Component("a.b", "json:dumps", summary="s", implements="Solver")
