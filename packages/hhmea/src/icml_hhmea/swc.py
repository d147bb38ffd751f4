"""Read morphologies from SWC files, in the way of NEURON's importer or as the bare graph of points.

A section is an unbranched path of points of one type. Rows may stand in any order.
"""

from __future__ import annotations

import heapq
import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from icml_hhmea.morphology import NO_PARENT, Section, reorder

REGION_OF_TYPE = {1: "soma", 2: "axon", 3: "dendrite", 4: "apical"}
MAX_BYTES = 200_000_000
NANOMETRES_ABOVE = 50.0  # a median radius that no cell has in µm


@dataclass(frozen=True)
class Point:
    """One row: type, position and radius, and the row of its parent (-1 for none)."""

    kind: int
    place: tuple[float, float, float]
    radius: float
    parent: int


def read_swc(
    path: str | Path,
    *,
    units: Literal["um", "nm", "auto"] = "auto",
    soma: Literal["neuron", "graph"] = "neuron",
) -> list[Section]:
    """The sections of a file.

    With ``soma="neuron"`` a soma of one point, or of three in the layout of NeuroMorpho.org, is a cylinder as
    long as it is wide, neurites begin at its middle, and the gap between its surface and their first point is
    left out. With ``"graph"``, and for other somata, every link of two points is a truncated cone; where
    types change the link has the radius of the child.

    Args:
        units: of lengths in the file; ``"auto"`` takes nanometres, with a warning, where the median radius
            exceeds 50.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: what a row has wrong, with its line; a parent that is not there, a cycle, several roots, a
            radius that is not positive, or unknown options.
    """
    if units not in ("um", "nm", "auto") or soma not in ("neuron", "graph"):
        raise ValueError(f"units={units!r}, soma={soma!r}; expected um, nm or auto, and neuron or graph")
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; at most {MAX_BYTES} are read")
    points = _parse(path.read_text(encoding="utf-8", errors="replace"), str(path))
    scale = _scale(points, units, str(path))
    if scale != 1:
        points = [
            Point(p.kind, tuple(scale * c for c in p.place), scale * p.radius, p.parent)  # type: ignore[arg-type]
            for p in points
        ]
    return _sections(points, soma)


def _parse(text: str, name: str) -> list[Point]:
    rows: dict[int, tuple[int, tuple[float, float, float], float, int]] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        fields = line.replace(",", " ").split()
        if len(fields) < 7:
            raise ValueError(
                f"{name}, line {number} has {len(fields)} fields; expected id type x y z r parent"
            )
        try:
            numbers = [float(f) for f in fields[:7]]
        except ValueError as error:
            raise ValueError(f"{name}, line {number}: {error}") from None
        if not all(math.isfinite(v) for v in numbers):
            raise ValueError(f"{name}, line {number} has a value that is not finite")
        if any(numbers[k] != int(numbers[k]) for k in (0, 1, 6)):
            raise ValueError(f"{name}, line {number}: id, type and parent must be whole numbers")
        if not numbers[5] > 0:
            raise ValueError(f"{name}, line {number}: the radius {numbers[5]} must be positive")
        key = int(numbers[0])
        if key in rows:
            raise ValueError(f"{name}, line {number}: id {key} stands there twice")
        rows[key] = (int(numbers[1]), (numbers[2], numbers[3], numbers[4]), numbers[5], int(numbers[6]))
    if not rows:
        raise ValueError(f"{name} has no points")
    ids = sorted(rows)
    index = {key: k for k, key in enumerate(ids)}
    parents = []
    for key in ids:
        parent = rows[key][3]
        if parent >= 0 and parent not in index:
            raise ValueError(f"{name}: point {key} has the parent {parent}, which is not there")
        parents.append(index[parent] if parent >= 0 else NO_PARENT)
    if parents.count(NO_PARENT) != 1:
        raise ValueError(f"{name} has {parents.count(NO_PARENT)} points without a parent; expected one")
    order = reorder(parents)
    place = {int(old): new for new, old in enumerate(order)}
    return [
        Point(*rows[ids[old]][:3], parent=place[parents[old]] if parents[old] >= 0 else NO_PARENT)
        for old in order.tolist()
    ]


