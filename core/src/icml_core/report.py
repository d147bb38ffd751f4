"""Reports of claims: JSON for programs, Markdown for repositories, a self-contained HTML page for people."""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from icml_core.claims import Claim, Measure, Scale
from icml_core.components import Paper
from icml_core.listing import table
from icml_core.run import write_atomically, write_json
from icml_core.verdicts import Verdict

STEMS = ("report.html", "report.md", "report.json")
_LARGEST_PICTURE = 1_000_000  # bytes; larger pictures of a measure are left beside the report


@dataclass(frozen=True, slots=True)
class Row:
    """A claim and its verdict."""

    claim: Claim
    verdict: Verdict

    @property
    def figure(self) -> str:
        """The estimate with its interval, or the range of the values, as text."""
        verdict = self.verdict
        if verdict.estimate is not None and verdict.low is not None and verdict.high is not None:
            return f"{verdict.estimate:.4g} ({verdict.low:.4g} to {verdict.high:.4g})"
        if verdict.estimate is not None:
            return f"{verdict.estimate:.4g}"
        if not verdict.values:
            return ""
        low, high = min(verdict.values), max(verdict.values)
        return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"

    @property
    def word(self) -> str:
        """The verdict with its teeth, as shown."""
        teeth = self.verdict.teeth
        return f"{self.verdict.word}, {teeth}" if teeth in ("bites", "blunt", "error") else self.verdict.word


@dataclass(frozen=True, slots=True)
class Report:
    """The verdicts of one plug-in at one scale, with where they come from.

    Attributes:
        seconds: of each claim's measure, all seeds together.
        elapsed: of this call, what was stored before not included.
        environment: versions, revision, host.
    """

    plugin: str
    version: str
    paper: Paper | None
    scale: Scale
    rows: tuple[Row, ...]
    seconds: Mapping[str, float]
    elapsed: float
    environment: Mapping[str, Any]

    def status(self, strict: bool) -> int:
        """The exit status: 1 where a claim fails, errs or is blunt; ``strict`` wants all decided."""
        bad = any(row.verdict.bad for row in self.rows)
        open_ = any(row.verdict.word in ("inconclusive", "needs") for row in self.rows)
        return int(bad or (strict and open_))

    def document(self) -> dict[str, Any]:
        """The report as plain data; :meth:`read` takes it back."""
        claims = []
        for row in self.rows:
            claim, verdict = row.claim, row.verdict
            claims.append(
                {
                    "id": claim.name,
                    "statement": claim.statement,
                    "paper": claim.paper,
                    "kind": claim.kind,
                    "bound": claim.bound,
                    "at_least": claim.low,
                    "at_most": claim.high,
                    "figure": claim.figure,
                    "baseline": claim.baseline,
                    "measure": claim.measure.name,
                    "values": list(verdict.values),
                    "estimate": verdict.estimate,
                    "low": verdict.low,
                    "high": verdict.high,
                    "unit": claim.unit,
                    "verdict": verdict.word,
                    "teeth": verdict.teeth,
                    "ablation": claim.teeth,
                    "ablated": list(verdict.ablated),
                    "note": verdict.note,
                    "seconds": round(self.seconds.get(claim.name, 0.0), 3),
                }
            )
        return {
            "plugin": self.plugin,
            "version": self.version,
            "paper": asdict(self.paper) if self.paper else None,
            "scale": self.scale,
            "elapsed": round(self.elapsed, 3),
            "claims": claims,
            "environment": dict(self.environment),
        }

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read a report back from its JSON.

        Raises:
            ValueError: the file is no report.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            rows = tuple(_row(claim) for claim in data["claims"])
            paper = data["paper"]
            return cls(
                data["plugin"],
                data["version"],
                Paper(**(paper | {"authors": tuple(paper["authors"])})) if paper else None,
                data["scale"],
                rows,
                {claim["id"]: claim["seconds"] for claim in data["claims"]},
                data["elapsed"],
                data["environment"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{path} is no report: {error!r}") from error

    def text(self) -> str:
        """The table for a terminal."""
        head = [("claim", "figure", "bound", "verdict")]
        body = [
            (
                row.claim.name,
                f"{row.figure} {row.claim.unit}".strip(),
                row.claim.bound or "-",
                row.word,
            )
            for row in self.rows
        ]
        lines = [f"{self.plugin} {self.version} at scale {self.scale}", *table(head + body)]
        lines += [f"  {row.claim.name}: {row.verdict.note}" for row in self.rows if row.verdict.note]
        return "\n".join(lines)


def markdown(report: Report) -> str:
    """The report as a Markdown table."""
    lines = [
        f"# Claims of {report.plugin} {report.version}",
        "",
        f"Scale {report.scale}. {_environment_line(report.environment)}",
        "",
        "| claim | the paper | statement | figure | bound | verdict | seconds |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in report.rows:
        claim = row.claim
        cells = [
            claim.name,
            claim.paper,
            claim.statement,
            f"{row.figure} {claim.unit}".strip(),
            claim.bound or "none",
            row.word + (f": {row.verdict.note}" if row.verdict.note else ""),
            f"{report.seconds.get(claim.name, 0.0):.1f}",
        ]
        lines.append("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def html(report: Report, directory: Path | None = None) -> str:
    """The report as one HTML page that needs no other file.

    Args:
        directory: where measures left pictures to be shown with their claims.
    """
    from jinja2 import Environment

    source = resources.files("icml_core").joinpath("report.html.j2").read_text(encoding="utf-8")
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True).from_string(source)
    rows = [
        {
            "row": row,
            "claim": row.claim,
            "verdict": row.verdict,
            "plot": _plot(row),
            "seconds": report.seconds.get(row.claim.name, 0.0),
        }
        for row in report.rows
    ]
    counts: dict[str, int] = {}
    for row in report.rows:
        counts[row.verdict.word] = counts.get(row.verdict.word, 0) + 1
    return template.render(
        report=report,
        rows=rows,
        counts=counts,
        pictures=_pictures(report, directory),
        environment=_environment_line(report.environment),
    )


def write_reports(report: Report, directory: Path) -> list[Path]:
    """Write the report in its three forms into ``directory``; the HTML page's path comes first."""
    page, text = html(report, directory), markdown(report)
    for name, content in (("report.html", page), ("report.md", text)):
        with write_atomically(directory / name) as temporary:
            temporary.write_text(content, encoding="utf-8")
    write_json(directory / "report.json", report.document())
    return [directory / name for name in STEMS]


def _plot(row: Row) -> str | None:
    """The values, the interval and the bound of one claim, as an SVG element."""
    verdict, claim = row.verdict, row.claim
    if not verdict.values:
        return None
    from matplotlib.figure import Figure

    groups = [("method", verdict.values, "#1f6f8b")]
    if verdict.ablated:
        groups.append((f"[{claim.teeth}]", verdict.ablated, "#b5651d"))
    figure = Figure(figsize=(5.2, 0.55 + 0.45 * len(groups)), layout="constrained")
    axes = figure.subplots()
    shown = [v for _, values, _ in groups for v in values]
    shown += [b for b in (claim.low, claim.high) if b is not None]
    if min(shown) > 0 and max(shown) > 30 * min(shown):
        axes.set_xscale("log")
    for height, (_, values, color) in enumerate(groups):
        axes.plot(values, [height] * len(values), "o", color=color, alpha=0.6, markersize=5)
    if verdict.low is not None and verdict.high is not None:
        axes.plot([verdict.low, verdict.high], [0, 0], color="#1f6f8b", linewidth=3, alpha=0.5)
    for bound in (claim.low, claim.high):
        if bound is not None:
            axes.axvline(bound, color="#444", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(groups)), [name for name, _, _ in groups], fontsize=8)
    axes.set_ylim(len(groups) - 0.5, -0.5)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(f"{claim.figure} {f'({claim.unit})' if claim.unit else ''}", fontsize=8)
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True)
    text = buffer.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)


