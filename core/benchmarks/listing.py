"""Wall time of ``icml list`` with 50 plug-ins, interpreter start included; target: at most 0.35 s.

Beside it the same with plug-ins that import torch at module level, where torch is installed: what the
rule of light imports saves. Prints a table and writes ``results/listing.json``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import util
from pathlib import Path

from icml_core.run import provenance, public

PLUGINS = 50
REPEATS = 9
SOURCE = """
from icml_core import Component, Paper, hookimpl
{extra}

@hookimpl
def icml_paper():
    return Paper(title="Paper {name}", arxiv="2601.00001")

@hookimpl
def icml_models():
    return [Component("{name}.model", "icml_{name}.model:Model", summary="model", implements=("Module",)),
            Component("{name}.large", "icml_{name}.model:Large", summary="large", implements=("Module",))]

@hookimpl
def icml_solvers():
    return [Component("{name}.solve", "icml_{name}.solve:Solve", summary="solver", job="icml_{name}.jobs:go")]
"""


def make(site: Path, extra: str) -> None:
    """Install the plug-ins into the folder ``site``."""
    for index in range(PLUGINS):
        name = f"made{index}"
        package = site / f"icml_{name}"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("")
        (package / "plugin.py").write_text(SOURCE.format(name=name, extra=extra))
        info = site / f"icml_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: icml-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[icml]\n{name} = icml_{name}.plugin\n")


def measure(site: Path) -> list[float]:
    """Seconds of each repeat, after one that is not counted and compiles the plug-ins."""
    seconds = []
    for _ in range(REPEATS + 1):
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-m", "icml_core", "list"],
            env=os.environ | {"PYTHONPATH": str(site)},
            capture_output=True,
            text=True,
            check=True,
        )
        seconds.append(time.perf_counter() - begin)
        assert done.stdout.count("made") >= 3 * PLUGINS
    return seconds[1:]


def main() -> None:
    """Measure both, print and write."""
    rows = []
    cases = {"light": ""} | ({"importing torch": "import torch"} if util.find_spec("torch") else {})
    with tempfile.TemporaryDirectory() as folder:
        for case, extra in cases.items():
            site = Path(folder) / case.replace(" ", "-")
            make(site, extra)
            seconds = measure(site)
            rows.append(
                {
                    "case": f"icml list, {PLUGINS} plug-ins, {case}",
                    "ours": {"seconds": statistics.median(seconds)},
                }
            )
            median, spread = statistics.median(seconds), f"{min(seconds):.3f} to {max(seconds):.3f}"
            print(f"{case:16}  median {median:.3f} s  ({spread})")
    results = Path(__file__).parent / "results"
    results.mkdir(exist_ok=True)
    document = {
        "benchmark": "listing",
        "environment": public(provenance()),
        "target_seconds": 0.35,
        "rows": rows,
    }
    (results / "listing.json").write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
