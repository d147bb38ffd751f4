"""``icml new``: write a complete, working plug-in to start from, inside the workspace or anywhere else."""

from __future__ import annotations

import keyword
import re
import shutil
import tempfile
from importlib import resources
from pathlib import Path
from typing import Any

from icml_core.errors import UserError

_SLUG = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def create(slug: str, into: Path | None = None) -> Path:
    """Write the plug-in ``slug`` from the template; the folder it lies in.

    Args:
        into: the folder to make; by default ``packages/<slug>`` of the workspace that the current
            directory lies in, else ``./<slug>``.

    Raises:
        UserError: the name cannot be a package's, or the folder exists.
    """
    if not _SLUG.fullmatch(slug) or keyword.iskeyword(slug):
        raise UserError(
            f"{slug!r} cannot name a plug-in: lower-case letters, digits and single hyphens, such as 'sso'"
        )
    workspace = next(
        (
            p
            for p in (Path.cwd(), *Path.cwd().parents)
            if (p / "uv.lock").is_file() and (p / "packages").is_dir()
        ),
        None,
    )
    folder = into or (workspace / "packages" / slug if workspace else Path.cwd() / slug)
    if folder.exists():
        raise UserError(f"{folder} exists already; choose another name, or another folder with --into")
    member = workspace is not None and folder.resolve().parent == (workspace / "packages").resolve()
    values = {
        "slug": slug,
        "module": slug.replace("-", "_"),
        "title": slug.replace("-", " ").capitalize(),
        "class": slug.title().replace("-", ""),
        "sources": "\n[tool.uv.sources]\nicml-core = { workspace = true }\n" if member else "",
    }
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{slug}-", dir=folder.parent) as temporary:
            made = Path(temporary) / slug
            _copy(resources.files("icml_core") / "template", made, values)
            shutil.move(made, folder)
    except OSError as error:
        raise UserError(f"cannot write to {folder}: {error.strerror or error}") from error
    return folder


def _copy(source: Any, target: Path, values: dict[str, str]) -> None:
    """Copy a folder of the template; ``@slug@`` and its like are filled in, in names and in texts."""
    target.mkdir()
    for item in source.iterdir():
        if item.name == "__pycache__":
            continue
        name = _fill(item.name, values).removesuffix(".template")
        if item.is_dir():
            _copy(item, target / name, values)
        else:
            (target / name).write_text(_fill(item.read_text(encoding="utf-8"), values), encoding="utf-8")


def _fill(text: str, values: dict[str, str]) -> str:
    for key, value in values.items():
        text = text.replace(f"@{key}@", value)
    return text
