"""A third party's plug-in: made by ``icml new`` outside the repository, in an environment of its own."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """An empty folder with an environment that holds the core alone."""
    folder = tmp_path_factory.mktemp("elsewhere")
    uv = shutil.which("uv")
    assert uv is not None
    subprocess.run([uv, "venv", "-q", "--no-project", "env"], cwd=folder, check=True)
    install = [uv, "pip", "install", "-q", "--python", "env"]
    subprocess.run([*install, f"{ROOT / 'core'}[verify]", "pytest"], cwd=folder, check=True)
    script = folder / "env" / "bin" / "icml"
    subprocess.run([script, "new", "demo"], cwd=folder, check=True)
    subprocess.run([*install, "./demo"], cwd=folder, check=True)
    return folder


def run(home, *words):
    return subprocess.run(
        [home / "env" / "bin" / words[0], *words[1:]], cwd=home, capture_output=True, text=True
    )


def test_it_is_discovered_and_nothing_else_is(home):
    done = run(home, "icml", "list")
    assert done.returncode == 0
    assert [line.split()[1] for line in done.stdout.splitlines()] == ["demo.golden"]


def test_it_runs(home):
    done = run(home, "icml", "run", "demo.golden", "--center", "2.0", "--out", "r")
    assert done.returncode == 0, done.stderr
    assert "position: 2" in done.stdout


def test_it_verifies_with_teeth(home):
    done = run(home, "icml", "verify", "demo", "--teeth", "--strict")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "holds, bites" in done.stdout
    assert (home / "icml-runs" / "verify" / "demo" / "report.html").is_file()


def test_it_passes_its_own_tests(home):
    done = run(home, "pytest", "-q", "demo")
    assert done.returncode == 0, done.stdout
    assert "failed" not in done.stdout


def test_its_environment_has_no_torch(home):
    done = run(home, "python", "-c", "import torch")
    assert "No module named 'torch'" in done.stderr
