"""Compression of a trained network for dynamics: each layer's filter network becomes a cubic table.

The number of intervals doubles until the error measured between the nodes is below the tolerance. What
comes back beside the model says which errors were measured, so that nobody has to trust the tolerance.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from icml_flashschnet.filter_network import FilterNetwork
from icml_flashschnet.filter_table import FilterTable, double_copy
from icml_flashschnet.half_weights import HalfReport, Rounding, to_half
from icml_flashschnet.potential import SumPotential
from icml_flashschnet.schnet import FlashSchNet, Interaction

Potential = TypeVar("Potential", FlashSchNet, SumPotential)

SLOPE_TOLERANCE = 100.0
"""Tolerance of dW/dr over that of W: slopes of a cubic converge one order slower (1e-4 beside 1e-6)."""
FIRST_INTERVALS, MOST_INTERVALS = 64, 65536
INTERIOR_POINTS = 8
"""Points an interval at which the error is measured."""
BETWEEN_POINTS = 1.05
"""How much larger the error may be than there: t^2 (1-t)^2 peaks 3 % above its value at t = 7/16."""


@dataclass(frozen=True)
class LayerError:
    """What the table of one layer costs.

    Attributes:
        intervals: number of intervals of the grid.
        filter_error: largest error of W between the nodes, over the largest |W|.
        slope_error: the same for dW/dr.
        table_bytes: size of the table.
    """

    intervals: int
    filter_error: float
    slope_error: float
    table_bytes: int


@dataclass(frozen=True)
class CompressionReport:
    """Measured errors of every layer's table, in the order of the layers.

    Attributes:
        tol: the tolerance asked for (of W; slopes: 100 times that).
        layers: one entry a layer.
        half: what 16-bit weights cost, where they were asked for.
    """

    tol: float
    layers: tuple[LayerError, ...]
    half: HalfReport | None = None

    @property
    def filter_error(self) -> float:
        """Worst relative error of a filter."""
        return max(layer.filter_error for layer in self.layers)

    @property
    def slope_error(self) -> float:
        """Worst relative error of a filter's slope."""
        return max(layer.slope_error for layer in self.layers)

    @property
    def table_bytes(self) -> int:
        """Bytes of all tables together."""
        return sum(layer.table_bytes for layer in self.layers)


@dataclass(frozen=True)
class Compression:
    """A compressed model with its report.

    Attributes:
        model: the model for inference.
        report: the measured errors.
    """

    model: FlashSchNet | SumPotential
    report: CompressionReport

    def verify(self, problem: FlashSchNet | SumPotential) -> None:
        """Check this compression against the model that it came from, at points that the solver never used.

        Raises:
            ValueError: a filter or slope is off by more than the tolerance, or another weight differs.
        """
        originals, compressed = _networks(problem), _networks(self.model)
        if len(originals) != len(compressed):
            raise ValueError(f"{len(compressed)} networks were compressed, the problem has {len(originals)}")
        for original, fast in zip(originals, compressed, strict=True):
            kept = fast.state_dict()
            for name, value in original.state_dict().items():
                if ".filter." not in name and not (name in kept and torch.equal(kept[name], value)):
                    raise ValueError(f"weight {name} differs from the original's")
            for number, (layer, table) in enumerate(
                zip(_interactions(original), _interactions(fast), strict=True)
            ):
                if not isinstance(layer.filter, FilterNetwork) or not isinstance(table.filter, FilterTable):
                    raise ValueError(f"layer {number}: expected a table of a filter network")
                points = _interior(table.filter, offset=0.37, points=5)
                errors = _errors(layer.filter, table.filter, points)
                for what, error, bound in zip(
                    ("filters", "slopes"), errors, (1.0, SLOPE_TOLERANCE), strict=True
                ):
                    allowed = BETWEEN_POINTS * bound * self.report.tol
                    if not error <= allowed:
                        raise ValueError(
                            f"layer {number}: {what} are off by {error:.2e} of their largest value, "
                            f"more than {allowed:.2e}"
                        )


@dataclass(frozen=True)
class TableCompressor:
    """Solver: a trained model goes in, one with tabulated filters comes out.

    Attributes:
        tol: largest error of W over the largest |W|; dW/dr is allowed a hundred times that.
    """

    tol: float = 1e-6

    def __post_init__(self) -> None:
        if not 0 < self.tol < 1:
            raise ValueError(f"tol must be a relative error between 0 and 1, got {self.tol!r}")

    def solve(self, problem: FlashSchNet | SumPotential) -> Compression:
        """Tabulate the filters of ``problem``, which is left as it is.

        Raises:
            TypeError: not a :class:`FlashSchNet`, nor a sum that holds one.
            ValueError: the tolerance is beyond the model's precision, or the filters are already tables.
        """
        model, report = compress(problem, tol=self.tol)
        return Compression(model, report)