def _pictures(report: Report, directory: Path | None) -> list[tuple[str, str]]:
    """Pictures that the first seed of each measure left: title and data address."""
    if directory is None:
        return []
    found = []
    for measure in dict.fromkeys(row.claim.measure.name for row in report.rows):
        folder = directory / "measures" / measure / f"{report.scale}-0-method"
        for path in sorted(folder.glob("*.png")):
            if path.stat().st_size <= _LARGEST_PICTURE:
                data = base64.b64encode(path.read_bytes()).decode()
                found.append((f"{measure}: {path.stem}", f"data:image/png;base64,{data}"))
    return found


def _environment_line(environment: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment.get("versions", {}).items())
    parts = [
        f"{environment.get('cores')} cores",
        str(environment.get("platform", "")),
        f"Python {environment.get('python')}",
        versions,
        f"revision {environment['revision'][:12]}" if environment.get("revision") else "",
    ]
    return "; ".join(part for part in parts if part) + "."


def _row(data: Mapping[str, Any]) -> Row:
    claim = Claim(
        data["id"],
        Measure(data["measure"], _nothing, {}),
        data["figure"],
        data["kind"],
        data["statement"],
        data["paper"],
        data["baseline"],
        data["at_least"],
        data["at_most"],
        data["unit"],
        data["ablation"],
    )
    verdict = Verdict(
        data["verdict"],
        tuple(data["values"]),
        data["estimate"],
        data["low"],
        data["high"],
        data["teeth"],
        data["note"],
        tuple(data["ablated"]),
    )
    return Row(claim, verdict)


def _nothing(run: Any, seed: int) -> Mapping[str, float]:
    """Stands for the measure of a report that was read back; nothing calls it."""
    raise RuntimeError("a report that was read back cannot measure; run `icml verify`")
