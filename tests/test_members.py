"""What the workspace promises about members: an edited one is rebuilt, an undeclared sibling is not there."""

import os
import shutil
import subprocess

import pytest

ROOT = """
[project]
name = "probe-workspace"
version = "0"
requires-python = ">=3.11"
dependencies = ["icml-probe", "icml-sibling"]
[tool.uv]
package = false
[tool.uv.workspace]
members = ["packages/*"]
[tool.uv.sources]
icml-probe = { workspace = true }
icml-sibling = { workspace = true }
"""
MEMBER = """
[project]
name = "icml-{name}"
version = "0.1.0"
requires-python = ">=3.11"
[tool.uv]
cache-keys = [{{ file = "pyproject.toml" }}, {{ file = "src/**/*" }}]
[build-system]
requires = ["uv_build>=0.9,<1"]
build-backend = "uv_build"
"""


@pytest.fixture(scope="module")
def workspace(tmp_path_factory):
    folder = tmp_path_factory.mktemp("workspace")
    (folder / "pyproject.toml").write_text(ROOT)
    for name, code in (("probe", "VALUE = 1\n"), ("sibling", "")):
        source = folder / "packages" / name / "src" / f"icml_{name}"
        source.mkdir(parents=True)
        (source / "__init__.py").write_text(code)
        (folder / "packages" / name / "pyproject.toml").write_text(MEMBER.format(name=name))
    return folder


def sync(workspace):
    uv = shutil.which("uv")
    assert uv is not None
    command = [uv, "sync", "-q", "--package", "icml-probe", "--no-editable"]
    # Without the variables by which a session points uv at its own environment.
    env = {k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV" and not k.startswith("UV_P")}
    done = subprocess.run(command, cwd=workspace, capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stderr


def python(workspace, code):
    return subprocess.run(
        [workspace / ".venv" / "bin" / "python", "-c", code], cwd=workspace, capture_output=True, text=True
    )


def test_an_edited_member_is_rebuilt_although_it_is_not_editable(workspace):
    sync(workspace)
    assert python(workspace, "import icml_probe; print(icml_probe.VALUE)").stdout == "1\n"
    (workspace / "packages" / "probe" / "src" / "icml_probe" / "__init__.py").write_text("VALUE = 2\n")
    sync(workspace)
    assert python(workspace, "import icml_probe; print(icml_probe.VALUE)").stdout == "2\n"


def test_a_sibling_that_is_not_declared_is_not_there(workspace):
    sync(workspace)
    assert "No module named 'icml_sibling'" in python(workspace, "import icml_sibling").stderr
