"""Every check there is: one session each, one per distribution where it applies.

``nox`` runs what CI runs. Sessions write only into their own environment and cache, and pass
``UV_PROJECT_ENVIRONMENT`` per call, so that several can run side by side as separate processes.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import tomllib
import zipfile
from dataclasses import dataclass
from pathlib import Path

import nox

ROOT = Path(__file__).parent
nox.options.default_venv_backend = "uv"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = True

WORKERS = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
# No window, no user configuration.
QUIET = {"MPLBACKEND": "agg", "PYTHONHASHSEED": "0", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Member:
    """A distribution of the workspace."""

    folder: Path
    name: str
    needs: frozenset[str]

    @property
    def slug(self) -> str:
        return self.name.removeprefix("icml-")

    @property
    def module(self) -> str:
        return self.name.replace("-", "_")


def members() -> list[Member]:
    """Core, kernels, then every package: found by their files, listed nowhere by hand."""
    found = []
    for folder in (ROOT / "core", ROOT / "kernels", *sorted((ROOT / "packages").iterdir())):
        if not (folder / "pyproject.toml").is_file():
            continue
        project = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        wanted = [
            *project.get("dependencies", []),
            *(need for extra in project.get("optional-dependencies", {}).values() for need in extra),
        ]
        names = {re.split(r"[\s\[<>=!~;@]", need)[0] for need in wanted}
        found.append(Member(folder, project["name"], frozenset(n for n in names if n.startswith("icml-"))))
    return found


MEMBERS = members()
PACKAGES = [member for member in MEMBERS if member.folder.parent.name == "packages"]
PLUGINS = [m for m in PACKAGES if (m.folder / "src" / m.module / "plugin.py").is_file()]  # the rest only help
_NO_FAMILY = ("interpret", "compile", "__pycache__")  # these need an interpreter of their own
FAMILIES = [
    p.name for p in sorted((ROOT / "kernels" / "tests").iterdir()) if p.is_dir() and p.name not in _NO_FAMILY
]
DISTRIBUTIONS = ["core", "kernels/shared", *(f"kernels/{name}" for name in FAMILIES)]
DISTRIBUTIONS += [member.slug for member in PACKAGES]


def sync(session: nox.Session, *arguments: str) -> None:
    """Bring the session's environment to what ``uv.lock`` says for ``arguments``, and nothing else."""
    session.run_install(
        "uv", "sync", "--locked", "--no-default-groups", *arguments,
        env={"UV_PROJECT_ENVIRONMENT": session.virtualenv.location},
        external=True,
    )  # fmt: skip


def pytest(session: nox.Session, *arguments: str, **env: str) -> None:
    """Run pytest in one process a core, with one thread each and the cache in the session's own folder.

    Processes that together have more threads than the machine has cores wait for each other at every
    parallel loop: with two threads each on two cores, tests of dynamics took ten times as long.
    """
    cache = Path(session.virtualenv.location) / ".pytest_cache"
    shared = ["-n", str(WORKERS), "--dist", "worksteal"] if WORKERS > 1 else []
    session.run(
        "python", "-m", "pytest", "-q", "-o", f"cache_dir={cache}", *shared, *arguments,
        env=QUIET | {"OMP_NUM_THREADS": "1"} | env,
    )  # fmt: skip


@nox.session
def lint(session: nox.Session) -> None:
    """ruff, the rules of the house, and that generated lists are fresh."""
    sync(session, "--only-group", "lint")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "tools/check_layout.py", external=True)
    session.run("python", "tools/sync_index.py", "--check", external=True)


@nox.session
def types(session: nox.Session) -> None:
    """mypy: every distribution by itself, and its public names from outside."""
    sync(session, "--group", "types", "--all-packages")
    packages = [word for member in MEMBERS for word in ("-p", member.module)]
    session.run("mypy", *packages)
    session.run("mypy", "tests/typing")


