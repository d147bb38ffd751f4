"""``icml new``: what it writes is discovered, runs, verifies, and passes its own tests, as generated."""

import re
import subprocess
import sys
import tomllib

import pytest


@pytest.fixture
def demo(site):
    assert site.icml("new", "demo").returncode == 0
    folder = site.work / "demo"
    # As `pip install -e` would: its source folder and its metadata on the path.
    (site.folder / "icml_demo").symlink_to(folder / "src" / "icml_demo")
    info = site.folder / "icml_demo-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: icml-demo\nVersion: 0.1.0\n")
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    lines = [f"{name} = {value}" for name, value in project["entry-points"]["icml"].items()]
    (info / "entry_points.txt").write_text("[icml]\n" + "\n".join(lines) + "\n")
    return site


def test_a_new_plugin_is_discovered_and_runs(demo):
    assert "demo.golden" in demo.icml("list").stdout
    done = demo.icml("run", "demo.golden", "--center", "2", "--out", "r")
    assert done.returncode == 0
    assert "position: 2" in done.stdout
    assert (
        "2.0000" in (demo.work / "r" / "maximum.csv").read_text()
        or "1.9999" in (demo.work / "r" / "maximum.csv").read_text()
    )


def test_a_new_plugin_verifies_with_teeth(demo):
    done = demo.icml("verify", "demo", "--teeth", "--strict")
    assert done.returncode == 0, done.stdout
    assert "holds, bites" in done.stdout


def test_a_new_plugin_passes_its_own_tests(demo):
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(demo.work / "demo")],
        capture_output=True,
        text=True,
        env=demo.environment(),
        cwd=demo.work,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout


def test_the_readme_of_a_new_plugin_runs(demo):
    text = (demo.work / "demo" / "README.md").read_text()
    code = text.split("```python\n")[1].split("```")[0]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=demo.environment(), cwd=demo.work
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2.0000") or done.stdout.startswith("1.9999")


@pytest.mark.parametrize("slug", ["Demo", "my--plugin", "my-", "my_plugin", "2fast", "", "class", "../up"])
def test_a_name_that_cannot_be_a_package_is_refused(site, slug):
    done = site.icml("new", slug)
    assert done.returncode == 2
    assert list(site.work.iterdir()) == []


def test_an_existing_folder_is_refused(site):
    (site.work / "demo").mkdir()
    done = site.icml("new", "demo")
    assert done.returncode == 2
    assert "exists already" in done.stderr


def test_inside_the_workspace_it_becomes_a_member(site):
    (site.work / "uv.lock").write_text("")
    (site.work / "packages").mkdir()
    assert site.icml("new", "demo").returncode == 0
    text = (site.work / "packages" / "demo" / "pyproject.toml").read_text()
    assert tomllib.loads(text)["tool"]["uv"]["sources"] == {"icml-core": {"workspace": True}}
    assert "@" not in "".join(p.read_text() for p in (site.work / "packages" / "demo").rglob("*.toml"))


def test_a_name_with_hyphens_becomes_a_module_and_a_class(site):
    assert site.icml("new", "two-words").returncode == 0
    folder = site.work / "two-words"
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    assert project["name"] == "icml-two-words"
    assert project["entry-points"]["icml"] == {"two-words": "icml_two_words.plugin"}
    assert '"two-words.golden"' in (folder / "src" / "icml_two_words" / "plugin.py").read_text()
    texts = [path.read_text() for path in folder.rglob("*") if path.is_file()]
    assert not [text for text in texts if re.search(r"@\w+@", text)]
