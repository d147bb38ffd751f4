"""Cells of other simulators: their compartments, axial resistances and capacitances, as they have them.

Channels do not come along: give them, with their conductances, as options of ``Cell``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from icml_hhmea.cell import Cell
from icml_hhmea.morphology import NO_PARENT, Morphology, Section, discretise, reorder

COINCIDE_UM = 1e-9


def neuron_cell(cls: type[Cell], section: Any, **options: Any) -> Cell:
    """The cell of a ``neuron`` section: every section of its tree, cut into NEURON's own segments.

    Sections with 3-d points keep them; others become straight cylinders.

    Raises:
        ValueError: sections of one cell with different Ra or cm (give ``ra=`` and ``cm=`` to insist).
    """
    root = section
    while root.parentseg() is not None:
        root = root.parentseg().sec
    every = [root, *_descendants(root)]
    number = {s.name(): k for k, s in enumerate(every)}
    sections, counts = [], []
    for s in every:
        parent = s.parentseg()
        sections.append(
            Section(
                _points(s),
                NO_PARENT if parent is None else number[parent.sec.name()],
                1.0 if parent is None else float(parent.x),
                s.name().split(".")[-1].split("[")[0],
            )
        )
        counts.append(int(s.nseg))
        if s.orientation() != 0.0:
            raise ValueError(f"section {s.name()} is connected by its far end; connect its 0 end")
    for name, key in (("Ra", "ra"), ("cm", "cm")):
        found = {round(float(getattr(seg, name) if name == "cm" else s.Ra), 12) for s in every for seg in s}
        if len(found) > 1 and key not in options:
            raise ValueError(
                f"the sections have different {name}: {sorted(found)}; pass {key}= to insist on one"
            )
        options.setdefault(key, found.pop())
    return cls(discretise(sections, counts=counts), **options)


def jaxley_cell(cls: type[Cell], cell: Any, **options: Any) -> Cell:
    """The cell of a ``jaxley`` cell: its compartments as cylinders, joined as its branches are.

    Raises:
        ValueError: compartments with different axial resistivity or capacitance.
    """
    table = cell.nodes
    order = list(table.index)
    parents = np.asarray(cell.comb_parents, dtype=int)
    branch = table["global_branch_index"].to_numpy()
    places = table[["x", "y", "z"]].to_numpy(dtype=float) if {"x", "y", "z"} <= set(table.columns) else None
    sections, counts = [], []
    sequence = reorder(parents.tolist())
    new = {int(old): k for k, old in enumerate(sequence)}
    for b in sequence.tolist():
        rows = table.loc[[i for i, own in zip(order, branch, strict=True) if own == b]]
        length = rows["length"].to_numpy(dtype=float)
        radius = rows["radius"].to_numpy(dtype=float)
        if len(set(np.round(length, 9))) > 1 or len(set(np.round(radius, 9))) > 1:
            raise ValueError(
                f"branch {b} has compartments of several lengths or radii; only equal ones are read"
            )
        base = (
            np.zeros(3)
            if places is None or not np.isfinite(places).all()
            else places[order.index(rows.index[0])]
        )
        total = float(length.sum())
        points = [[*base, radius[0]], [base[0] + total, base[1], base[2], radius[0]]]
        parent = int(parents[b])
        sections.append(
            Section(np.array(points), new[parent] if parent >= 0 else NO_PARENT, 1.0, f"branch{b}")
        )
        counts.append(len(rows))
    for name, key in (("axial_resistivity", "ra"), ("capacitance", "cm")):
        found = set(np.round(table[name].to_numpy(dtype=float), 9).tolist())
        if len(found) > 1 and key not in options:
            raise ValueError(f"the compartments have different {name}: {sorted(found)[:4]}; pass {key}=")
        options.setdefault(key, found.pop())
    return cls(discretise(sections, counts=counts), **options)


def renumber(morphology: Morphology, order: np.ndarray) -> Morphology:
    """The same tree with its nodes in another order (parents before children)."""
    place = np.empty(len(order), dtype=np.int64)
    place[order] = np.arange(len(order))
    parent = morphology.parent[order]
    moved = np.where(parent >= 0, place[np.maximum(parent, 0)], NO_PARENT).astype(np.int32)
    rest = {k: v[order] for k, v in vars(morphology).items() if k not in ("parent", "regions")}
    return Morphology(parent=moved, regions=morphology.regions, **rest)


def _descendants(section: Any) -> list[Any]:
    found = []
    pending = list(section.children())
    while pending:
        child = pending.pop(0)
        found.append(child)
        pending += list(child.children())
    return found


def _points(section: Any) -> np.ndarray:
    n = int(section.n3d())
    if n >= 2:
        rows = [[section.x3d(k), section.y3d(k), section.z3d(k), section.diam3d(k) / 2] for k in range(n)]
        kept = rows[:1]
        for row in rows[1:]:
            if np.linalg.norm(np.subtract(row[:3], kept[-1][:3])) > COINCIDE_UM:
                kept.append(row)
        return np.array(kept, dtype=float)
    radii = {round(float(seg.diam), 12) for seg in section}
    if len(radii) > 1:
        raise ValueError(f"section {section.name()} has several diameters and no 3-d points; add points")
    return np.array([[0, 0, 0, section.diam / 2], [section.L, 0, 0, section.diam / 2]], dtype=float)
