"""A folder that plug-ins can be put into as if they had been installed there."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest
from icml_core.cli import call

GOOD = """
from icml_core import Component, Paper, hookimpl

@hookimpl
def icml_paper():
    return Paper(title="A paper", arxiv="2601.00001")

@hookimpl
def icml_solvers():
    return [Component("{name}.sum", "icml_{name}.method:Sum", summary="adds numbers",
                      implements=("Solver",), example="icml_{name}.examples:add", job="icml_{name}.jobs:add")]

@hookimpl
def icml_claims():
    return "icml_{name}.claims:suite"
"""

JOBS = """
from __future__ import annotations
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal
from icml_core import Run, resumable

class Color(Enum):
    RED_HOT = "r"
    BLUE = "b"

@dataclass(frozen=True)
class Step:
    size: float = 0.5
    kind: Literal["plain", "fancy"] = "plain"
    count: int | None = 3

@resumable(may_change=("rounds",))
def add(*, run: Run, numbers: list[int] = [1, 2], name: str | None = "x", place: Path = Path("here"),
        flag: bool = True, step: Step = Step(), color: Color = Color.BLUE, factor: float = 1.0,
        rounds: int = 1, fail: Literal["no", "early", "late", "hang"] = "no",
        pair: tuple[float, float] = (0.0, 1.0)) -> dict:
    '''Add numbers.

    Args:
        numbers: what to add.
        factor: multiplies the sum.
    '''
    if fail == "early":
        raise ValueError(f"factor {factor} is early; give another")
    done = len(run.file("metrics.jsonl").read_text().splitlines()) if run.resumed else 0
    for step_ in range(done, rounds):
        run.log(step_, total=sum(numbers) * factor)
        if fail == "hang":
            import time
            time.sleep(60)
    if fail == "late":
        raise ValueError("late")
    with run.path("sum.txt") as temporary:
        temporary.write_text(str(sum(numbers) * factor))
    return {"sum": sum(numbers) * factor, "kind": step.kind, "numbers": numbers, "name": name}
"""


@dataclass
class Site:
    """A site directory on the path of this process and of those that :meth:`icml` starts."""

    folder: Path
    work: Path

    def add(
        self,
        name: str,
        source: str,
        *,
        distribution: str | None = None,
        version: str = "1.0",
        files: dict[str, str] | None = None,
        value: str | None = None,
    ) -> None:
        """Install a plug-in: package ``icml_<name>`` with the given ``plugin`` module."""
        distribution = distribution or f"icml-{name}"
        package = distribution.replace("-", "_")
        folder = self.folder / package
        folder.mkdir(exist_ok=True)
        for file, text in ({"__init__.py": "", "plugin.py": source} | (files or {})).items():
            (folder / file).write_text(textwrap.dedent(text))
        info = self.folder / f"{package}-{version}.dist-info"
        info.mkdir(exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
        (info / "entry_points.txt").write_text(f"[icml]\n{name} = {value or f'{package}.plugin'}\n")

    def add_good(self, name: str, **options) -> None:
        """Install a plug-in that works."""
        self.add(
            name,
            GOOD.format(name=name),
            files={
                "jobs.py": JOBS,
                "method.py": """
                    from dataclasses import dataclass

                    @dataclass(frozen=True)
                    class Total:
                        value: float
                        def verify(self, problem):
                            if self.value != sum(problem):
                                raise ValueError(f"{self.value} is not the sum {sum(problem)}")

                    class Sum:
                        def solve(self, problem):
                            if not problem:
                                raise ValueError("nothing to add; give numbers")
                            return Total(sum(problem))
                    """,
                "examples.py": f"""
                    from icml_core import Example

                    def add(seed):
                        from icml_{name}.method import Sum, Total
                        return Example(build=Sum, inputs=lambda: [1, 2, seed],
                                       call=lambda s, p: s.solve(p), check=lambda r: None,
                                       corrupt=lambda r: Total(r.value + 1), bad=lambda: [])
                    """,
                "claims.py": f"""
                    from icml_core import ClaimSuite, Run
                    suite = ClaimSuite("{name}")

                    @suite.measure(seeds={{"smoke": 1, "small": 4, "full": 4}}, ablations=("off", "idle"))
                    def adding(run: Run, seed: int):
                        print("noise on standard output")
                        wobble = seed % 7 / 1000
                        shift = {{"off": 3.0, "idle": 0.0, None: 0.0}}[run.ablation]
                        return {{"error": wobble + shift, "other": wobble + 1}}

                    suite.claim("small-error", of=adding, figure="error", kind="every", at_most=0.1,
                                statement="s", paper="p", teeth="off")
                    suite.claim("toothless", of=adding, figure="error", kind="mean", at_most=0.1,
                                statement="s", paper="p", teeth="idle")
                    suite.claim("reported", of=adding, figure="other", kind="mean", statement="s", paper="p")
                    suite.claim("wrong", of=adding, figure="other", kind="mean", at_most=0.5,
                                statement="s", paper="p")
                    """,
            },
            **options,
        )

    def icml(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line in this process, in the work folder."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = call(arguments)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    def spawn(self, *arguments: str, env: dict[str, str] | None = None, timeout: float = 120):
        """Run the command line in a process of its own, in the work folder."""
        return subprocess.run(
            [sys.executable, "-m", "icml_core", *arguments],
            capture_output=True,
            text=True,
            cwd=self.work,
            env=self.environment() | (env or {}),
            timeout=timeout,
        )

    def environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(self.folder), "COLUMNS": "100", "NO_COLOR": "1"}

    def json(self, *arguments: str):
        done = self.icml(*arguments, "--json")
        return json.loads(done.stdout)


@pytest.fixture
def site(tmp_path, monkeypatch):
    folder, work = tmp_path / "site", tmp_path / "work"
    folder.mkdir()
    work.mkdir()
    monkeypatch.syspath_prepend(folder)
    monkeypatch.chdir(work)
    before = set(sys.modules)
    yield Site(folder, work)
    for name in set(sys.modules) - before:
        if name.startswith("icml_") and not name.startswith("icml_core"):
            del sys.modules[name]


@pytest.fixture
def good(site):
    """The site with one working plug-in, ``good``."""
    site.add_good("good")
    return site
