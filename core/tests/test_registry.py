import subprocess
import sys

import pytest
from icml_core.errors import UnknownNameError, UserError
from icml_core.registry import BrokenPluginError, Registry, nearest, read_plugin

BROKEN = {
    "missing": "import a_module_that_does_not_exist",
    "exits": "raise SystemExit(3)",
    "keyerror": "{}['no such key']",
    "raises": """
        from icml_core import hookimpl
        @hookimpl
        def icml_models():
            raise RuntimeError("a hook that raises")
        """,
    "wrongtype": """
        from icml_core import hookimpl
        @hookimpl
        def icml_models():
            return ["just text"]
        """,
    "misspelt": """
        from icml_core import hookimpl
        @hookimpl
        def icml_modles():
            return []
        """,
    "unmarked": """
        def icml_models():
            return []
        """,
    "argument": """
        from icml_core import hookimpl
        @hookimpl
        def icml_models(registry):
            return []
        """,
    "foreign": """
        from icml_core import Component, hookimpl
        @hookimpl
        def icml_models():
            return [Component("other.thing", "a.b:c", summary="not under its own name")]
        """,
    "twice": """
        from icml_core import Component, hookimpl
        @hookimpl
        def icml_models():
            return [Component("twice.thing", "a.b:c", summary="one")]
        @hookimpl
        def icml_solvers():
            return [Component("twice.thing", "a.b:c", summary="two")]
        """,
}

REASONS = {
    "missing": "a_module_that_does_not_exist",
    "exits": "SystemExit: 3",
    "keyerror": "KeyError: 'no such key'",
    "raises": "a hook that raises",
    "wrongtype": "just text",
    "misspelt": "did you mean icml_models?",
    "unmarked": "lacks the @hookimpl decorator",
    "argument": "registry",
    "foreign": "must begin with its plug-in's name: 'foreign.'",
    "twice": "offers twice.thing twice",
    "unreadable": "No module named",
}


@pytest.fixture
def crowd(good):
    """A working plug-in among all the broken ones."""
    for name, source in BROKEN.items():
        good.add(name, source)
    good.add("unreadable", "", value="nothing.at.all:here")
    return good


def test_broken_plugins_harm_nobody(crowd):
    registry = Registry.discover()
    assert "good.sum" in [entry.name for entry in registry.entries()]
    assert {b.name for b in registry.broken} >= set(REASONS)


@pytest.mark.parametrize("name", sorted(REASONS))
def test_a_broken_plugin_says_why(crowd, name):
    broken = {b.name: b for b in Registry.discover().broken}[name]
    assert REASONS[name] in broken.reason
    assert "pip uninstall" in broken.remedy
    with pytest.raises(BrokenPluginError, match="is broken"):
        Registry.discover().plugin(name)


def test_list_shows_broken_plugins_and_succeeds(crowd):
    done = crowd.icml("list")
    assert done.returncode == 0
    assert "good.sum" in done.stdout
    for name in REASONS:
        assert f"broken: {name} (icml-{name})" in done.stdout


def test_doctor_gives_the_traceback_and_fails(crowd):
    done = crowd.icml("doctor")
    assert done.returncode == 1
    assert "Traceback" in done.stdout
    assert "a hook that raises" in done.stdout
    assert "--force-reinstall" in done.stdout


def test_strict_raises_what_the_plugin_raised(good, monkeypatch):
    good.add("raises", BROKEN["raises"])
    monkeypatch.setenv("ICML_STRICT", "1")
    with pytest.raises(RuntimeError, match="a hook that raises"):
        Registry.discover()


def test_nothing_of_a_half_registered_plugin_is_visible(good):
    good.add(
        "half",
        """
        from icml_core import Component, hookimpl
        @hookimpl
        def icml_models():
            return [Component("half.model", "a.b:c", summary="fine by itself")]
        @hookimpl
        def icml_solvers():
            raise RuntimeError("the second hook")
        """,
    )
    registry = Registry.discover()
    assert all(entry.plugin != "half" for entry in registry.entries())