def compress(
    model: Potential,
    filter: Literal["table"] = "table",
    *,
    tol: float = 1e-6,
    weights: Literal["fp32", "w16a16"] = "fp32",
    calib: tuple[Tensor, Tensor] | None = None,
    rounding: Rounding = "nearest",
    max_force_rmse: float = 0.01,
) -> tuple[Potential, CompressionReport]:
    """An inference model with tabulated filters, and the errors measured on the way.

    Args:
        model: a :class:`FlashSchNet`, or a :class:`SumPotential` that holds one; it is left as it is.
        filter: how filters are stored; ``"table"`` is a cubic Hermite table.
        tol: largest error of W over the largest |W|; dW/dr is allowed a hundred times that.
        weights: ``"w16a16"`` keeps the weights of the dense layers in 16 bits, channel by channel, and rounds
            their inputs to 16 bits; tables stay as they are.
        calib: for that, positions [frames, beads, 3] (Å) and bead types, on which forces are compared.
        rounding: ``"nearest"``, or ``"compensated"`` as by GPTQ, with the inputs that ``calib`` shows.
        max_force_rmse: largest error of the forces that 16 bits may cause, relative, root mean square.

    Returns:
        The compressed copy, whose parameters require no gradient, and its report.

    Raises:
        TypeError: ``model`` holds no :class:`FlashSchNet`.
        ValueError: the tolerance is beyond the model's precision, the filters are already tables, or 16-bit
            weights change forces by more than allowed, or no frames are given to tell.
    """
    if weights not in ("fp32", "w16a16"):
        raise ValueError(f"weights must be 'fp32' or 'w16a16', got {weights!r}")
    if weights == "w16a16" and calib is None:
        raise ValueError(
            "weights='w16a16' needs calib=(positions [frames, beads, 3], types) to measure forces on"
        )
    if filter != "table":
        raise ValueError(f"filter must be 'table', got {filter!r}")
    if not 0 < tol < 1:
        raise ValueError(f"tol must be a relative error between 0 and 1, got {tol!r}")
    fast = copy.deepcopy(model).requires_grad_(False)
    errors = []
    for network in _networks(fast):
        for number, layer in enumerate(_interactions(network)):
            if not isinstance(layer.filter, FilterNetwork):
                raise ValueError(f"layer {number} is already compressed: compress the original model")
            layer.filter, error = tabulate(layer.filter, tol)
            errors.append(error)
    if calib is None or weights == "fp32":
        return fast, CompressionReport(tol, tuple(errors))
    half = [to_half(n, calib, rounding=rounding, max_force_rmse=max_force_rmse) for n in _networks(fast)]
    return fast, CompressionReport(tol, tuple(errors), half[0])


def tabulate(network: FilterNetwork, tol: float) -> tuple[FilterTable, LayerError]:
    """The coarsest table, by doubling, whose measured errors are below ``tol``.

    Args:
        network: filter network of one layer.
        tol: largest error of W over the largest |W|; dW/dr is allowed a hundred times that.

    Raises:
        ValueError: even the finest grid misses the tolerance, because of rounding in the table's dtype.
    """
    intervals = FIRST_INTERVALS
    best = (float("inf"), float("inf"))
    while intervals <= MOST_INTERVALS:
        table = FilterTable.of(network, intervals)
        errors = _errors(network, table, _interior(table))
        if errors[0] <= tol and errors[1] <= SLOPE_TOLERANCE * tol:
            return table, LayerError(intervals, *errors, table.table.numel() * table.table.element_size())
        resolved = intervals >= 4 * network.basis.n_rbf
        if resolved and errors[0] > 0.5 * best[0] and errors[1] > 0.5 * best[1]:
            break  # rounding, which no finer grid lowers: halving the spacing should give 1/16 and 1/8
        best = min(best[0], errors[0]), min(best[1], errors[1])
        intervals *= 2
    raise ValueError(
        f"no table reaches tol={tol:g}: the best error is {best[0]:.1e} (slopes {best[1]:.1e}) "
        f"in {table.table.dtype}; raise tol, or compress model.double()"
    )


def _interior(table: FilterTable, *, offset: float = 0.5, points: int = INTERIOR_POINTS) -> Tensor:
    """Distances (k + offset) / points of the way through every interval, 0 < offset < 1, in float64."""
    inside = (torch.arange(points, dtype=torch.float64) + offset) / points
    nodes = torch.arange(table.intervals, dtype=torch.float64)
    return ((nodes[:, None] + inside) * table.spacing).flatten().to(table.table.device)


@torch.no_grad()
def _errors(network: FilterNetwork, table: FilterTable, r: Tensor) -> tuple[float, float]:
    """Largest errors of filters and slopes over their largest values; the cubic is evaluated in float64."""
    exact = double_copy(network).with_slope(r)
    stored = FilterTable(table.table.double(), table.r_cut).with_slope(r)
    value, slope = (
        float((a - b).abs().max() / a.abs().max().clamp(min=torch.finfo(a.dtype).tiny))
        for a, b in zip(exact, stored, strict=True)
    )
    return value, slope


def _networks(model: nn.Module) -> list[FlashSchNet]:
    networks = [part for part in model.modules() if isinstance(part, FlashSchNet)]
    if not networks:
        raise TypeError(f"compress takes a FlashSchNet, or a sum that holds one; got {type(model).__name__}")
    return networks


def _interactions(model: FlashSchNet) -> list[Interaction]:
    return list(model.interactions)  # type: ignore[arg-type]
