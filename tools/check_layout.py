"""Check what keeps the packages alike and apart: layout, import rules, declared dependencies.

Prints one finding a line; exit status 1 where there is one. Standard library only.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIGHT = ("__init__.py", "plugin.py", "jobs.py", "claims.py", "examples.py")
SECTIONS = ("Install", "Use", "Command line", "Claims", "Citation")
CACHE_KEYS = [{"file": "pyproject.toml"}, {"file": "src/**/*"}]
MAX_LINES = 500
# Import names that differ from the distribution's name.
DISTRIBUTION_OF = {
    "skfem": "scikit-fem",
    "sklearn": "scikit-learn",
    "PIL": "pillow",
    "yaml": "pyyaml",
    "Bio": "biopython",
    "cvxpy": "cvxpy-base",
}


def findings(root: Path = ROOT) -> list[str]:
    """Everything that breaks a rule, one line each."""
    found = []
    for folder in (root / "core", root / "kernels", *sorted((root / "packages").iterdir())):
        if (folder / "pyproject.toml").is_file():
            found += [f"{folder.relative_to(root)}: {line}" for line in member_findings(folder)]
    return found


def member_findings(folder: Path) -> Iterator[str]:
    """What one distribution breaks."""
    data = tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))
    project = data["project"]
    module = project["name"].replace("-", "_")
    source = folder / "src" / module
    if data.get("tool", {}).get("uv", {}).get("cache-keys") != CACHE_KEYS:
        yield "pyproject.toml lacks the cache-keys that make uv rebuild an edited member"
    if data.get("build-system", {}).get("build-backend") != "uv_build":
        yield "the build back end is not uv_build"
    if "test" not in data.get("dependency-groups", {}):
        yield "pyproject.toml lacks a dependency group 'test'"
    for name in ("__init__.py", "py.typed"):
        if not (source / name).is_file():
            yield f"lacks {(source / name).relative_to(folder)}"
    is_package = folder.parent.name == "packages"
    is_plugin = (source / "plugin.py").is_file()
    for path in sorted(source.rglob("*.py")):
        yield from _source_findings(path, source, is_package and is_plugin)
    yield from _undeclared(source, project, module)
    if is_plugin and is_package:
        yield from _plugin_findings(folder, project, module)


def _source_findings(path: Path, source: Path, is_plugin: bool) -> Iterator[str]:
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(source)
    if text.count("\n") > MAX_LINES:
        yield f"{name} has {text.count(chr(10))} lines; split it by concept"
    tree = ast.parse(text)
    if is_plugin and path.parent == source and path.name in LIGHT:
        heavy = {
            root
            for root, at_top in imports(tree)
            if at_top and root not in (*sys.stdlib_module_names, "icml_core")
        }
        if heavy:
            yield f"{name} imports {', '.join(sorted(heavy))} at module level; move it into the functions"
    if source.name == "icml_core":
        heavy = {root for root, at_top in imports(tree) if at_top} & {"torch", "numpy", "scipy", "triton"}
        if heavy:
            yield f"{name}: the core imports {', '.join(sorted(heavy))} at module level"


def _undeclared(source: Path, project: dict, module: str) -> Iterator[str]:
    extras = project.get("optional-dependencies", {}).values()
    needs = [*project.get("dependencies", []), *(need for extra in extras for need in extra)]
    declared = {_normal(re.split(r"[\s\[<>=!~;@]", need)[0]) for need in needs}
    used: dict[str, Path] = {}
    for path in sorted(source.rglob("*.py")):
        for root, _ in imports(ast.parse(path.read_text(encoding="utf-8"))):
            used.setdefault(root, path)
    optional = {"core": {"torch", "numpy", "pytest", "safetensors"}, "kernels": {"pytest", "triton"}}
    allowed = optional.get(module.removeprefix("icml_"), {"pytest"})
    for root, path in sorted(used.items()):
        if root in sys.stdlib_module_names or root == module or root in allowed:
            continue
        distribution = _normal(DISTRIBUTION_OF.get(root, root))
        if distribution not in declared and not (module == "icml_core" and root == "icml_kernels"):
            yield f"{path.relative_to(source)} imports {root}, which pyproject.toml does not declare"


def _plugin_findings(folder: Path, project: dict, module: str) -> Iterator[str]:
    slug = folder.name
    if project["name"] != f"icml-{slug}":
        yield f"the distribution is called {project['name']}, not icml-{slug}"
    if project.get("entry-points", {}).get("icml") != {slug: f"{module}.plugin"}:
        yield f'the entry point is not {slug} = "{module}.plugin"'
    for name in (f"src/{module}/claims.py", f"src/{module}/examples.py", "benchmarks", "tests", "README.md"):
        if not (folder / name).exists():
            yield f"lacks {name}"
    readme = (folder / "README.md").read_text(encoding="utf-8")
    headings = [h.strip().lower() for h in re.findall(r"^#+\s+(.*)$", readme, re.MULTILINE)]
    for section in SECTIONS:
        if not any(h.startswith(section.lower()) for h in headings):
            yield f"README.md lacks the section {section!r}"


def imports(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Root names of absolute imports, and whether each is executed when the module is imported."""
    top: set[ast.stmt] = set()
    pending = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        top.add(node)
        for field in ("body", "orelse", "handlers", "finalbody"):
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                pending += getattr(node, field, [])
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name.split(".")[0], node in top
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").split(".")[0], node in top


def _normal(name: str) -> str:
    return name.lower().replace("_", "-")


if __name__ == "__main__":
    found = findings()
    print("\n".join(found) if found else "layout: nothing found")
    sys.exit(1 if found else 0)
