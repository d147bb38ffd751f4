"""``icml doctor``: what is installed, what it can use, and what is wrong with it."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any

from icml_core import api_version
from icml_core.contracts import CONTRACTS
from icml_core.errors import install_command
from icml_core.hookspecs import GROUP
from icml_core.listing import table
from icml_core.registry import Registry, duplicate_distributions
from icml_core.requirements import unmet
from icml_core.run import provenance


def diagnose(*, times: bool = False) -> dict[str, Any]:
    """The state of this environment as plain data; ``problems`` lists what is wrong."""
    registry = Registry.discover(strict=False)
    problems = [f"{b.name} ({b.distribution}) is broken: {b.reason}" for b in registry.broken]
    problems += [
        f"{name} is claimed by {' and '.join(e.distribution for e in entries)}"
        for name, entries in registry.clashes.items()
    ]
    problems += [
        f"{name} is installed more than once: {', '.join(f'{v} in {p}' for v, p in places)}"
        for name, places in duplicate_distributions().items()
    ]
    problems += [
        f"{entry.name} names an unknown contract {contract!r}; the contracts are {', '.join(CONTRACTS)}"
        for entry in registry.entries()
        for contract in entry.component.implements
        if contract not in CONTRACTS
    ]
    problems += _unmet_family(registry)
    without = _without_entry_point()
    problems += [f"{name} has no entry point in group {GROUP!r}; reinstall it" for name in without]
    present = sorted({p.distribution for p in registry.plugins} | {b.distribution for b in registry.broken})
    return {
        "interpreter": sys.executable,
        "prefix": sys.prefix,
        "api_version": api_version,
        **{k: v for k, v in provenance().items() if k in ("python", "platform", "cores", "versions")},
        "devices": _devices(),
        "kernels": _kernels(),
        "plugins": [
            {"plugin": p.name, "distribution": p.distribution, "version": p.version} for p in registry.plugins
        ],
        "broken": [
            {"plugin": b.name, "distribution": b.distribution, "reason": b.reason, "traceback": b.traceback}
            for b in registry.broken
        ],
        "problems": problems,
        "reinstall": install_command("--force-reinstall", *present) if present else None,
        "times": _import_times() if times else None,
    }


def diagnosis_text(diagnosis: Mapping[str, Any]) -> str:
    """The diagnosis for people."""
    versions = "  ".join(f"{name} {version}" for name, version in diagnosis["versions"].items())
    lines = table(
        [
            ("interpreter", diagnosis["interpreter"]),
            ("prefix", diagnosis["prefix"]),
            ("system", f"{diagnosis['platform']}, {diagnosis['cores']} cores, Python {diagnosis['python']}"),
            ("versions", versions),
            ("devices", ", ".join(diagnosis["devices"])),
            ("kernels", "; ".join(f"{k}: {v}" for k, v in diagnosis["kernels"].items())),
        ]
    )
    lines += ["", "plug-ins:"]
    lines += table([(f"  {p['plugin']}", p["distribution"], p["version"]) for p in diagnosis["plugins"]])
    if diagnosis["times"] is not None:
        lines += ["", "seconds to import each plug-in and its public package:"]
        lines += [f"  {seconds:7.3f}  {name}" for name, seconds in diagnosis["times"].items()]
    for broken in diagnosis["broken"]:
        lines += ["", f"broken: {broken['plugin']} ({broken['distribution']})", broken["traceback"].rstrip()]
    lines += ["", "problems:" if diagnosis["problems"] else "no problems found"]
    lines += [f"  {problem}" for problem in diagnosis["problems"]]
    if diagnosis["problems"] and diagnosis["reinstall"]:
        lines += ["", f"reinstall the present plug-ins with: {diagnosis['reinstall']}"]
    return "\n".join(lines) + "\n"


def _without_entry_point() -> list[str]:
    """Distributions called ``icml-*`` that depend on the core and yet offer no plug-in.

    Shared libraries of the family (the core, the kernels) are no plug-ins: only distributions whose
    package holds a ``plugin`` module are meant.
    """
    names = []
    for distribution in metadata.distributions():
        name = (distribution.metadata["Name"] or "").lower()
        if not name.startswith("icml-") or any(e.group == GROUP for e in distribution.entry_points):
            continue
        spec = util.find_spec(name.replace("-", "_"))
        places = (spec.submodule_search_locations or ()) if spec else ()
        if any((Path(place) / "plugin.py").is_file() for place in places):
            names.append(name)
    return sorted(set(names))


def _unmet_family(registry: Registry) -> list[str]:
    """Plug-ins that want another core or other kernels than those installed."""
    from packaging.requirements import Requirement

    problems = []
    for plugin in registry.plugins:
        try:
            lines = metadata.requires(plugin.distribution) or []
        except metadata.PackageNotFoundError:
            continue
        for line in lines:
            wanted = Requirement(line)
            if not wanted.name.startswith("icml-") or (
                wanted.marker and not wanted.marker.evaluate({"extra": ""})
            ):
                continue
            bare = f"{wanted.name}{wanted.specifier}"
            if (needs := unmet(bare)) is not None:
                problems.append(f"{plugin.distribution} {plugin.version} {needs}")
    return problems


def _devices() -> list[str]:
    if util.find_spec("torch") is None:
        return ["cpu (torch is not installed)"]
    import torch

    names = ["cpu"]
    names += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def _kernels() -> dict[str, str]:
    """Which route the shared kernels take on each device."""
    if util.find_spec("icml_kernels") is None:
        return {"icml-kernels": "not installed"}
    try:
        routes = importlib.import_module("icml_kernels").routes()
    except Exception as error:
        return {"icml-kernels": f"broken: {type(error).__name__}: {error}"}
    return {str(device): str(route) for device, route in routes.items()}


def _import_times() -> dict[str, float]:
    """Seconds that importing each plug-in takes in a fresh interpreter, the slowest first."""
    times = {}
    for entry_point in metadata.entry_points(group=GROUP):
        timer = "import time; begin = time.perf_counter(); import {}; print(time.perf_counter() - begin)"
        code = timer.format(entry_point.module)
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        last = (done.stdout.strip().splitlines() or [""])[-1]
        times[entry_point.name] = float(last) if done.returncode == 0 and last else float("inf")
    return dict(sorted(times.items(), key=lambda item: -item[1]))