@nox.session
@nox.parametrize("dist", DISTRIBUTIONS, ids=DISTRIBUTIONS)
def tests(session: nox.Session, dist: str) -> None:
    """One distribution (of the kernels: one family), not editable, with its declared dependencies only."""
    slug, _, family = dist.partition("/")
    member = next(m for m in MEMBERS if m.slug == slug)
    sync(session, "--package", member.name, "--group", "test", "--no-editable")
    folder = member.folder / "tests"
    if family and family != "shared":
        pytest(session, str(folder / family), *session.posargs)
        return
    if family:
        pytest(session, *sorted(str(p) for p in folder.glob("test_*.py")), *session.posargs)
    else:
        pytest(session, str(folder), f"--ignore={folder / 'compose'}", *session.posargs)
    session.run("python", "tools/run_readme.py", str(member.folder / "README.md"), env=QUIET)


@nox.session(name="kernels-interpret")
def kernels_interpret(session: nox.Session) -> None:
    """Triton's kernels on the CPU, in its interpreter."""
    sync(session, "--package", "icml-kernels", "--group", "test", "--no-editable")
    pytest(session, str(ROOT / "kernels" / "tests" / "interpret"), *session.posargs, TRITON_INTERPRET="1")


@nox.session(name="kernels-compile")
def kernels_compile(session: nox.Session) -> None:
    """Triton's kernels compiled ahead of time, without a GPU: they fit, and nothing spills."""
    sync(session, "--package", "icml-kernels", "--group", "test", "--no-editable")
    pytest(session, str(ROOT / "kernels" / "tests" / "compile"), *session.posargs)


@nox.session
def contract(session: nox.Session) -> None:
    """Everything installed together: discovery, composition, the README's commands."""
    sync(session, "--all-packages", "--all-extras", "--all-groups", "--no-group", "docs", "--no-editable")
    compose = [
        str(m.folder / "tests" / "compose") for m in PACKAGES if (m.folder / "tests" / "compose").is_dir()
    ]
    pytest(session, "tests", *compose, *session.posargs)
    pages = [
        ROOT / "README.md",
        *sorted((ROOT / "docs").glob("*.md")),
        *sorted((ROOT / "docs").glob("guide/*.md")),
    ]
    session.run("python", "tools/run_readme.py", *map(str, pages), env=QUIET)


@nox.session
@nox.parametrize("dist", ["core", "kernels"], ids=["core", "kernels"])
def lowest(session: nox.Session, dist: str) -> None:
    """The lowest versions that a distribution declares."""
    member = next(m for m in MEMBERS if m.slug == dist)
    group = tomllib.loads((member.folder / "pyproject.toml").read_text())["dependency-groups"]["test"]
    extra = "[verify]" if dist == "core" else ""
    session.install("--resolution", "lowest-direct", f"{member.folder}{extra}", *_plain(group))
    ignored = [f"--ignore={member.folder / 'tests' / name}" for name in ("interpret", "compile")]
    pytest(session, str(member.folder / "tests"), *ignored, *session.posargs)


def _plain(group: list[str]) -> list[str]:
    return [need for need in group if not need.startswith("icml-")]


@nox.session
def wheels(session: nox.Session) -> None:
    """Builds every wheel, checks what is in it, and uses one in an empty environment."""
    dist = Path(session.create_tmp()) / "dist"
    session.run("rm", "-rf", str(dist), external=True)
    session.run(
        "uv", "build", "--all-packages", "--wheel", "--out-dir", str(dist), external=True, silent=True
    )
    for member in MEMBERS:
        wheel = next(dist.glob(f"{member.module}-*.whl"), None)
        if wheel is None:
            session.error(f"no wheel of {member.name}")
        problems = _wheel_problems(wheel, member)
        if problems:
            session.error(f"{wheel.name}: {'; '.join(problems)}")
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder) / "empty"
        session.run("uv", "venv", "-q", str(empty), external=True)
        python = str(empty / "bin" / "python")
        session.run(
            "uv",
            "pip",
            "install",
            "-q",
            "--python",
            python,
            "--find-links",
            str(dist),
            "icml-btt",
            external=True,
        )
        listed = subprocess.run(
            [python, "-m", "icml_core", "list"], capture_output=True, text=True, cwd=folder, check=True
        ).stdout
        if "btt." not in listed or "flashschnet." in listed or "broken" in listed:
            session.error(f"an environment with icml-btt alone lists:\n{listed}")
        session.log("an environment with icml-btt alone lists it and nothing else")


_PINNED = re.compile(r"@|torch==|\+cu|\+cpu|icml-.*(<|==)")


