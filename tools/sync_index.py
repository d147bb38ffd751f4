"""Write what is derived from the members: the root's dependencies and sources, and the pages of the docs.

``--check`` writes nothing and fails where something is stale.
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = {"icml-core": "[dask,verify]"}  # what the workspace itself wants of a member besides its base


@dataclass(frozen=True)
class Package:
    """A plug-in of the workspace, or a distribution that several of them stand on."""

    slug: str
    description: str
    readme: str
    is_plugin: bool


def packages() -> list[Package]:
    """Every folder of ``packages/`` with a pyproject, by name."""
    found = []
    for file in sorted((ROOT / "packages").glob("*/pyproject.toml")):
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        readme = (file.parent / "README.md").read_text(encoding="utf-8")
        is_plugin = "icml" in project.get("entry-points", {})
        found.append(
            Package(project["name"].removeprefix("icml-"), project["description"], readme, is_plugin)
        )
    return found


def main(check: bool) -> int:
    """Write or compare every generated file; the exit status."""
    stale = []
    for path, text in generated().items():
        if path.is_file() and path.read_text(encoding="utf-8") == text:
            continue
        if check:
            stale.append(str(path.relative_to(ROOT)))
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path.relative_to(ROOT)}")
    for path in stale:
        print(f"{path} is stale; run: nox -s sync-index", file=sys.stderr)
    return 1 if stale else 0


def generated() -> dict[Path, str]:
    """Every generated file with the text it should have."""
    found = packages()
    docs = ROOT / "docs"
    files = {ROOT / "pyproject.toml": _root(found), ROOT / "mkdocs.yml": _navigation(found)}
    for package in found:
        files[docs / "plugins" / f"{package.slug}.md"] = _page(package)
        files[docs / "reference" / f"{package.slug}.md"] = _reference(package.slug)
    files[docs / "plugins" / "index.md"] = _index(found)
    files[docs / "ledger.md"] = _ledger()
    return files


def _root(found: list[Package]) -> str:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    names = sorted(["icml-core", "icml-kernels", *(f"icml-{p.slug}" for p in found)])
    blocks = (
        "".join(f'    "{name}{EXTRAS.get(name, "")}",\n' for name in names),
        "".join(f"{name} = {{ workspace = true }}\n" for name in names),
    )
    pieces = iter(blocks)
    return re.sub(
        r"( *)# members: begin\n.*?# members: end",
        lambda m: f"{m[1]}# members: begin\n{next(pieces)}{m[1]}# members: end",
        text,
        flags=re.DOTALL,
    )


def _navigation(found: list[Package]) -> str:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    for name, folder in (("plugins", "plugins"), ("reference", "reference")):
        lines = "".join(f"      - {p.slug}: {folder}/{p.slug}.md\n" for p in found)
        text = re.sub(
            rf"      # {name}: begin\n.*?      # {name}: end",
            lambda m, name=name, lines=lines: f"      # {name}: begin\n{lines}      # {name}: end",
            text,
            flags=re.DOTALL,
        )
    return text


def _page(package: Package) -> str:
    """A package's README, with links that lead out of it made absolute to the docs."""
    return package.readme


def _reference(slug: str) -> str:
    module = f"icml_{slug.replace('-', '_')}"
    return f"# {module}\n\n::: {module}\n"


def _index(found: list[Package]) -> str:
    plugins = _table("plug-in", [p for p in found if p.is_plugin])
    shared = _table("distribution", [p for p in found if not p.is_plugin])
    text = f"# Plug-ins\n\n{plugins}"
    return f"{text}\n## Shared by several\n\n{shared}" if shared else text


def _table(first: str, packages: list[Package]) -> str:
    if not packages:
        return ""
    rows = "".join(f"| [{p.slug}]({p.slug}.md) | {p.description} | `icml-{p.slug}` |\n" for p in packages)
    return f"| {first} | what it does | to install |\n|---|---|---|\n{rows}"


def _ledger() -> str:
    """The claims of every plug-in as last measured, from ``docs/ledger``."""
    lines = [
        "# The ledger of claims",
        "",
        "Every claim as `icml verify <slug> --ledger` last measured it. *holds* and *fails* are judged by",
        "the claim's bound; *bites* says that with the paper's key idea switched off the claim fails or is",
        "worse, *blunt* that it does not notice. What does not hold here stays here.",
        "",
    ]
    for file in sorted((ROOT / "docs" / "ledger").glob("*.json")):
        data = json.loads(file.read_text(encoding="utf-8"))
        environment = data["environment"]
        lines += [
            f"## {data['plugin']}",
            "",
            f"Version {data['version']}, scale {data['scale']}, {environment['cores']} cores, "
            f"Python {environment['python']}, "
            + ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
            + ".",
            "",
            "| claim | statement | the paper | figure | bound | verdict | teeth |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [_ledger_row(claim) for claim in data["claims"]]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def _ledger_row(claim: dict) -> str:
    values = claim["values"]
    if claim["estimate"] is not None and claim["low"] is not None:
        figure = f"{claim['estimate']:.4g} ({claim['low']:.4g} to {claim['high']:.4g})"
    elif values:
        low, high = min(values), max(values)
        figure = f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
    else:
        figure = ""
    verdict = claim["verdict"] + (
        f": {claim['note']}" if claim["note"] and claim["verdict"] != "holds" else ""
    )
    cells = [
        claim["id"],
        claim["statement"],
        claim["paper"],
        f"{figure} {claim['unit']}".strip(),
        claim["bound"] or "none",
        verdict,
        claim["teeth"] or "",
    ]
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
