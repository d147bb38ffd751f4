"""Atomic matrices: the parts of a parameter that have a sphere of their own.

A fused projection is no matrix of the network: each attention head, gate, expert and convolution is (arXiv
2601.08393, section 4: splitting by head is the granularity that helps most). `Atomic` says how a parameter is
cut. Batch axes are stated, never guessed from the number of dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_sso.radius import RETRACTIONS


@dataclass(frozen=True)
class Atomic:
    """How a parameter is cut into matrices of shape (d_out, d_in).

    Attributes:
        batch_axes: leading axes that count matrices, such as 1 for experts stacked as (experts, out, in).
        merge_batch: the rows of all batch entries form one matrix.
        transpose: the parameter is stored (in, out), as in GPT-2's Conv1D or grouped experts (in, experts x
            out).
        flatten: trailing axes are merged into d_in, as in convolutions (out, in, k, k).
        blocks: sizes of consecutive blocks of rows (of d_out), each a matrix of its own; None for the whole.
        labels: blocks of one label together form one matrix, as in a fused projection that interleaves the
            heads of q, k and v but shall be cut into q, k and v.
        tangent: whether the update is made tangent to the sphere; without, lambda = 0.
        retract: ``"hard"``, ``"dynamic"`` or ``"off"`` (no radius exists, as for adapters); None for the
            group's.
        role: what it is, for reports: ``"q"``, ``"router"``, ...
    """

    batch_axes: int = 0
    merge_batch: bool = False
    transpose: bool = False
    flatten: bool = False
    blocks: tuple[int, ...] | None = None
    labels: tuple[int, ...] | None = None
    tangent: bool = True
    retract: str | None = None
    role: str = ""

    def __post_init__(self) -> None:
        if self.batch_axes < 0:
            raise ValueError(f"batch_axes={self.batch_axes}; expected 0 or more")
        if self.merge_batch and self.transpose:
            raise ValueError(
                "merge_batch joins rows of (out, in) matrices; transpose=True stores columns there"
            )
        if self.blocks is not None and (not self.blocks or min(self.blocks) < 1):
            raise ValueError(f"blocks={self.blocks}; expected positive sizes of row blocks")
        if self.labels is not None and (self.blocks is None or len(self.labels) != len(self.blocks)):
            raise ValueError(f"labels={self.labels} must name each of blocks={self.blocks}")
        if self.retract is not None and self.retract not in RETRACTIONS:
            raise ValueError(f"retract={self.retract!r} is not one of {', '.join(RETRACTIONS)}")

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers, strings and lists: what a state dict holds."""
        return {
            "batch_axes": self.batch_axes,
            "merge_batch": self.merge_batch,
            "transpose": self.transpose,
            "flatten": self.flatten,
            "blocks": None if self.blocks is None else list(self.blocks),
            "labels": None if self.labels is None else list(self.labels),
            "tangent": self.tangent,
            "retract": self.retract,
            "role": self.role,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Atomic:
        """The reverse of `to_dict`."""
        given = dict(data)
        for name in ("blocks", "labels"):
            if given.get(name) is not None:
                given[name] = tuple(int(x) for x in given[name])
        return cls(**given)


@dataclass(frozen=True)
class Part:
    """Equal matrices inside a parameter.

    Attributes:
        ranges: row ranges. One range holds a whole number of matrices; several together form one.
        rows: d_out of each.
        columns: d_in.
        batch: matrices along the batch axes.
        first: number of the first of them among all atomic matrices of the parameter.
    """

    ranges: tuple[tuple[int, int], ...]
    rows: int
    columns: int
    batch: int
    first: int

    @property
    def count(self) -> int:
        """How many matrices."""
        begin, end = self.ranges[0]
        return self.batch * ((end - begin) // self.rows if len(self.ranges) == 1 else 1)

    @property
    def atoms(self) -> slice:
        """Their numbers among all atomic matrices of the parameter."""
        return slice(self.first, self.first + self.count)


class Layout:
    """The atomic matrices of one parameter: reads and writes them through views.

    Args:
        shape: of the parameter.
        atomic: how it is cut.
        name: of the parameter, for errors.

    Raises:
        ValueError: the shape is no stack of matrices under ``atomic``, or the blocks do not tile its rows.
    """

    def __init__(self, shape: torch.Size | tuple[int, ...], atomic: Atomic, name: str) -> None:
        self.shape, self.atomic = tuple(shape), atomic
        inner = self.shape[atomic.batch_axes :]
        needed = "(d_out, ...)" if atomic.flatten else "(d_out, d_in)"
        if len(inner) < 2 or (len(inner) > 2 and not atomic.flatten):
            raise ValueError(
                f"parameter {name!r} has shape {list(self.shape)}; after {atomic.batch_axes} batch axes a "
                f"matrix group needs {needed}. Use build_param_groups(model), or say by "
                "Atomic(batch_axes=..., flatten=...) which axes count matrices"
            )
        if 0 in self.shape:
            raise ValueError(f"parameter {name!r} has shape {list(self.shape)}: it is empty")
        first, rest = inner[0], math.prod(inner[1:])
        self.rows, self.columns = (rest, first) if atomic.transpose else (first, rest)
        self.batch = math.prod(self.shape[: atomic.batch_axes])
        if atomic.merge_batch:
            self.rows, self.batch, first = self.batch * self.rows, 1, self.batch * first
        self._inner = (first, rest)
        self.parts = self._cut(name)
        self.count = sum(part.count for part in self.parts)

    def _cut(self, name: str) -> tuple[Part, ...]:
        blocks = self.atomic.blocks or (self.rows,)
        if sum(blocks) != self.rows:
            raise ValueError(
                f"the row blocks of {name!r} sum to {sum(blocks)}, but it has {self.rows} rows; "
                "they must tile it"
            )
        bounds = [0]
        for size in blocks:
            bounds.append(bounds[-1] + size)
        ranges = [(bounds[k], bounds[k + 1]) for k in range(len(blocks))]
        parts: list[Part] = []
        if self.atomic.labels is not None:
            for label in dict.fromkeys(self.atomic.labels):
                own = [r for r, other in zip(ranges, self.atomic.labels, strict=True) if other == label]
                merged: list[tuple[int, int]] = []
                for begin, end in own:
                    if merged and merged[-1][1] == begin:
                        merged[-1] = (merged[-1][0], end)
                    else:
                        merged.append((begin, end))
                rows = sum(end - begin for begin, end in merged)
                self._append(parts, tuple(merged), rows)
            return tuple(parts)
        at = 0
        while at < len(blocks):
            last = at
            while last + 1 < len(blocks) and blocks[last + 1] == blocks[at]:
                last += 1
            self._append(parts, ((ranges[at][0], ranges[last][1]),), blocks[at])
            at = last + 1
        return tuple(parts)

    def _append(self, parts: list[Part], ranges: tuple[tuple[int, int], ...], rows: int) -> None:
        first = parts[-1].first + parts[-1].count if parts else 0
        parts.append(Part(ranges, rows, self.columns, self.batch, first))

    def matrices(self, tensor: Tensor) -> Float[Tensor, "batch rows columns"]:
        """The parameter, or a tensor of its shape, as a stack of (d_out, d_in): a view."""
        stack = (
            tensor.view(self.batch, *self._inner)
            if tensor.is_contiguous()
            else tensor.reshape(self.batch, *self._inner)
        )
        return stack.mT if self.atomic.transpose else stack

    def read(
        self, tensor: Tensor, part: Part, own: slice | None = None
    ) -> Float[Tensor, "count rows columns"]:
        """The matrices of a part, all or those that ``own`` numbers: views wherever strides allow."""
        stack = self.matrices(tensor)
        if len(part.ranges) > 1:
            chosen = stack if own is None else stack[own]
            return torch.cat([chosen[:, a:b] for a, b in part.ranges], dim=1)
        cut = self._cut_out(stack, part)
        if own is None or (own.start, own.stop) == (0, part.count):
            return cut.flatten(0, 1)
        if cut.shape[0] == 1 or cut.shape[1] == 1:
            return cut[0, own] if cut.shape[0] == 1 else cut[own, 0]
        numbers = range(own.start, own.stop)
        if len(numbers) == 1:
            return cut[divmod(own.start, cut.shape[1])][None]
        return torch.stack([cut[divmod(number, cut.shape[1])] for number in numbers])

    def write(
        self,
        tensor: Tensor,
        part: Part,
        value: Float[Tensor, "count rows columns"],
        own: slice | None = None,
    ) -> None:
        """Put new matrices into the parameter, in place: all of a part, or those that ``own`` numbers.

        Raises:
            ValueError: the parameter is not contiguous, so that it has no views of its matrices.
        """
        if not tensor.is_contiguous():
            raise ValueError(
                "a parameter of a matrix group must be contiguous; call .contiguous() when it is made"
            )
        stack = self.matrices(tensor)
        if len(part.ranges) > 1:
            chosen = stack if own is None else stack[own]
            at = 0
            for begin, end in part.ranges:
                chosen[:, begin:end].copy_(value[:, at : at + end - begin])
                at += end - begin
            return
        cut = self._cut_out(stack, part)
        if own is None or (own.start, own.stop) == (0, part.count):
            cut.copy_(value.view(cut.shape))
            return
        for number, matrix in zip(range(own.start, own.stop), value, strict=True):
            cut[divmod(number, cut.shape[1])].copy_(matrix)

    @staticmethod
    def _cut_out(stack: Tensor, part: Part) -> Float[Tensor, "batch blocks rows columns"]:
        """The matrices of a part of one range: number k is block k % blocks of batch entry k // blocks."""
        begin, end = part.ranges[0]
        return stack[:, begin:end].unflatten(1, (-1, part.rows))