def _wheel_problems(wheel: Path, member: Member) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = next(n for n in names if n.endswith(".dist-info/METADATA"))
        text = archive.read(metadata).decode()
    packed = {n.removeprefix(f"{member.module}/") for n in names if n.startswith(f"{member.module}/")}
    source = member.folder / "src" / member.module
    wanted = {
        str(p.relative_to(source))
        for p in source.rglob("*")
        if p.is_file() and "__pycache__" not in p.parts and not p.name.startswith(".")
    }
    problems = [f"lacks {name}" for name in sorted(wanted - packed)]
    problems += [f"has {name}, which is no source" for name in sorted(packed - wanted)]
    if "py.typed" not in packed:
        problems.append("lacks py.typed")
    outside = [n for n in names if not n.startswith((f"{member.module}/", f"{member.module}-"))]
    problems += [f"has {name} outside its package" for name in outside]
    for line in text.splitlines():
        wanted_there = line.partition(";")[0]  # a marker such as extra == 'fast' pins nothing
        if line.startswith("Requires-Dist:") and _PINNED.search(wanted_there):
            problems.append(f"pins or points somewhere: {line}")
    return problems


@nox.session
def docs(session: nox.Session) -> None:
    """Builds the site, strictly."""
    sync(session, "--group", "docs", "--all-packages")
    session.run("python", "tools/sync_index.py", "--check", external=True)
    session.run("zensical", "build", "--clean", "--strict")  # into site/, which git ignores


@nox.session(name="sync-index", default=False)
def sync_index(session: nox.Session) -> None:
    """Write the lists that are derived from the members: root dependencies and the docs' index."""
    session.run("python", "tools/sync_index.py", external=True)
    session.run("uv", "lock", external=True)


@nox.session(default=False)
@nox.parametrize("dist", [m.slug for m in PLUGINS], ids=[m.slug for m in PLUGINS])
def verify(session: nox.Session, dist: str) -> None:
    """Measure a plug-in's claims at the small scale, with teeth, and write its ledger entry."""
    sync(session, "--package", f"icml-{dist}", "--group", "test", "--all-extras", "--no-editable")
    session.run("icml", "verify", dist, "--ledger", *session.posargs, success_codes=[0, 1])


@nox.session(default=False)
@nox.parametrize("dist", [m.slug for m in MEMBERS], ids=[m.slug for m in MEMBERS])
def bench(session: nox.Session, dist: str) -> None:
    """Run a distribution's benchmarks beside its peers, in an environment that has them.

    Peers come without their dependencies, which would replace versions that are measured; what a peer does
    need is listed beside it.
    """
    member = next(m for m in MEMBERS if m.slug == dist)
    folder = member.folder / "benchmarks"
    sync(session, "--package", member.name, "--group", "test", "--all-extras", "--no-editable")
    if (folder / "requirements.txt").is_file():
        session.install("--no-deps", "-r", str(folder / "requirements.txt"))
    for script in sorted(folder.glob("*.py")):
        session.run("python", str(script), *session.posargs, env=QUIET)


@nox.session(default=False)
def gpu(session: nox.Session) -> None:
    """The tests that want a CUDA device: the kernels' values on it."""
    sync(session, "--package", "icml-kernels", "--group", "test", "--no-editable")
    pytest(session, str(ROOT / "kernels" / "tests"), "-m", "gpu", *session.posargs)


@nox.session(default=False)
def affected(session: nox.Session) -> None:
    """Tests of the members that changed since a git reference, and of those that depend on them.

    ``nox -s affected -- main``
    """
    reference = session.posargs[0] if session.posargs else "main"
    changed = subprocess.run(
        ["git", "diff", "--name-only", reference, "--"], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout.splitlines()
    touched = {m.name for m in MEMBERS if any((ROOT / c).is_relative_to(m.folder) for c in changed)}
    while more := {m.name for m in MEMBERS if m.needs & touched} - touched:
        touched |= more
    for name in sorted(touched):
        slug = name.removeprefix("icml-")
        for dist in DISTRIBUTIONS:
            if dist.partition("/")[0] == slug:
                session.notify(f"tests({dist})")
    if not touched:
        session.log(f"no member changed since {reference}")
