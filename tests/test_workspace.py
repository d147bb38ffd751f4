"""The workspace as a whole: discovery, light imports, lists that are derived and fresh."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from icml_core import Registry

ROOT = Path(__file__).resolve().parent.parent
SLUGS = sorted(path.parents[2].name for path in ROOT.glob("packages/*/src/*/plugin.py"))


def icml(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "icml_core", *arguments], capture_output=True, text=True, **options
    )


def test_every_package_is_discovered_and_sound():
    registry = Registry.discover()
    assert [plugin.name for plugin in registry.plugins] == SLUGS
    assert registry.broken == ()
    assert registry.clashes == {}


def test_every_component_honours_a_known_contract_or_is_a_job_or_has_an_example_that_is_checked():
    from icml_core.contracts import CONTRACTS

    for entry in Registry.discover().entries():
        component = entry.component
        assert set(component.implements) <= set(CONTRACTS)
        used = component.implements or component.job or component.example
        assert used, f"{entry.name} can be neither composed nor run, and no example of it is checked"
        assert component.example or not component.implements, f"{entry.name} has no example"


def test_listing_everything_loads_neither_torch_nor_numpy(tmp_path):
    code = (
        "import sys; from icml_core.cli import call; call(['list'])\n"
        "print('LOADED', sorted({'torch', 'numpy', 'numba', 'scipy', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert "LOADED []" in done.stdout, done.stderr


@pytest.mark.parametrize("arguments", [["list"], ["doctor"], *(["info", slug] for slug in SLUGS)])
def test_json_output_is_one_document(arguments, tmp_path):
    done = icml(*arguments, "--json", cwd=tmp_path)
    assert isinstance(json.loads(done.stdout), dict)
    assert done.returncode == 0, done.stdout[-2000:]


def test_the_doctor_names_the_route_of_each_device(tmp_path):
    kernels = json.loads(icml("doctor", "--json", cwd=tmp_path).stdout)["kernels"]
    assert kernels["cpu"].startswith("numba ")
    assert kernels["cuda"]


def test_the_layout_rules_hold():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "check_layout.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout


def test_the_layout_check_finds_an_undeclared_sibling_and_a_heavy_import(tmp_path):
    """A probe member that imports what it does not declare, eagerly, must be found."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        import check_layout
    finally:
        sys.path.pop(0)
    folder = tmp_path / "packages" / "probe"
    source = folder / "src" / "icml_probe"
    source.mkdir(parents=True)
    (folder / "pyproject.toml").write_text(
        '[project]\nname = "icml-probe"\nversion = "1"\ndependencies = ["icml-core"]\n'
        '[project.entry-points.icml]\nprobe = "icml_probe.plugin"\n'
    )
    (folder / "README.md").write_text("# probe\n")
    (source / "__init__.py").write_text("")
    (source / "plugin.py").write_text("import torch\nfrom icml_core import hookimpl\n")
    (source / "method.py").write_text("def f():\n    import icml_btt\n")
    text = "\n".join(check_layout.member_findings(folder))
    assert "plugin.py imports torch at module level" in text
    assert "imports icml_btt, which pyproject.toml does not declare" in text
    assert "lacks the cache-keys" in text
    assert "lacks src/icml_probe/claims.py" in text or "lacks src" in text
    assert "lacks the section 'Citation'" in text


def test_generated_lists_are_fresh():
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "sync_index.py", "--check"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_members_ask_for_each_other_with_lower_bounds_only():
    for file in [
        ROOT / "core" / "pyproject.toml",
        ROOT / "kernels" / "pyproject.toml",
        *ROOT.glob("packages/*/pyproject.toml"),
    ]:
        for need in tomllib.loads(file.read_text())["project"].get("dependencies", []):
            assert not re.search(r"[<@]|==|!=|~=", need), f"{file.parent.name}: {need}"
            if need.startswith("torch"):
                assert need == "torch>=2.9"


def test_ci_runs_exactly_the_readmes_test_command():
    script = (ROOT / ".ci" / "run").read_text()
    lines = [line for line in script.splitlines() if line.strip() and not line.startswith("#")]
    readme = (ROOT / "README.md").read_text()
    command = "python -m pip install uv && uv run nox"
    assert command in readme
    assert lines[-1] == command
    assert all(line.startswith(("set ", "cd ")) for line in lines[:-1])
