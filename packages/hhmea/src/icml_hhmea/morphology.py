"""Cells as trees of compartments: sections of truncated cones, cut into compartments as NEURON does.

Area and axial resistance of a compartment are integrated over its cones: a cone of length L from r_1 to r_2
has the area pi (r_1 + r_2) sqrt(L^2 + (r_1 - r_2)^2) and the resistance Ra L / (pi r_1 r_2). Where two or
more sections begin at one end there is a node without area, joined to each neighbour by half a compartment.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NO_PARENT = -1


@dataclass(frozen=True)
class Section:
    """An unbranched piece of a cell.

    Attributes:
        points: [k, 4]: x, y, z and radius in µm, at least two.
        parent: number of the section that it begins on, or -1.
        at: where on the parent, 0 to 1.
        region: name, such as ``"axon"``.
    """

    points: np.ndarray
    parent: int = NO_PARENT
    at: float = 1.0
    region: str = "dendrite"

    @property
    def length(self) -> float:
        """Along the points, µm."""
        return float(np.linalg.norm(np.diff(self.points[:, :3], axis=0), axis=1).sum())


@dataclass(frozen=True)
class Morphology:
    """Nodes of a tree; every array has one entry a node, and parents stand before their children.

    Attributes:
        parent: int32; -1 for the root.
        area: µm2; 0 for the node of a branch point.
        half_own, half_parent: integral of dx / (pi r^2) in 1/µm from the node to where it meets its parent,
            and from there to the parent's middle. The resistance is 0.01 Ra (half_own + half_parent) MΩ.
        start, end: ends of each compartment, [nodes, 3] µm.
        radius: effective: area / (2 pi length).
        region: index into ``regions``.
        section: number of the section.
    """

    parent: np.ndarray
    area: np.ndarray
    half_own: np.ndarray
    half_parent: np.ndarray
    start: np.ndarray
    end: np.ndarray
    radius: np.ndarray
    region: np.ndarray
    section: np.ndarray
    regions: tuple[str, ...]

    @property
    def nodes(self) -> int:
        """Compartments and branch points."""
        return len(self.parent)

    @property
    def length(self) -> np.ndarray:
        """Of each compartment, µm (straight)."""
        return np.linalg.norm(self.end - self.start, axis=1)

    def describe(self) -> str:
        """Sections, length and area of each region, as text."""
        lines = [f"{self.nodes} nodes, {len(np.unique(self.section))} sections"]
        for k, name in enumerate(self.regions):
            mine = self.region == k
            sections = len(np.unique(self.section[mine]))
            lines.append(
                f"{name}: {sections} sections, {self.length[mine].sum():.6g} µm, "
                f"{self.area[mine].sum():.6g} µm2"
            )
        return "\n".join(lines)

    def fingerprint(self) -> str:
        """A hash of everything that the equations see, to ten digits."""
        digest = hashlib.sha256()
        for array in (self.parent, self.region):
            digest.update(np.ascontiguousarray(array, dtype=np.int64).tobytes())
        for array in (self.area, self.half_own, self.half_parent, self.start, self.end):
            text = np.char.mod("%.9e", np.asarray(array, dtype=np.float64).ravel())
            digest.update("".join(text.tolist()).encode())
        digest.update("/".join(self.regions).encode())
        return digest.hexdigest()[:16]


def reorder(parent: Sequence[int]) -> np.ndarray:
    """An order of the nodes in which every parent stands before its children; nodes of one level keep theirs.

    Raises:
        ValueError: a parent that is not there, or a cycle.
    """
    parents = np.asarray(parent, dtype=np.int64)
    n = len(parents)
    if ((parents < NO_PARENT) | (parents >= n)).any():
        raise ValueError(f"parents must lie in -1 to {n - 1}; got {parents.min()} to {parents.max()}")
    depth = np.full(n, -1)
    for i in range(n):
        path: list[int] = []
        seen: set[int] = set()
        k = i
        while k >= 0 and depth[k] < 0:
            if k in seen:
                cycle = path[path.index(k) :]
                raise ValueError(f"node {k} is its own ancestor: the nodes {cycle[:20]} form a cycle")
            path.append(k)
            seen.add(k)
            k = int(parents[k])
        base = depth[k] if k >= 0 else -1
        for step, node in enumerate(reversed(path)):
            depth[node] = base + 1 + step
    return np.argsort(depth, kind="stable")


def discretise(
    sections: Sequence[Section], *, max_len: float = 10.0, counts: Sequence[int] | None = None
) -> Morphology:
    """Cut sections into compartments of equal length.

    Args:
        sections: a parent stands before its children.
        max_len: longest compartment, µm; the number in a section is odd, so that one lies in its middle.
        counts: compartments of each section, instead.

    Raises:
        ValueError: no section, one whose parent does not stand before it, a radius or length that is not
            positive, points that are not finite, or ``max_len`` not positive.
    """
    _check(sections, max_len)
    if counts is None:
        whole = [max(1, math.ceil(s.length / max_len)) for s in sections]
        counts = [n + 1 - n % 2 for n in whole]
    places = [_place(sections, k) for k in range(len(sections))]
    at_end: dict[tuple[int, float], int] = {}
    for place in places:
        if place is not None and place[1] in (0.0, 1.0):
            at_end[place] = at_end.get(place, 0) + 1
    regions = tuple(dict.fromkeys(s.region for s in sections))
    rows: list[tuple] = []
    nodes: list[list[int]] = []
    pieces_of: list[list[tuple]] = []
    joints: dict[tuple[int, float], int] = {}
    for k, section in enumerate(sections):
        place, pieces = places[k], _cut(section.points, counts[k])
        link: tuple[int, float] = (NO_PARENT, 0.0)
        if place is not None:
            p, at = place
            if at in (0.0, 1.0):
                edge = nodes[p][-1] if at == 1.0 else nodes[p][0]
                half = pieces_of[p][-1][2] if at == 1.0 else pieces_of[p][0][1]
                if at_end[place] == 1:
                    link = (edge, half)
                else:
                    if place not in joints:
                        point = pieces_of[p][-1][4] if at == 1.0 else pieces_of[p][0][3]
                        joints[place] = len(rows)
                        rows.append(
                            (edge, 0.0, 0.0, half, point, point, 1.0, regions.index(section.region), k)
                        )
                    link = (joints[place], 0.0)
            else:
                link = (nodes[p][min(int(at * counts[p]), counts[p] - 1)], 0.0)
        mine: list[int] = []
        for number, (area, before, after, begin, end, radius) in enumerate(pieces):
            above, half = link if number == 0 else (mine[-1], pieces[number - 1][2])
            mine.append(len(rows))
            rows.append((above, area, before, half, begin, end, radius, regions.index(section.region), k))
            del after
        nodes.append(mine)
        pieces_of.append(pieces)
    columns = list(zip(*rows, strict=True))
    return Morphology(
        np.array(columns[0], dtype=np.int32),
        *(np.array(c, dtype=np.float64) for c in columns[1:7]),
        np.array(columns[7], dtype=np.int32),
        np.array(columns[8], dtype=np.int32),
        regions,
    )


def _place(sections: Sequence[Section], k: int) -> tuple[int, float] | None:
    """Where a section begins: section and end; the start of a section that has a parent is a place on
    that."""
    section = sections[k]
    if section.parent == NO_PARENT:
        return None
    parent, at = section.parent, float(section.at)
    while at == 0.0 and sections[parent].parent != NO_PARENT:
        parent, at = sections[parent].parent, float(sections[parent].at)
    return parent, at


def _cut(points: np.ndarray, count: int) -> list[tuple]:
    """Area, halves before and after the middle, ends, effective radius of each of ``count`` equal pieces."""
    steps = np.linalg.norm(np.diff(points[:, :3], axis=0), axis=1)
    arc = np.concatenate([[0.0], np.cumsum(steps)])
    marks = np.linspace(0.0, arc[-1], 2 * count + 1)
    marks[-1] = arc[-1]

    def at(s: float) -> np.ndarray:
        return np.array([np.interp(s, arc, points[:, c]) for c in range(4)])

    pieces = []
    for k in range(count):
        halves, area = [], 0.0
        for a, b in ((marks[2 * k], marks[2 * k + 1]), (marks[2 * k + 1], marks[2 * k + 2])):
            inner = arc[(arc > a) & (arc < b)]
            stops = np.concatenate([[a], inner, [b]])
            radii = np.interp(stops, arc, points[:, 3])
            length = np.diff(stops)
            first, last = radii[:-1], radii[1:]
            area += float((np.pi * (first + last) * np.sqrt(length**2 + (first - last) ** 2)).sum())
            halves.append(float((length / (np.pi * first * last)).sum()))
        begin, end = at(marks[2 * k])[:3], at(marks[2 * k + 2])[:3]
        radius = area / (2 * np.pi * (marks[2 * k + 2] - marks[2 * k]))
        pieces.append((area, halves[0], halves[1], begin, end, radius))
    return pieces


def _check(sections: Sequence[Section], max_len: float) -> None:
    if not sections:
        raise ValueError("a cell needs at least one section")
    if not max_len > 0:
        raise ValueError(f"max_len={max_len} µm must be positive")
    for k, section in enumerate(sections):
        points = np.asarray(section.points, dtype=np.float64)
        if points.ndim != 2 or points.shape[1] != 4 or len(points) < 2:
            raise ValueError(f"section {k}: points have shape {list(points.shape)}; expected [at least 2, 4]")
        if not np.isfinite(points).all():
            raise ValueError(f"section {k} has a point that is not finite")
        if not (points[:, 3] > 0).all():
            raise ValueError(f"section {k} has a radius of {points[:, 3].min()} µm; radii must be positive")
        if not section.length > 0:
            raise ValueError(f"section {k} has length 0; drop points that coincide")
        if not NO_PARENT <= section.parent < k:
            raise ValueError(
                f"section {k} has the parent {section.parent}, which does not stand before it; "
                "icml_hhmea.morphology.reorder gives an order"
            )
        if section.parent == NO_PARENT and k > 0:
            raise ValueError(f"section {k} has no parent; only the first may have none")
        if not 0 <= section.at <= 1:
            raise ValueError(f"section {k} begins at {section.at} of its parent; expected 0 to 1")
