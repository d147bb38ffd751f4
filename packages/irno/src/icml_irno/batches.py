"""Training data as users have it, as batches of (x, y, mask): arrays, datasets, loaders, the Well."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, SequentialSampler, TensorDataset

Batch: TypeAlias = tuple[Tensor, Tensor, Tensor | None]


class Batches:
    """Pairs of input and target, batch by batch.

    Args:
        data: (x, y) or (x, y, mask) of arrays or tensors, a ``TensorDataset`` of these, a ``DataLoader`` of
            such batches, or a map-style dataset of samples, such as ``the_well.data.WellDataset``, whose
            frames [T, *space, fields] become [T fields, *space], time first.
        batch: samples a step; a loader has its own.
        device: where batches go.
        mask: True where a point exists in every sample, [1, 1, *space], beside the samples' own.
        dtype: of the fields of a batch, such as the network's; None leaves them as they are.

    Raises:
        TypeError: something else.
        ValueError: lengths or axes that do not fit together, no sample, or a target that is not finite where
            no mask is given (tensors; of other data, when the batch is met).
    """

    def __init__(
        self,
        data: Any,
        batch: int = 16,
        device: str | torch.device = "cpu",
        mask: Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        self.device, self.batch, self.dtype = torch.device(device), batch, dtype
        self.common = None if mask is None else mask.cpu()
        self.tensors: Batch | None = None
        self.loader: Any = None
        if isinstance(data, TensorDataset):
            data = data.tensors
        if isinstance(data, list | tuple):
            if len(data) not in (2, 3):
                raise TypeError(f"data is a tuple of {len(data)}; expected (x, y), or (x, y, mask)")
            x, y, *rest = (as_tensor(t) for t in data)
            mask = self._joined(rest[0].bool() if rest else None, y)
            check_pair(x, y, mask)
            check_target(y, mask)
            self.tensors = (x, y, mask)
        elif isinstance(data, DataLoader):
            self.loader = data
        elif isinstance(data, Dataset) or (hasattr(data, "__getitem__") and hasattr(data, "__len__")):
            if len(data) == 0:
                raise ValueError("the dataset is empty")
            self.loader = data
        else:
            raise TypeError(
                f"data is a {type(data).__name__}; expected (x, y) arrays, a TensorDataset, a DataLoader, "
                "or a dataset of pairs such as the_well.data.WellDataset"
            )

    def __len__(self) -> int:
        """Steps of an epoch."""
        if isinstance(self.loader, DataLoader):
            return len(self.loader)
        n = len(self.loader) if self.tensors is None else len(self.tensors[0])
        return -(-n // self.batch)

    def epoch(self, generator: torch.Generator | None = None) -> Iterator[Batch]:
        """The batches of an epoch, shuffled where a generator is given; a ``DataLoader`` orders its own."""
        if isinstance(self.loader, DataLoader):
            seen, shuffled = 0, not isinstance(self.loader.sampler, SequentialSampler)
            for number, item in enumerate(self.loader):
                x, y, mask = _pair(item, batched=True)
                # A shuffling loader tells no index of its dataset.
                rows, of = (range(len(y)), f" of the loader's batch {number}") if shuffled else (
                    range(seen, seen + len(y)), ""
                )  # fmt: skip
                seen += len(y)
                yield self._placed(x, y, mask, rows, of)
            return
        n = len(self.loader) if self.tensors is None else len(self.tensors[0])
        order = torch.arange(n) if generator is None else torch.randperm(n, generator=generator)
        for begin in range(0, n, self.batch):
            rows = order[begin : begin + self.batch]
            if self.tensors is not None:
                x, y, mask = self.tensors
                yield self._on_device(x[rows], y[rows], None if mask is None else mask[rows])
            else:
                pairs = [_pair(self.loader[i], batched=False) for i in rows.tolist()]
                stacked = [
                    torch.stack(part) if part[0] is not None else None for part in zip(*pairs, strict=True)
                ]
                yield self._placed(*stacked, rows.tolist())

    def _placed(self, x: Tensor, y: Tensor, mask: Tensor | None, rows: Sequence[int], of: str = "") -> Batch:
        mask = self._joined(mask, y)
        check_pair(x, y, mask)
        check_target(y, mask, rows, of)
        return self._on_device(x, y, mask)

    def _joined(self, mask: Tensor | None, y: Tensor) -> Tensor | None:
        if self.common is None:
            return mask
        common = self.common.expand(len(y), 1, *self.common.shape[2:])
        return common if mask is None else mask & common

    def _on_device(self, x: Tensor, y: Tensor, mask: Tensor | None) -> Batch:
        x, y = (t.to(self.device, self.dtype or t.dtype) for t in (x, y))
        return x, y, None if mask is None else mask.to(self.device)


def as_tensor(value: Any) -> Tensor:
    """An array as a tensor that shares its memory where it can."""
    if isinstance(value, Tensor):
        return value.detach()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise TypeError(f"an array of dtype {array.dtype} was given; expected real numbers")
    return torch.from_numpy(np.ascontiguousarray(array))


def check_pair(x: Tensor, y: Tensor, mask: Tensor | None) -> None:
    """Refuse pairs that do not fit together.

    Raises:
        TypeError: a dtype that is not real and floating.
        ValueError: lengths or numbers of axes that differ, or no sample.
    """
    for name, t in (("x", x), ("y", y)):
        if not t.is_floating_point():
            raise TypeError(f"{name} has dtype {t.dtype}; expected a real floating one, such as float32")
        if not 3 <= t.dim() <= 5:
            raise ValueError(f"{name} has shape {list(t.shape)}; expected [samples, channels, *space]")
    if len(x) != len(y) or x.dim() != y.dim() or len(x) == 0:
        raise ValueError(
            f"x has shape {list(x.shape)} and y {list(y.shape)}; expected as many samples, at least one, "
            "and as many axes"
        )
    if mask is not None and (len(mask) != len(y) or mask.shape[2:] != y.shape[2:] or mask.shape[1] != 1):
        raise ValueError(f"mask has shape {list(mask.shape)}; expected {[len(y), 1, *y.shape[2:]]}")


def check_target(
    y: Tensor, mask: Tensor | None = None, rows: Sequence[int] | None = None, of: str = ""
) -> None:
    """Refuse a target that is not finite where it counts.

    Args:
        y: the targets.
        mask: True where a point exists.
        rows: index of each sample in its dataset; 0, 1, ... by default.
        of: what the indices belong to, where it is not the dataset.

    Raises:
        ValueError: names the first samples.
    """
    finite = torch.isfinite(y)
    if mask is not None:
        finite = finite | ~mask
    bad = (~finite.flatten(1).all(1)).nonzero().flatten()
    if len(bad):
        named = sorted(int(i) if rows is None else rows[int(i)] for i in bad)
        shown = ", ".join(map(str, named[:10]))
        more = f" and {len(bad) - 10} more" if len(bad) > 10 else ""
        raise ValueError(
            f"the target has NaN or infinity in samples {shown}{more}{of}; remove them, or give mask= "
            "where points do not exist"
        )


def _pair(item: Any, batched: bool) -> Batch:
    """x and y of a sample or a batch of any kind."""
    if isinstance(item, Mapping):
        if "input_fields" not in item or "output_fields" not in item:
            raise TypeError(
                f"a sample has the keys {', '.join(map(str, item))}; expected input_fields and "
                "output_fields, as the_well.data.WellDataset gives, or a pair (x, y)"
            )
        return _frames(item["input_fields"], batched), _frames(item["output_fields"], batched), None
    if isinstance(item, list | tuple) and len(item) in (2, 3):
        x, y, *rest = (as_tensor(t) for t in item)
        return x, y, rest[0].bool() if rest else None
    raise TypeError(f"a sample is a {type(item).__name__}; expected a pair (x, y)")


def _frames(fields: Any, batched: bool) -> Tensor:
    """[.., T, *space, F] -> [.., T F, *space], time-major."""
    t = as_tensor(fields)
    first = 1 if batched else 0
    return t.movedim(-1, first + 1).flatten(first, first + 1)
