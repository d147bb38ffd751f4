"""``icml verify``: measure what is missing, judge, and write the report.

Every outcome is written as soon as it exists, keyed by measure, seed, scale and ablation, with a
digest of the code that gave it: a second call with the same code runs only what is missing.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from importlib import util
from pathlib import Path

from icml_core.claims import Claim, ClaimSuite, Scale
from icml_core.errors import NeedsError, UnknownNameError, UserError, install_command
from icml_core.executors import executor
from icml_core.listing import load_suite
from icml_core.measuring import Task
from icml_core.registry import Plugin, nearest
from icml_core.report import Report, Row, write_reports
from icml_core.requirements import first_unmet
from icml_core.run import provenance, public, write_json
from icml_core.verdicts import Outcome, Verdict, judge

VERIFICATIONS = Path("icml-runs") / "verify"
_OWN_IMPORT = re.compile(rb"^\s*(?:from|import)\s+(icml_\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Request:
    """What ``icml verify`` was asked for."""

    plugins: tuple[Plugin, ...]
    scale: Scale = "small"
    only: tuple[str, ...] = ()
    teeth: bool = False
    ledger: bool = False
    executor: str = "in-process"
    fail_fast: bool = False
    force: bool = False
    out: Path | None = None
    device: str = "auto"


def verify_plugins(request: Request, *, announce: bool = True) -> list[Report]:
    """Measure, judge and report each plug-in in turn.

    Args:
        announce: print tables and where the reports lie.

    Raises:
        UserError: unknown claims, no workspace to write the ledger into, an unwritable directory.
    """
    if (needs := first_unmet(("jinja2", "matplotlib", "scipy"))) is not None:
        raise NeedsError("icml-core[verify]", hint=install_command("icml-core[verify]")) from needs
    suites = {plugin.name: load_suite(plugin) for plugin in request.plugins}
    _check_only(request.only, suites)
    folder = ledger_folder() if request.ledger else None
    if request.ledger and request.scale == "smoke":
        raise UserError("--ledger needs --scale small or full: nothing is judged at smoke")
    executor(request.executor)  # refuse a wrong name before anything runs
    reports = []
    for plugin in request.plugins:
        report = _verify(plugin, suites[plugin.name], request)
        if report is None:
            continue
        directory = _directory(request, plugin)
        paths = write_reports(report, directory)
        if folder is not None:
            document = report.document()
            entry = document | {"environment": public(document["environment"])}
            write_json(folder / f"{plugin.name}.json", entry)
        if announce:
            print(report.text())
            print(f"report: {paths[0]}\n")
        reports.append(report)
    return reports


def _verify(plugin: Plugin, suite: ClaimSuite, request: Request) -> Report | None:
    assert plugin.claims is not None
    claims = [c for c in suite.claims.values() if not request.only or c.name in request.only]
    if not claims:
        return None
    directory = _directory(request, plugin)
    digest = code_digest(plugin.module)
    tasks = _tasks(plugin.claims, suite, claims, request, directory)
    outcomes = {} if request.force else _stored(tasks, directory, digest)
    missing = [task for task in tasks if task not in outcomes]
    if missing:
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot write to {directory}: {error.strerror or error}") from error
    begin = time.perf_counter()
    done = len(tasks) - len(missing)
    try:
        for task, outcome in executor(request.executor)(missing):
            outcomes[task] = outcome
            write_json(directory / "measures" / task.file, asdict(outcome) | {"code": digest})
            done += 1
            _announce(plugin, task, outcome, done, len(tasks))
            if request.fail_fast and outcome.error:
                break
    except KeyboardInterrupt:
        print(
            f"interrupted; {done} of {len(tasks)} measures are kept in {directory}; "
            "the same command continues there",
            file=sys.stderr,
        )
        raise
    rows = tuple(Row(claim, _judge(claim, tasks, outcomes, request)) for claim in claims)
    seconds = _seconds(claims, outcomes)
    return Report(
        plugin=plugin.name,
        version=plugin.version,
        paper=plugin.paper,
        scale=request.scale,
        rows=rows,
        seconds=seconds,
        elapsed=time.perf_counter() - begin,
        environment=provenance() | {"device": request.device},
    )


def _directory(request: Request, plugin: Plugin) -> Path:
    return (request.out or VERIFICATIONS) / plugin.name


def _tasks(
    suite_target: str, suite: ClaimSuite, claims: Sequence[Claim], request: Request, directory: Path
) -> list[Task]:
    """Every call that the claims need: each seed, and each seed again under the ablations wanted."""
    tasks: dict[tuple[str, str | None], list[Task]] = {}
    for claim in claims:
        # smoke runs every ablation too, so that the tests find one that crashes
        wanted: list[str | None] = [None]
        if request.scale == "smoke":
            wanted += claim.measure.ablations
        elif request.teeth and claim.teeth is not None:
            wanted.append(claim.teeth)
        for ablation in wanted:
            measure = claim.measure
            tasks.setdefault(
                (measure.name, ablation),
                [
                    Task(
                        suite_target,
                        measure.name,
                        index,
                        measure.seed(suite.name, index),
                        request.scale,
                        ablation,
                        str(
                            directory
                            / "measures"
                            / measure.name
                            / f"{request.scale}-{index}-{ablation or 'method'}"
                        ),
                        request.device,
                        measure.exclusive,
                    )
                    for index in range(measure.seeds[request.scale])
                ],
            )
    return [task for group in tasks.values() for task in group]


def _stored(tasks: Iterable[Task], directory: Path, digest: str) -> dict[Task, Outcome]:
    """Outcomes that an earlier call with the same code left; errors and needs are tried again."""
    found = {}
    for task in tasks:
        try:
            data = json.loads((directory / "measures" / task.file).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if data.pop("code", None) == digest and not data.get("error") and not data.get("needs"):
            found[task] = Outcome(**data)
    return found


def _judge(claim: Claim, tasks: Sequence[Task], outcomes: dict[Task, Outcome], request: Request) -> Verdict:
    def of(ablation: str | None) -> list[Outcome]:
        return [
            outcomes.get(t, Outcome(error="not run"))
            for t in tasks
            if t.measure == claim.measure.name and t.ablation == ablation
        ]

    if request.scale == "smoke":
        crashed = next((o for a in claim.measure.ablations for o in of(a) if o.error), None)
        verdict = judge(claim, of(None), judged=False)
        return Verdict("error", note=f"ablation: {crashed.error}") if crashed else verdict
    ablated = of(claim.teeth) if request.teeth and claim.teeth is not None else None
    return judge(claim, of(None), ablated)


def _seconds(claims: Sequence[Claim], outcomes: dict[Task, Outcome]) -> dict[str, float]:
    """Seconds of each claim's measure, all its seeds; ablations apart."""
    return {
        claim.name: sum(
            o.seconds for t, o in outcomes.items() if t.measure == claim.measure.name and t.ablation is None
        )
        for claim in claims
    }


