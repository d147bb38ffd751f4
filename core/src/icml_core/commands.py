"""The commands of ``icml``: list, info, run, verify, report, doctor, new."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from icml_core import __version__
from icml_core.errors import UserError
from icml_core.output import document, dump

app = App(
    name="icml",
    help="Run and verify the methods of papers, each installed as a plug-in.",
    version=__version__,
    result_action="return_value",
)

Json = Annotated[bool, Parameter(name="--json", negative="", help="One JSON document on standard output.")]
Flag = Parameter(negative="")


@app.command(name="list")
def list_components(
    *,
    kind: Literal["model", "sampler", "optimizer", "solver", "evaluator"] | None = None,
    contract: str | None = None,
    as_json: Json = False,
) -> int:
    """List the components that the installed plug-ins offer.

    Args:
        kind: only this kind.
        contract: only those that honour this contract, such as Module or Solver.
    """
    from icml_core.listing import print_listing

    print_listing(kind=kind, contract=contract, as_json=as_json)
    return 0


@app.command
def info(name: str, /, *, as_json: Json = False) -> int:
    """Say everything about a plug-in or a component.

    Args:
        name: a plug-in (btt) or a component (btt.cc).
    """
    from icml_core.listing import component_info, info_text, plugin_info
    from icml_core.registry import Registry

    with document(as_json) as out:
        registry = Registry.discover()
        found = component_info(registry, name) if "." in name else plugin_info(registry, name)
        if as_json:
            dump(found, out)
        else:
            out.write(info_text(found))
    return 0


@app.command
def run(component: str, /) -> int:
    """Run a component's job: icml run COMPONENT [OPTIONS]; `icml run COMPONENT --help` lists them.

    Every job also takes --out DIR, --seed, --device, --config FILE, --resume DIR and --force.

    Args:
        component: a component with a job, such as btt.cc.
    """
    from icml_core.execution import run_component

    return run_component(component, [])


@app.command
def verify(
    *slugs: str,
    all_plugins: Annotated[bool, Parameter(name="--all", negative="")] = False,
    scale: Literal["smoke", "small", "full"] = "small",
    only: Annotated[list[str], Parameter(negative="")] = [],  # noqa: B006 - cyclopts copies it
    teeth: Annotated[bool, Flag] = False,
    ledger: Annotated[bool, Flag] = False,
    strict: Annotated[bool, Flag] = False,
    executor: str = "in-process",
    fail_fast: Annotated[bool, Flag] = False,
    force: Annotated[bool, Flag] = False,
    out: Path | None = None,
    device: str = "auto",
    as_json: Json = False,
) -> int:
    """Measure the claims of plug-ins again and judge them.

    Exit status 1 where a claim fails, errs or is blunt; with --strict also where one is inconclusive
    or needs something. What was measured before with the same code is taken from the directory.

    Args:
        slugs: plug-ins.
        all_plugins: every installed plug-in.
        scale: smoke runs every measure for seconds and judges nothing; small is the ledger's; full
            the paper's.
        only: only this claim; may be repeated.
        teeth: measure the ablations too: with the paper's key idea switched off a claim must fail.
        ledger: write docs/ledger/SLUG.json of the workspace around; implies --teeth.
        strict: see above.
        executor: in-process, processes:N, or dask:ADDRESS.
        fail_fast: stop at the first measure that raises.
        force: measure everything again.
        out: directory of measures and reports; by default icml-runs/verify.
        device: auto, cpu, cuda or cuda:N.
    """
    from icml_core.registry import Registry
    from icml_core.run import check_device, terminable
    from icml_core.verify import Request, verify_plugins

    if bool(slugs) == all_plugins:
        raise UserError("say which plug-ins to verify, or --all; `icml list` names them")
    registry = Registry.discover()
    plugins = registry.plugins if all_plugins else [registry.plugin(slug) for slug in slugs]
    request = Request(
        plugins=tuple(p for p in plugins if p.claims is not None or not all_plugins),
        scale=scale,
        only=tuple(only),
        teeth=teeth or ledger,
        ledger=ledger,
        executor=executor,
        fail_fast=fail_fast,
        force=force,
        out=out,
        device=check_device(device),
    )
    with document(as_json) as out_stream, terminable():
        reports = verify_plugins(request, announce=not as_json)
        if as_json:
            documents = [report.document() for report in reports]
            dump(documents if all_plugins or len(slugs) > 1 else documents[0], out_stream)
    return max((report.status(strict) for report in reports), default=0)


@app.command
def report(directory: Path, /) -> int:
    """Write the report of a directory of measures again: report.html, report.md, report.json.

    Args:
        directory: what `icml verify` named, or the --out of one plug-in.
    """
    from icml_core.verify import render_again

    for path in render_again(directory):
        print(path)
    return 0


@app.command
def doctor(*, times: Annotated[bool, Flag] = False, as_json: Json = False) -> int:
    """Say what is installed, which devices and kernels there are, and why a plug-in is broken.

    Exit status 1 where something is wrong.

    Args:
        times: also each plug-in's import time, slowest first.
    """
    from icml_core.doctor import diagnose, diagnosis_text

    with document(as_json) as out:
        diagnosis = diagnose(times=times)
        if as_json:
            dump(diagnosis, out)
        else:
            out.write(diagnosis_text(diagnosis))
    return 1 if diagnosis["problems"] else 0


@app.command
def new(slug: str, /, *, into: Path | None = None) -> int:
    """Write a complete, working plug-in to start from.

    Args:
        slug: its name: lower-case letters, digits and single hyphens.
        into: the folder to create; by default packages/SLUG inside the workspace, else ./SLUG.
    """
    from icml_core.new import create

    folder = create(slug, into)
    print(folder)
    print(f'next: {sys.executable} -m pip install -e "{folder}" pytest && pytest "{folder}"')
    return 0
