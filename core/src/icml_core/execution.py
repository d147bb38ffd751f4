"""``icml run``: parse the options of a component's job, make its run, and execute it."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from icml_core.components import resolve
from icml_core.errors import NeedsError, UserError, install_command
from icml_core.options import HelpShown, Parsed, dump_config, parse
from icml_core.registry import Entry, Registry
from icml_core.requirements import first_unmet
from icml_core.run import Run, check_device, new_directory, read_record, recorded, write_atomically

RUNS = Path("icml-runs")


def run_component(name: str, tokens: Sequence[str], *, registry: Registry | None = None) -> int:
    """Run the job of the component ``name`` with the options ``tokens``; the exit status.

    0 done, 1 failed while it worked, 2 something the user can put right, 130 interrupted.

    Raises:
        UserError: for status 2; nothing is left behind then.
    """
    entry = (registry or Registry.discover()).entry(name)
    job = load_job(entry)
    resume = _resumed(tokens)
    base = None
    if resume is not None:
        base = _base_of(resume, entry, job)
    try:
        parsed = parse(entry.name, job, tokens, base=base)
    except HelpShown:
        return 0
    if (needs := first_unmet(entry.component.requires)) is not None:
        raise NeedsError(f"{entry.name} {needs}") from needs
    if base is not None:
        _refuse_changes(parsed, base, job)
    check_device(parsed.reserved["device"])
    return _execute(entry, job, parsed, resume)


def load_job(entry: Entry) -> Callable[..., Any]:
    """The job of a component.

    Raises:
        UserError: it has none, or its module needs something that is not installed.
    """
    component = entry.component
    if component.job is None:
        module, _, target = component.target.partition(":")
        raise UserError(
            f"{entry.name} has no command-line job; use it from Python: from {module} import {target}"
        )
    try:
        return resolve(component.job)
    except ModuleNotFoundError as error:
        raise UserError(f"{entry.name} cannot start: {error}; {install_command(str(error.name))}") from error


def _execute(entry: Entry, job: Callable[..., Any], parsed: Parsed, resume: Path | None) -> int:
    directory = resume or parsed.reserved["out"] or _default_directory(entry.name)
    run = Run(
        directory,
        seed=parsed.reserved["seed"],
        device=parsed.reserved["device"],
        resumed=resume is not None,
    )
    room = (
        nullcontext(None) if resume is not None else new_directory(directory, force=parsed.reserved["force"])
    )
    with room as take_back:
        try:
            with recorded(run, entry.name, parsed.configuration) as record:
                with write_atomically(run.file("config.toml")) as temporary:
                    temporary.write_text(dump_config(parsed.configuration), encoding="utf-8")
                result = job(run=run, **parsed.arguments)
                record["result"] = result if result is not None else {}
        except KeyboardInterrupt:
            again = f"; continue with: icml run {entry.name} --resume {directory}" if _can_resume(job) else ""
            print(f"interrupted; what was done is in {directory}{again}", file=sys.stderr)
            return 130
        except (UserError, ValueError, TypeError, OSError, ImportError) as error:
            if run.started or not _is_boundary(error):
                return _report_failure(run, error)
            if take_back is not None:
                take_back()
            raise UserError(_text(error)) from error
        except Exception as error:
            return _report_failure(run, error)
    for key, value in (result or {}).items():
        print(f"{key}: {value:.6g}" if isinstance(value, float) else f"{key}: {value}")
    print(f"run: {directory}")
    return 0


def _report_failure(run: Run, error: Exception) -> int:
    with write_atomically(run.file("traceback.txt")) as temporary:
        temporary.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    print(f"failed: {type(error).__name__}: {_text(error)}", file=sys.stderr)
    print(f"the traceback and what was done are in {run.directory}", file=sys.stderr)
    return 1


def _is_boundary(error: BaseException) -> bool:
    """Errors whose text a job meant for its user: all of these types but a fault in our own call."""
    return not (isinstance(error, TypeError) and "unexpected keyword argument" in str(error))


def _text(error: BaseException) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; {install_command(str(error.name))}"
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def _default_directory(name: str) -> Path:
    stem = RUNS / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    return next(p for i in range(1000) if not (p := stem if i == 0 else Path(f"{stem}-{i}")).exists())


def _can_resume(job: Callable[..., Any]) -> bool:
    return getattr(job, "resumable", None) is not None


def _resumed(tokens: Sequence[str]) -> Path | None:
    for index, token in enumerate(tokens):
        if token == "--resume" and index + 1 < len(tokens):
            return Path(tokens[index + 1])
        if token.startswith("--resume="):
            return Path(token.partition("=")[2])
    return None


def _base_of(directory: Path, entry: Entry, job: Callable[..., Any]) -> dict[str, Any]:
    record = read_record(directory)
    if record is None:
        raise UserError(
            f"--resume {directory}: there is no run ({directory / 'run.json'} is missing or broken)"
        )
    if record.get("component") != entry.name:
        raise UserError(f"--resume {directory}: that is a run of {record.get('component')}, not {entry.name}")
    if not _can_resume(job):
        raise UserError(f"{entry.name} cannot resume; run it again with another --out")
    return dict(record.get("options", {}))


def _refuse_changes(parsed: Parsed, base: dict[str, Any], job: Callable[..., Any]) -> None:
    for name, value in parsed.configuration.items():
        if name in job.resumable or value == base.get(name, value):  # type: ignore[attr-defined]
            continue
        raise UserError(f"--resume: the run was started with {name} = {base[name]!r}, not {value!r}")
    if parsed.reserved["out"] is not None:
        raise UserError("--resume continues in its own directory; drop --out")