def _announce(plugin: Plugin, task: Task, outcome: Outcome, done: int, total: int) -> None:
    """Say on standard error what just ended; a failure in full, at once."""
    ending = f"{outcome.seconds:.1f} s"
    if outcome.error:
        ending = f"error: {outcome.error}"
    elif outcome.needs:
        ending = outcome.needs
    print(f"[{done}/{total}] {plugin.name}: {task.label}: {ending}", file=sys.stderr, flush=True)
    if outcome.traceback:
        print(outcome.traceback, file=sys.stderr)


def _check_only(only: Sequence[str], suites: dict[str, ClaimSuite]) -> None:
    known = [name for suite in suites.values() for name in suite.claims]
    for name in only:
        if name not in known:
            near = nearest(name, known, count=1)
            hint = f"did you mean {near[0]}?" if near else f"the claims are {', '.join(known)}"
            raise UnknownNameError(f"unknown claim {name!r}; {hint}")


def code_digest(module: str) -> str:
    """A digest of the sources that a measure depends on: its plug-in's, and those that these import.

    What is followed are the project's own distributions (``icml_*``), the core excepted, which measures but
    gives no figure.
    """
    digest = sha256()
    waiting, seen = [module.partition(".")[0]], {"icml_core"}
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        spec = util.find_spec(name)
        for place in (spec.submodule_search_locations or ()) if spec else ():
            for path in sorted(Path(place).rglob("*.py")):
                source = path.read_bytes()
                digest.update(str(path.relative_to(place)).encode())
                digest.update(source)
                waiting += sorted({found.decode() for found in _OWN_IMPORT.findall(source)})
    return digest.hexdigest()[:16]


def ledger_folder() -> Path:
    """``docs/ledger`` of the workspace that the current directory lies in.

    Raises:
        UserError: there is none.
    """
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "uv.lock").is_file() and (folder / "packages").is_dir():
            return folder / "docs" / "ledger"
    raise UserError(
        "--ledger writes into the workspace's docs/ledger; run it inside a clone of the workspace"
    )


def render_again(directory: Path) -> list[Path]:
    """Write the reports of a directory again from its ``report.json``; of every plug-in below it.

    Raises:
        UserError: there is none.
    """
    found = sorted({*directory.glob("report.json"), *directory.glob("*/report.json")})
    if not found:
        raise UserError(f"{directory} holds no report.json; name the directory that `icml verify` named")
    paths: list[Path] = []
    for path in found:
        paths += write_reports(Report.read(path), path.parent)
    return paths
