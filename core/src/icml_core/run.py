"""One run: its directory, seed and device, what it logs, and a record that stays valid whatever happens."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import Enum
from importlib import metadata, util
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from icml_core.errors import UserError

if TYPE_CHECKING:
    from icml_core.claims import Scale

F = TypeVar("F", bound=Callable[..., Any])

RECORD = "run.json"


def resumable(job: F | None = None, *, may_change: tuple[str, ...] = ()) -> Any:
    """Mark a job that continues from its run directory when ``run.resumed`` is true.

    Args:
        job: the job; ``@resumable`` and ``@resumable(may_change=("steps",))`` both work.
        may_change: options that may be given anew with ``--resume``, such as a longer duration.
    """

    def mark(function: F) -> F:
        function.resumable = tuple(may_change)  # type: ignore[attr-defined]
        return function

    return mark if job is None else mark(job)


class Run:
    """What a job or measure gets to work with.

    Attributes:
        directory: everything that the run writes lies in it.
        seed: from which all randomness of the run derives.
        resumed: whether the directory holds an earlier part of this run.
        scale: of a measure, ``"smoke"``, ``"small"`` or ``"full"``; a job runs at full scale.
        ablation: in a measure, the key idea that is switched off, or None.
    """

    def __init__(
        self,
        directory: Path,
        *,
        seed: int = 0,
        device: str = "auto",
        resumed: bool = False,
        scale: Scale = "full",
        ablation: str | None = None,
        quiet: bool = False,
    ) -> None:
        self.directory = Path(directory)
        self.seed = seed
        self.resumed = resumed
        self.scale = scale
        self.ablation = ablation
        self.quiet = quiet
        self.started = False
        self._device = device

    @property
    def device(self) -> str:
        """``"cpu"``, ``"cuda"`` or ``"cuda:1"``; ``"auto"`` has become the best device there is."""
        if self._device == "auto":
            self._device = _best_device()
        return self._device

    def file(self, name: str) -> Path:
        """Where the file called ``name`` lies in the run directory.

        Raises:
            ValueError: ``name`` leads out of the run directory.
        """
        path = self.directory / name
        if not path.resolve().is_relative_to(self.directory.resolve()):
            raise ValueError(f"{name!r} leads out of the run directory {self.directory}")
        return path

    @contextmanager
    def path(self, name: str) -> Iterator[Path]:
        """Write the file ``name`` whole or not at all: yields a temporary path, renamed on success."""
        with write_atomically(self.file(name)) as temporary:
            self.started = True
            yield temporary

    def log(self, step: int, **metrics: float) -> None:
        """Append one line to ``metrics.jsonl``: the step and its metrics."""
        self.started = True
        self.directory.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"step": int(step), **{k: _plain(v) for k, v in metrics.items()}})
        with self.file("metrics.jsonl").open("a", encoding="utf-8") as stream:
            stream.write(line + "\n")

    @contextmanager
    def progress(self, description: str, *, total: int) -> Iterator[Progress]:
        """A progress bar on standard error, drawn on a terminal only."""
        self.started = True
        if self.quiet or not sys.stderr.isatty():
            yield Progress()
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
        )
        with Bar(*columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(description, total=total, metrics="")
            yield Progress(lambda step, text: bar.update(task, advance=step, metrics=text))


class Progress:
    """Where a job says how far it is."""

    def __init__(self, update: Callable[[int, str], None] | None = None) -> None:
        self._update = update

    def advance(self, step: int = 1, **metrics: float) -> None:
        """Move on by ``step``; ``metrics`` are shown beside the bar."""
        if self._update is not None:
            self._update(step, "  ".join(f"{name} {value:.4g}" for name, value in metrics.items()))


@contextmanager
def write_atomically(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside ``path`` that becomes it on success and vanishes on failure.

    The temporary name keeps the suffix, since many writers choose the format by it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.stem}-", suffix=path.suffix, dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as JSON, atomically."""
    with write_atomically(path) as temporary:
        temporary.write_text(json.dumps(_plain(value), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


@contextmanager
def new_directory(directory: Path, *, force: bool = False) -> Iterator[Callable[[], None]]:
    """Make the directory of a new run; yields a function that takes it back, as if nothing had been.

    With ``force`` an earlier run there is set aside, deleted when the body ends, and restored where
    the new one is taken back.

    Raises:
        UserError: it holds something already and ``force`` is off, or cannot be written.
    """
    aside: Path | None = None
    try:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            if not force:
                raise UserError(
                    f"{directory} exists already; continue it with --resume, replace it with --force, "
                    "or choose another --out"
                )
            if read_record(directory) is None:
                raise UserError(
                    f"--force replaces runs only, and {directory} is not one; choose another --out"
                )
            aside = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent)) / "earlier"
            directory.rename(aside)
        made = not directory.exists()
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as probe:
            probe.write(b"0" * 4096)
    except OSError as error:
        raise UserError(f"cannot write to {directory}: {error.strerror or error}") from error

    def take_back() -> None:
        nonlocal aside
        for path in directory.iterdir():
            path.unlink()
        if made or aside is not None:
            directory.rmdir()
        if aside is not None:
            aside.rename(directory)
            aside.parent.rmdir()
            aside = None

    try:
        yield take_back
    finally:
        if aside is not None:
            shutil.rmtree(aside.parent, ignore_errors=True)