def _scale(points: Sequence[Point], units: str, name: str) -> float:
    if units != "auto":
        return 1e-3 if units == "nm" else 1.0
    median = float(np.median([p.radius for p in points]))
    if median <= NANOMETRES_ABOVE:
        return 1.0
    warnings.warn(
        f"{name}: the median radius is {median:g}; taken as nanometres. Say units='um' or units='nm'",
        stacklevel=4,
    )
    return 1e-3


def _is_ball(points: Sequence[Point], soma: list[int]) -> bool:
    """One point, or NeuroMorpho's three: two children of the first, one radius away on both sides."""
    if len(soma) == 1:
        return True
    if len(soma) != 3:
        return False
    first, others = soma[0], soma[1:]
    center, radius = np.array(points[first].place), points[first].radius
    gaps = [np.array(points[k].place) - center for k in others]
    return (
        all(points[k].parent == first for k in others)
        and all(abs(np.linalg.norm(g) - radius) < 0.01 * radius for g in gaps)
        and float(np.linalg.norm(gaps[0] + gaps[1])) < 0.02 * radius
    )


def _sections(points: list[Point], soma_rule: str) -> list[Section]:
    children: list[list[int]] = [[] for _ in points]
    for k, p in enumerate(points):
        if p.parent >= 0:
            children[p.parent].append(k)
    soma = [k for k, p in enumerate(points) if p.kind == 1]
    ball = soma_rule == "neuron" and points[0].kind == 1 and _is_ball(points, soma)
    single = points[0].kind == 1 and len(soma) == 1
    sections: list[Section] = []
    # Where a child of a point begins: section and place on it.
    begins: dict[int, tuple[int, float]] = {}
    started: list[int] = []
    if ball or single or len(points) == 1:
        x, y, z = points[0].place
        r = points[0].radius
        along = np.array([[x - r, y, z, r], [x, y, z, r], [x + r, y, z, r]])
        sections.append(Section(along, region=_region(points[0].kind)))
        for k in soma if ball else [0]:
            begins[k] = (0, 0.5)
        started = [
            c for k in (soma if ball else [0]) for c in children[k] if not (ball and points[c].kind == 1)
        ]
    else:
        begins[0] = (NO_PARENT, 0.0)
        started = list(children[0])
    pending = sorted(started)
    # Points that coincide with one without a section: they begin where its first section does.
    same_place: dict[int, int] = {}
    while pending:
        first = heapq.heappop(pending)
        parent = points[first].parent
        path = [first]
        while len(children[path[-1]]) == 1 and points[children[path[-1]][0]].kind == points[first].kind:
            path.append(children[path[-1]][0])
        rows = [[*points[k].place, points[k].radius] for k in path]
        gap = ball and points[parent].kind == 1 and len(path) > 1
        if not gap:
            same = points[parent].kind == points[first].kind
            rows.insert(0, [*points[parent].place, points[parent].radius if same else points[first].radius])
        rows = _distinct(rows)
        top = same_place.get(parent, parent)
        owner, at = begins[top]
        if len(rows) < 2:  # all points coincide: its children begin where it does
            begins.update(dict.fromkeys(path, (owner, at)))
            if owner == NO_PARENT:
                same_place.update(dict.fromkeys(path, top))
        else:
            begins[path[-1]] = (len(sections), 1.0)
            if owner == NO_PARENT:
                begins[top] = (len(sections), 0.0)
            sections.append(Section(np.array(rows), owner, at, _region(points[first].kind)))
        for child in children[path[-1]]:
            heapq.heappush(pending, child)
    return sections


def _distinct(rows: list[list[float]]) -> list[list[float]]:
    kept = rows[:1]
    for row in rows[1:]:
        if row[:3] != kept[-1][:3]:
            kept.append(row)
    return kept


def _region(kind: int) -> str:
    return REGION_OF_TYPE.get(kind, f"type{kind}")