def test_two_distributions_with_one_name_are_both_reachable(good):
    good.add_good("good", distribution="icml-other")
    registry = Registry.discover()
    with pytest.raises(UserError, match="icml-good:good.sum or icml-other:good.sum"):
        registry.entry("good.sum")
    assert registry.entry("icml-other:good.sum").distribution == "icml-other"
    assert registry.entry("icml_good:good.sum").distribution == "icml-good"
    with pytest.raises(UserError, match="several plug-ins"):
        registry.plugin("good")
    assert registry.plugin("icml-good:good").distribution == "icml-good"
    assert "icml-good" in good.icml("doctor").stdout
    assert "icml-other:good.sum" in good.icml("list").stdout


def test_a_linked_site_folder_gives_a_plugin_once(good, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(good.folder)
    monkeypatch.syspath_prepend(link)
    assert [e.name for e in Registry.discover().entries()].count("good.sum") == 1


def test_left_over_metadata_is_reported_and_not_fatal(good, tmp_path, monkeypatch):
    stale = tmp_path / "stale" / "icml_good-0.9.dist-info"
    stale.mkdir(parents=True)
    (stale / "METADATA").write_text("Metadata-Version: 2.1\nName: icml-good\nVersion: 0.9\n")
    (stale / "entry_points.txt").write_text("[icml]\ngood = icml_good.plugin\n")
    monkeypatch.syspath_prepend(stale.parent)
    assert [e.name for e in Registry.discover().entries()].count("good.sum") == 1
    done = good.spawn("doctor", env={"PYTHONPATH": f"{good.folder}:{stale.parent}"})
    assert done.returncode == 1
    assert "0.9" in done.stdout
    assert "installed more than once" in done.stdout


def test_a_distribution_without_its_entry_point_is_reported(good):
    good.add("lost", "")
    (good.folder / "icml_lost-1.0.dist-info" / "entry_points.txt").unlink()
    done = good.icml("doctor")
    assert done.returncode == 1
    assert "icml-lost has no entry point" in done.stdout


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ("good.summ", "did you mean good.sum?"),
        ("sum", "did you mean good.sum?"),
        ("zzzz.thing", "pip install icml-zzzz"),
        ("good.entirely_different", "icml list"),
    ],
)
def test_an_unknown_component_names_the_nearest_or_how_to_get_it(good, asked, hint):
    with pytest.raises(UnknownNameError) as raised:
        Registry.discover().entry(asked)
    assert hint in str(raised.value)


def test_exact_names_win_over_near_ones(good):
    good.add_good("goods")
    assert Registry.discover().entry("good.sum").plugin == "good"


def test_entries_by_kind_and_contract(good):
    registry = Registry.discover()
    assert [e.name for e in registry.entries(kind="solver") if e.plugin == "good"] == ["good.sum"]
    assert [e.name for e in registry.entries(kind="model") if e.plugin == "good"] == []
    assert [e.name for e in registry.entries(contract="Solver") if e.plugin == "good"] == ["good.sum"]


def test_any_object_can_be_read_as_a_plugin():
    from icml_core import Component, hookimpl

    class Here:
        @hookimpl
        def icml_models(self):
            return [Component("here.model", "a.b:c", summary="made on the spot")]

    plugin = read_plugin("here", Here(), distribution="d", version="2")
    assert [e.name for e in plugin.entries] == ["here.model"]
    assert plugin.paper is None


def test_nearest_prefers_the_closest():
    assert nearest("optimzer", ["optimizer", "sampler", "model"])[0] == "optimizer"
    assert nearest("zzz", ["optimizer"]) == []


def test_listing_and_help_load_no_numerical_library(good):
    heavy = "{'torch', 'numpy', 'numba', 'scipy', 'matplotlib'}"
    for arguments in (
        ["list"],
        ["info", "good"],
        ["info", "good.sum"],
        ["run", "good.sum", "--help"],
        ["--help"],
    ):
        code = (
            "import sys; from icml_core.cli import call\n"
            f"status = call({arguments!r})\n"
            f"print('LOADED', sorted({heavy} & set(sys.modules)), status)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env=good.environment(),
            cwd=good.work,
        )
        assert "LOADED [] 0" in done.stdout, (arguments, done.stdout[-300:], done.stderr[-2000:])
