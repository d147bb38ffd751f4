import sys
import types

import pytest
from icml_core import lazy


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "lazypackage"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "from icml_core import lazy\n"
        "__getattr__, __dir__, __all__ = lazy.attach(__name__, {'Thing': 'home', 'Needy': 'needs'})\n"
    )
    (folder / "home.py").write_text("class Thing: pass\n")
    (folder / "needs.py").write_text("import an_optional_library_that_is_absent\nclass Needy: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import lazypackage

    yield lazypackage
    for name in [n for n in sys.modules if n.startswith("lazypackage")]:
        del sys.modules[name]


def test_a_name_loads_its_module_on_first_use(package):
    assert "lazypackage.home" not in sys.modules
    assert package.Thing.__name__ == "Thing"
    assert "lazypackage.home" in sys.modules
    assert package.Thing is vars(package)["Thing"]


def test_dir_and_all_list_the_names(package):
    assert {"Thing", "Needy"} <= set(dir(package))
    assert package.__all__ == ["Needy", "Thing"]


def test_a_missing_optional_library_is_an_import_error(package):
    with pytest.raises(ImportError, match="an_optional_library_that_is_absent"):
        _ = package.Needy


def test_an_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = package.Nothing


def test_a_public_name_equal_to_a_submodule_is_refused():
    with pytest.raises(ValueError, match="also a submodule's name"):
        lazy.attach("p", {"solve": "solve"})


def test_a_home_that_is_no_submodule_is_refused():
    with pytest.raises(ValueError, match="not the name of a submodule"):
        lazy.attach("p", {"Thing": "a.b"})


def test_the_core_tells_type_checkers_what_it_offers():
    import ast
    from pathlib import Path

    import icml_core

    tree = ast.parse(Path(icml_core.__file__).read_text())
    told = {
        alias.asname
        for node in tree.body
        if isinstance(node, ast.If)
        for statement in node.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
    assert told == set(icml_core.__all__)
    for name in icml_core.__all__:
        assert not isinstance(getattr(icml_core, name), types.ModuleType)
