"""The cover program of bad triangles and its dual within a factor 1 + ε, by multiplicative weights.

Every edge has a length, ``1/w_e`` at first. In phases with a rising threshold, each triangle shorter than the
threshold is packed, which makes its edges longer by a factor of at most ``1 + step`` (Garg and Könemann, SIAM
J. Comput. 37, 2007, doi.org/10.1137/S0097539704446232; Fleischer's phases). Lengths over the threshold cover
every triangle, and what was packed, over the worst load at each triangle, is a packing: the two prove each
other near-optimal, and the work ends when they do. A pass touches each triangle once; memory is 20 bytes a
triangle besides the list.

Two steps go beyond the method and save most of its phases, as each yields feasible solutions whatever it is
given. Packings are scaled triangle by triangle, not by the one worst load. Of a cover only the values on
positive edges are kept, also rounded to halves, since optima have mostly those; negative edges get the least
that covers, ``x_n = max(0, 1 − x_p − x_p')``.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from jaxtyping import Float, Int

from icml_btt import compiled
from icml_btt.linear_program import CoverSolution, Report, Status, feasible_packing, mistakes
from icml_btt.packing import Packing
from icml_btt.signed_graph import SignedGraph
from icml_btt.triangles import TriangleSystem

EPSILON = 0.05
_FIRST_STEP = 0.2
# Covers are tried at these thresholds, relative to the one that all triangles have reached. Below 1 they
# rest more on the positive edges.
_SCALES = 1.12 ** np.arange(-7.0, 3.0)
# Solutions are taken after 4, 8, … phases, later at every eighth part of those done.
_FIRST_LOOK, _LATER_LOOKS = 4, 8


def approximate_cover(
    graph: SignedGraph,
    system: TriangleSystem,
    *,
    eps: float = EPSILON,
    labels: Int[np.ndarray, " n"] | None = None,
    time_limit: float | None = None,
    report: Report | None = None,
) -> CoverSolution:
    """Find a cover and a packing of ``system`` with ``Σ w_e x_e ≤ (1 + ε) Σ y_t``.

    Both are feasible, so each proves how good the other is. The first phases have a step of 0.2, which is
    enough for most graphs; where it is not, it is halved until the method's own guarantee holds.

    Args:
        graph: the signed graph.
        system: its bad triangles; the result depends on their order, and on nothing random.
        eps: how close cover and packing must come, from 0.001 up to 1.
        labels: a clustering, whose mistakes are a first cover.
        time_limit: in seconds; then the best cover and packing so far are returned.
        report: called after each look as ``report("multiplicative weights", phases=…, value=…, bound=…)``.

    Raises:
        ValueError: ``eps`` below 0.001 or not below 1.
    """
    check_eps(eps)
    deadline = np.inf if time_limit is None else time.perf_counter() + time_limit
    search = _Search(system)
    if labels is not None:
        search.offer(mistakes(graph, system, labels).astype(np.float64))
    status: Status = "approximate"
    for phases in search.looks():
        if report is not None:
            report("multiplicative weights", phases=phases, value=search.value, bound=search.bound)
        if search.value <= (1.0 + eps) * search.bound:
            break
        if time.perf_counter() > deadline:
            status = "time limit"
            break
    heavy = np.flatnonzero(search.y > 0)
    return CoverSolution(
        edges=graph.pair_ends(system.keys),
        x=search.x,
        packing=Packing(system.triangles[heavy], search.y[heavy]),
        value=float(system.weight @ search.x),
        status=status,
        rounds=search.phases,
    )


def check_eps(eps: float) -> None:
    """Refuse an accuracy that is none.

    Raises:
        ValueError: quotes it.
    """
    if not 1e-3 <= eps < 1.0:
        raise ValueError(f"eps={eps!r}; expected at least 0.001 and less than 1; for an optimum take HiGHS")


class _Search:
    """Lengths and packed amounts, and the best feasible solutions so far."""

    def __init__(self, system: TriangleSystem) -> None:
        self.system = system
        self.rows = system.rows.astype(np.int32, copy=False)
        self.positive = np.flatnonzero(system.sign > 0)
        self.x = np.ones(len(system.keys))
        self.value = float(system.weight.sum())
        self.y = np.zeros(len(system.rows))
        self.bound = 0.0
        self.phases = 0
        self.best_scale = len(_SCALES) // 2

    def looks(self) -> Iterator[int]:
        """Go through phases; stop for a look at the solutions now and then, and give the phases done."""
        if not len(self.rows):
            self.offer(self.x * 0.0)
            yield 0
            return
        step = _FIRST_STEP
        while True:
            yield from self._looks_with(step)
            step /= 2.0

    def _looks_with(self, step: float) -> Iterator[int]:
        """Start anew with a step; end once the guarantee of that step, a factor 1 + 3 step, is reached."""
        weight = self.system.weight
        lengths, packed = 1.0 / weight, np.zeros(len(self.rows))
        threshold = float(self._totals(lengths).min())
        # Lengths grow from the same start to 1 by (1 + step) of each fully loaded edge: log(3) / step² times.
        last = int(np.ceil(2.0 * np.log(3.0 * (1.0 + step)) / step**2))
        done = 0
        while done < last:
            phases = min(max(_FIRST_LOOK, done // _LATER_LOOKS), last - done)
            lengths, packed = self._advance(lengths, packed, threshold * (1.0 + step), step, phases)
            for _ in range(phases):
                threshold *= 1.0 + step
            done += phases
            self.phases += phases
            self._take_packing(packed)
            self._take_cover(lengths[self.positive] / threshold)
            yield self.phases

    def _totals(self, lengths: Float[np.ndarray, " edges"]) -> Float[np.ndarray, " triangles"]:
        return lengths[self.rows[:, 0]] + lengths[self.rows[:, 1]] + lengths[self.rows[:, 2]]

    def _advance(
        self,
        lengths: Float[np.ndarray, " edges"],
        packed: Float[np.ndarray, " triangles"],
        threshold: float,
        step: float,
        phases: int,
    ) -> tuple[Float[np.ndarray, " edges"], Float[np.ndarray, " triangles"]]:
        """Pack triangles in turn until none is shorter than the threshold, in phases with rising ones."""
        kernels = compiled.kernels(len(self.rows))
        if kernels is not None:
            arrays = (self.rows, self.system.weight, lengths, packed)
            tensors = map(compiled.tensor, arrays)
            found = kernels.mwu_cover_pass(*tensors, threshold, step, phases, trusted=True)
            return found[0].numpy(), found[1].numpy()
        length, weight, amounts = lengths.tolist(), self.system.weight.tolist(), packed.copy()
        for _ in range(phases):
            # Lengths never fall: only triangles that are short now can be short when it is their turn.
            short = np.flatnonzero(self._totals(np.array(length)) < threshold)
            for t, (a, b, c) in zip(short.tolist(), self.rows[short].tolist(), strict=True):
                amount = min(weight[a], weight[b], weight[c])
                while length[a] + length[b] + length[c] < threshold:
                    amounts[t] += amount
                    for edge in (a, b, c):
                        length[edge] *= 1.0 + step * amount / weight[edge]
            threshold *= 1.0 + step
        return np.array(length), amounts

    def _take_packing(self, packed: Float[np.ndarray, " triangles"]) -> None:
        """Keep the packing, scaled until it is one, where it proves more."""
        kernels = compiled.kernels(len(self.rows))
        if kernels is not None:
            tensors = map(compiled.tensor, (self.rows, self.system.weight, packed))
            y = kernels.scaled_packing(*tensors, trusted=True).numpy()
        else:
            y = feasible_packing(self.system, packed)
        if (total := float(y.sum())) > self.bound:
            self.y, self.bound = y, total

    def _take_cover(self, lengths: Float[np.ndarray, " positive"]) -> None:
        """Keep the cheapest of the covers that lengths of positive edges give: in halves, and as they are."""
        covers = np.minimum(lengths / _SCALES[:, None], 1.0)
        first, last = max(self.best_scale - 1, 0), min(self.best_scale + 2, len(_SCALES))
        values = np.concatenate([covers[first:last], np.floor(2.0 * covers + 0.5) / 2.0])
        costs = self._costs(values)
        self.best_scale = first + int(np.argmin(costs[: last - first]))
        best = int(np.argmin(costs))
        if costs[best] < self.value:
            self.offer(self._raised(values[best]))

    def _costs(self, values: Float[np.ndarray, "covers positive"]) -> Float[np.ndarray, " covers"]:
        """What the least covers with these values on positive edges cost."""
        weight = self.system.weight
        kernels = compiled.kernels(len(self.rows))
        if kernels is not None:
            tensors = map(compiled.tensor, (self.rows, weight, self.positive, values))
            return kernels.cover_costs(*tensors, trusted=True).numpy()
        # A running sum adds one after the other, as the compiled loop does, to the same last bit.
        return np.array([np.cumsum(weight * self._raised(row))[-1] for row in values])

    def _raised(self, values: Float[np.ndarray, " positive"]) -> Float[np.ndarray, " edges"]:
        """The least cover with these values on positive edges."""
        x = np.zeros(len(self.system.keys))
        x[self.positive] = values
        kernels = compiled.kernels(len(self.rows))
        if kernels is not None:
            rows = compiled.tensor(self.rows)
            return kernels.raised_cover(rows, compiled.tensor(x), trusted=True).numpy()
        raised = x.copy()
        np.maximum.at(raised, self.rows[:, 0], 1.0 - x[self.rows[:, 1]] - x[self.rows[:, 2]])
        return raised

    def offer(self, x: Float[np.ndarray, " edges"]) -> None:
        """Keep a cover where it is the cheapest."""
        cost = float(self.system.weight @ x)
        if cost < self.value:
            self.x, self.value = x, cost