@contextmanager
def recorded(run: Run, component: str, options: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Keep ``run.json`` true while the body runs; the yielded dict takes the body's ``result``.

    Status is ``running``, then ``done``, ``failed`` or ``interrupted``. SIGTERM is treated as Ctrl-C.
    """
    record: dict[str, Any] = {
        "component": component,
        "status": "running",
        "options": dict(options),
        "seed": run.seed,
        "device": run._device,
        "started": _now(),
        **provenance(),
    }
    path = run.directory / RECORD
    earlier = read_record(run.directory) if run.resumed else None
    if earlier is not None:
        record["earlier"] = [
            *earlier.get("earlier", []),
            {k: earlier.get(k) for k in ("started", "seconds", "status")},
        ]
    write_json(path, record)
    begin = time.perf_counter()
    with terminable():
        try:
            yield record
            record["status"] = "done"
        except KeyboardInterrupt:
            record["status"] = "interrupted"
            raise
        except BaseException as error:
            record["status"] = "failed"
            record["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            record["seconds"] = round(time.perf_counter() - begin, 3)
            record["peak_memory_bytes"] = peak_memory()
            record["device"] = run._device
            write_json(path, record)


@contextmanager
def terminable() -> Iterator[None]:
    """Let SIGTERM end the body as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(signum: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def read_record(directory: Path) -> dict[str, Any] | None:
    """The record of a run directory, or None where there is none that can be read."""
    try:
        record = json.loads((directory / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return record if isinstance(record, dict) else None


def provenance() -> dict[str, Any]:
    """What a result depends on besides its options: versions, revision, host."""
    versions = {}
    for name in ("icml-core", "icml-kernels", "torch", "triton", "numba", "numpy", "scipy"):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "command": sys.argv,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cores": os.cpu_count(),
        "versions": versions,
        "revision": _revision(),
    }


def public(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment from :func:`provenance` without what concerns one machine's owner only."""
    return {key: value for key, value in environment.items() if key not in ("host", "command")}


def peak_memory() -> int | None:
    """Peak resident memory of this process so far, in bytes, where the system tells."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _best_device() -> str:
    from icml_core.requirements import has_cuda

    return "cuda" if has_cuda() else "cpu"


def check_device(device: str) -> str:
    """``device`` itself, where it is ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps`` and exists.

    Raises:
        UserError: another form, or a device that is not there.
    """
    kind, _, index = device.partition(":")
    if kind not in ("auto", "cpu", "cuda", "mps") or (index and not index.isdigit()):
        raise UserError(f"--device {device!r} is none of auto, cpu, cuda, cuda:N, mps")
    if kind in ("cuda", "mps"):
        if util.find_spec("torch") is None:
            raise UserError(f"--device {device} needs torch, which is not installed")
        import torch

        there = torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()
        if not there or (kind == "cuda" and int(index or 0) >= torch.cuda.device_count()):
            raise UserError(f"--device {device}: torch sees no such device here; use --device cpu")
    return device


def _revision() -> str | None:
    """The git revision of the source tree that this code runs from, if it does."""
    top = next((p for p in Path(__file__).resolve().parents if (p / "uv.lock").is_file()), None)
    if top is None or shutil.which("git") is None:
        return None
    git = ["git", "-C", str(top)]
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True)
    if head.returncode != 0:
        return None
    changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True)
    return head.stdout.strip() + ("+changes" if changed.stdout.strip() else "")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _plain(value: Any) -> Any:
    """``value`` in the types of JSON; scalars of numpy and torch become numbers, paths and enums text."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(v) for v in value]
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return str(value)
