"""What ``icml list`` and ``icml info`` say, as data and as text."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from icml_core.components import KINDS, resolve
from icml_core.errors import UserError
from icml_core.output import document, dump
from icml_core.registry import Entry, Plugin, Registry
from icml_core.requirements import first_unmet


def listing(registry: Registry, *, kind: str | None = None, contract: str | None = None) -> dict[str, Any]:
    """Components and broken plug-ins, as plain data."""
    clashes = registry.clashes
    components = [
        _entry_data(entry) | {"clashes": entry.name in clashes}
        for entry in registry.entries(kind=kind, contract=contract)
    ]
    broken = [
        {"plugin": b.name, "distribution": b.distribution, "reason": b.reason, "remedy": b.remedy}
        for b in registry.broken
    ]
    return {"components": components, "broken": broken}


def listing_text(found: Mapping[str, Any]) -> str:
    """The listing for people: one line a component, then what is broken."""
    rows = []
    for kind in KINDS:
        for item in found["components"]:
            if item["kind"] != kind:
                continue
            name = f"{item['distribution']}:{item['name']}" if item["clashes"] else item["name"]
            needs = f"  [{item['needs']}]" if item["needs"] else ""
            rows.append((kind, name, item["summary"] + needs))
    lines = table(rows)
    if not rows:
        lines = ["no components; install a plug-in, such as: python -m pip install icml-btt"]
    for item in found["broken"]:
        lines.append(f"broken: {item['plugin']} ({item['distribution']}): {item['reason']}; {item['remedy']}")
    return "\n".join(lines) + "\n"


def print_listing(*, kind: str | None = None, contract: str | None = None, as_json: bool = False) -> None:
    """Write the listing of this environment to standard output.

    Raises:
        UserError: no such contract; names the nearest.
    """
    if contract is not None:
        from icml_core.contracts import check_contract_name

        check_contract_name(contract)
    with document(as_json) as out:
        found = listing(Registry.discover(), kind=kind, contract=contract)
        if as_json:
            dump(found, out)
        else:
            out.write(listing_text(found))


def component_info(registry: Registry, name: str) -> dict[str, Any]:
    """One component with the options of its job."""
    entry = registry.entry(name)
    data = _entry_data(entry) | {"target": entry.component.target, "example": entry.component.example}
    data["options"] = _options(entry)
    return data


def plugin_info(registry: Registry, name: str) -> dict[str, Any]:
    """One plug-in: its paper, components and claims.

    Raises:
        UserError: its claims cannot be imported.
    """
    plugin = registry.plugin(name)
    return {
        "plugin": plugin.name,
        "distribution": plugin.distribution,
        "version": plugin.version,
        "paper": plugin.paper,
        "components": [_entry_data(entry) for entry in plugin.entries],
        "claims": [
            {
                "id": claim.name,
                "statement": claim.statement,
                "paper": claim.paper,
                "kind": claim.kind,
                "bound": claim.bound,
                "unit": claim.unit,
                "teeth": claim.teeth,
            }
            for claim in load_suite(plugin).claims.values()
        ]
        if plugin.claims
        else [],
    }


def load_suite(plugin: Plugin) -> Any:
    """The :class:`~icml_core.claims.ClaimSuite` of a plug-in.

    Raises:
        UserError: it has none, or it cannot be imported.
    """
    from icml_core.claims import ClaimSuite

    if plugin.claims is None:
        raise UserError(f"plug-in {plugin.name!r} declares no claims")
    try:
        suite = resolve(plugin.claims)
    except Exception as error:
        raise UserError(f"the claims of {plugin.name!r} cannot be imported: {error}") from error
    if not isinstance(suite, ClaimSuite):
        raise UserError(f"{plugin.claims} of {plugin.name!r} is a {type(suite).__name__}, not a ClaimSuite")
    return suite


def info_text(found: Mapping[str, Any]) -> str:
    """Either info for people."""
    if "plugin" in found and "components" in found:
        return _plugin_text(found)
    lines = [f"{found['name']}: {found['summary']}", ""]
    lines += table(
        [
            ("kind", found["kind"]),
            ("contracts", ", ".join(found["implements"]) or "none"),
            ("from", f"{found['distribution']} (plug-in {found['plugin']})"),
            ("Python", "from {0} import {2}".format(*found["target"].partition(":"))),
            ("command", f"icml run {found['name']}" if found["job"] else "none"),
            ("needs", found["needs"] or "nothing more"),
        ]
    )
    if found["options"]:
        lines += ["", "options:"]
        lines += table([(f"  {o['flag']}", o["type"], o["default"]) for o in found["options"]])
    return "\n".join(lines) + "\n"


def _plugin_text(found: Mapping[str, Any]) -> str:
    paper = found["paper"]
    lines = [f"{found['plugin']} ({found['distribution']} {found['version']})"]
    if paper is not None:
        link = f" https://arxiv.org/abs/{paper.arxiv}" if paper.arxiv else ""
        lines += [f"{paper.title}. {paper.venue}.{link}"]
    lines += ["", "components:"]
    lines += table([(f"  {c['kind']}", c["name"], c["summary"]) for c in found["components"]])
    lines += ["", f"claims (icml verify {found['plugin']}):"]
    lines += table([(f"  {c['id']}", c["bound"] or "measured", c["statement"]) for c in found["claims"]])
    return "\n".join(lines) + "\n"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as aligned lines; the last column is as long as it likes."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]) - 1)]
    return [
        "  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=False)] + [row[-1]]).rstrip()
        for row in rows
    ]


def _entry_data(entry: Entry) -> dict[str, Any]:
    component = entry.component
    needs = first_unmet(component.requires)
    return {
        "name": component.name,
        "kind": entry.kind,
        "summary": component.summary,
        "implements": list(component.implements),
        "plugin": entry.plugin,
        "distribution": entry.distribution,
        "job": component.job is not None,
        "needs": None if needs is None else str(needs),
    }


def _options(entry: Entry) -> list[dict[str, str]]:
    if entry.component.job is None:
        return []
    from icml_core.execution import load_job
    from icml_core.options import job_parameters

    options = []
    for parameter in job_parameters(load_job(entry)):
        required = parameter.default is inspect.Parameter.empty
        options.append(
            {
                "flag": "--" + parameter.name.replace("_", "-"),
                "type": inspect.formatannotation(parameter.annotation).replace("pathlib.", ""),
                "default": "required" if required else f"default {parameter.default!r}",
            }
        )
    return options
