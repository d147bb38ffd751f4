"""Things that are built once and kept in the user's cache: trained bases and converted weights.

A build is deterministic, so its version names it. It is made in a temporary folder, listed with hashes, and
moved into place whole; a lock lets one process build while others wait. ``register_base`` gives a trained
base the name under which ``load("tiny:NAME")`` finds it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from icml_core.run import write_json

MANIFEST = "manifest.json"
WHOLE = 64 << 20
"""Files up to so many bytes are hashed whole; of larger ones evenly spaced samples are."""
_SAMPLES, _SAMPLE = 64, 1 << 20
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_POLL = 0.05  # seconds between two looks at a lock


def artefact(name: str, version: str | int, build: Callable[[Path], None]) -> Path:
    """The folder of an artefact, built on first use.

    Args:
        name: letters, digits, dots, underscores and hyphens.
        version: of the recipe; another version is another artefact.
        build: called with an empty folder, into which it writes. It is deterministic.

    Returns:
        A folder in the user's cache, not to be changed. What has been damaged there is built anew.

    Raises:
        ValueError: a name or version with other characters; a build that writes nothing.
    """
    for part in (name, str(version)):
        if not _NAME.fullmatch(part):
            raise ValueError(f"{part!r} is no name of an artefact: letters, digits, '.', '_' and '-' only")
    home = cache_directory()
    folder = home / f"{name}-{version}"
    if _is_whole(folder):
        return folder
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with locked(home / f".{name}-{version}.lock"):
        if _is_whole(folder):
            return folder
        temporary = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=home))
        try:
            build(temporary)
            files = sorted(p for p in temporary.rglob("*") if p.is_file())
            if not files:
                raise ValueError(f"the build of artefact {name!r} wrote no file into the folder it was given")
            listed = {p.relative_to(temporary).as_posix(): digest(p) for p in files}
            write_json(temporary / MANIFEST, {"name": name, "version": str(version), "files": listed})
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return folder


def cache_directory() -> Path:
    """Where artefacts are kept: ``icml-lm`` in ``XDG_CACHE_HOME``, else in the user's cache directory."""
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "icml-lm"
    if sys.platform == "win32" and (local := os.environ.get("LOCALAPPDATA")):
        return Path(local) / "icml-lm"
    return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "icml-lm"


def digest(path: Path) -> str:
    """SHA-256 of a file's size and content; of a file beyond ``WHOLE`` bytes, of 64 samples of 1 MiB."""
    size = path.stat().st_size
    found = hashlib.sha256(str(size).encode())
    with path.open("rb") as stream:
        if size <= WHOLE:
            while block := stream.read(_SAMPLE):
                found.update(block)
        else:
            for i in range(_SAMPLES):
                stream.seek((size - _SAMPLE) * i // (_SAMPLES - 1))
                found.update(stream.read(_SAMPLE))
    return found.hexdigest()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a file's lock while the body runs; a process that dies loses it."""
    with path.open("a+b") as stream:
        _lock(stream.fileno())
        try:
            yield
        finally:
            _unlock(stream.fileno())


@dataclass(frozen=True)
class Base:
    """A trained base: how it is built, and in which version.

    Attributes:
        build: makes ``(TinyLM, tokenizer)``, deterministically.
        version: of the recipe.
    """

    build: Callable[[], tuple[Any, Any]]
    version: str


# The bases that come with this distribution are registered where their tasks are.
_HOMES = {
    "digit-ops": "icml_lm.tasks.digit_ops",
    "markov-world": "icml_lm.tasks.markov_world",
    "rubric-world": "icml_lm.tasks.rubric_world",
    "vault": "icml_lm.tasks.vault",
}
_bases: dict[str, Base] = {}


def register_base(name: str, version: str | int, build: Callable[[], tuple[Any, Any]]) -> None:
    """Offer a trained base as ``load("tiny:<name>")``.

    Raises:
        ValueError: the name is taken by another build.
    """
    held = _bases.get(name)
    if held is not None and held.build is not build:
        raise ValueError(f"the base {name!r} is registered already, by {held.build.__module__}")
    _bases[name] = Base(build, str(version))


def base_names() -> list[str]:
    """Names of the bases that can be loaded."""
    return sorted({*_HOMES, *_bases})


def base(name: str) -> Path:
    """The folder of a trained base: ``config.json``, ``model.safetensors``, ``tokenizer.json``.

    Raises:
        ValueError: no base has this name.
    """
    if name not in _bases and name in _HOMES:
        import_module(_HOMES[name])
    if name not in _bases:
        raise ValueError(f"there is no base 'tiny:{name}'; there are {', '.join(base_names())}")
    found = _bases[name]

    def write(folder: Path) -> None:
        model, tokenizer = found.build()
        model.save(folder)
        tokenizer.save(folder / "tokenizer.json")

    return artefact(f"tiny-{name}", found.version, write)


def _is_whole(folder: Path) -> bool:
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
        return bool(files) and all(digest(folder / name) == value for name, value in files.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        while True:
            try:
                os.lseek(descriptor, 0, os.SEEK_SET)
                msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
                return
            except OSError:
                time.sleep(_POLL)

    def _unlock(descriptor: int) -> None:
        os.lseek(descriptor, 0, os.SEEK_SET)
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)
