"""A log-density in low precision: a cast copy of a module, or a function under a mode that rounds every step.

δ must be a fixed function of x: a product that sums in another order for another batch size gives another δ.
So a sampler calls its density in one shape, filled up where there are fewer rows.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from icml_mpvmc.models import amplitude_of
from icml_mpvmc.precision import DTYPES, arithmetic, precision_name

CHUNK = 8192
"""Rows of one call where the batch has no fixed shape."""

_VIEWS = {
    "__getitem__", "as_strided", "chunk", "detach", "diagonal", "expand", "expand_as", "flatten", "movedim",
    "narrow", "permute", "ravel", "reshape", "select", "split", "squeeze", "swapaxes", "swapdims", "t",
    "tensor_split", "transpose", "unbind", "unflatten", "unfold", "unsqueeze", "view", "view_as",
}  # fmt: skip
"""Functions whose results share memory with what they take."""


def _writes(name: str) -> bool:
    """Whether a function of this name changes its first argument."""
    if name.startswith("__"):
        return name == "__setitem__" or (
            name.startswith("__i") and name not in ("__index__", "__int__", "__invert__")
        )
    return name.endswith("_")


class RoundEverything(TorchFunctionMode):
    """Inside this context every floating tensor that enters an operation is cast to one dtype first.

    It lowers functions whose constants one cannot reach: what torch's functions take and what they make.
    Views stay views of what they were taken from, and operations in place write, rounded, to their tensor.
    """

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype = dtype

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def cast(value: Any) -> Any:
            if isinstance(value, Tensor) and value.is_floating_point():
                return value.to(self.dtype)
            if isinstance(value, torch.dtype) and value.is_floating_point:
                return self.dtype
            return value

        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in ("__get__", "__set__", *_VIEWS):
            return func(*args, **kwargs)
        written = args[0] if args and _writes(name) else kwargs.get("out")
        if isinstance(written, Tensor) and written.is_floating_point() and written.dtype != self.dtype:
            low = written.to(self.dtype)
            if kwargs.get("out") is written:
                func(*tree_map(cast, args), **{**tree_map(cast, kwargs), "out": low})
            else:
                func(low, *tree_map(cast, args[1:]), **tree_map(cast, kwargs))
            written.copy_(low)
            return written
        return tree_map(cast, func(*tree_map(cast, args), **tree_map(cast, kwargs)))


class LogDensity:
    """log π(x) = 2 Re log ψ(x) of a module, or a function's own log π(x), in one precision.

    Args:
        subject: a module that gives log ψ (of ``AmplitudePhase`` the amplitude is called), or a function that
            gives log π of its rows.
        dtype: precision of parameters and arithmetic.
        upcast: keep the sums of modules that know ``upcast_sums`` in float32.
        rows: evaluate always so many rows at once, filled up with the first one; None for all rows in one
            call.
        is_density: a module gives log π too.
        chunk: rows of one call where ``rows`` is None.
    """

    def __init__(
        self,
        subject: nn.Module | Callable[[Tensor], Tensor],
        dtype: str | torch.dtype = "f64",
        *,
        upcast: bool = True,
        rows: int | None = None,
        is_density: bool = False,
        chunk: int = CHUNK,
    ) -> None:
        self.dtype, self.chunk = precision_name(dtype), chunk
        self.storage = DTYPES[self.dtype]
        self.rows = rows
        self._factor = 2.0
        self._copy: nn.Module | None = None
        self._source = amplitude_of(subject) if isinstance(subject, nn.Module) else None
        self._function = subject
        if self._source is None or is_density:
            self._factor = 1.0
        if self._source is not None:
            self._copy = copy.deepcopy(self._source).requires_grad_(False).eval().to(self.storage)
            for module in self._copy.modules():
                if hasattr(module, "upcast_sums"):
                    module.upcast_sums = upcast  # type: ignore[assignment]

    def refresh(self) -> None:
        """Take the module's parameters anew."""
        if self._copy is not None and self._source is not None:
            with torch.no_grad():
                sources = (*self._source.parameters(), *self._source.buffers())
                for mine, theirs in zip(
                    (*self._copy.parameters(), *self._copy.buffers()), sources, strict=True
                ):
                    mine.copy_(theirs)

    @torch.no_grad()
    def __call__(self, x: Shaped[Tensor, "rows ..."]) -> Float[Tensor, " rows"]:
        """log π, float32 of low precisions and float64 of f64; -inf where ψ = 0.

        Raises:
            FloatingPointError: the value is +inf or NaN, or -inf where it is finite in float64.
        """
        wide = torch.float64 if self.dtype == "f64" else torch.float32
        if len(x) == 0:
            return torch.empty(0, dtype=wide, device=x.device)
        if self.rows is None:
            value = torch.cat([self._evaluate(part) for part in x.split(self.chunk)])
        else:
            parts = []
            for part in x.split(self.rows):
                short = self.rows - len(part)
                padded = torch.cat([part, part[:1].expand(short, *part.shape[1:])]) if short else part
                parts.append(self._evaluate(padded)[: len(part)])
            value = torch.cat(parts)
        value = self._factor * value.to(wide)
        bad = ~torch.isfinite(value)
        if bool(bad.any()):
            self._look(x, value, bad)
        return value

    def _evaluate(self, x: Tensor) -> Tensor:
        with arithmetic(self.dtype, x.device):
            if self._copy is not None:
                value = self._copy(x.to(self.storage))
            elif self.dtype == "f64":
                value = self._function(x.double())
            else:
                with RoundEverything(self.storage):
                    value = self._function(x.to(self.storage))
        if value.shape != x.shape[:1]:
            raise ValueError(
                f"the log-density gives shape {list(value.shape)} for {len(x)} rows; expected [{len(x)}]"
            )
        return value.real

    def _look(self, x: Tensor, value: Tensor, bad: Tensor) -> None:
        """Let rows pass where ψ = 0 in float64 too; say how large the value is where the precision fails."""
        rows = torch.nonzero(bad)[:, 0]
        if self.dtype == "f64":
            exact = value[rows] / self._factor
        else:
            subject = self._source if self._source is not None else self._function
            twin = LogDensity(subject, "f64", is_density=self._factor == 1.0)
            exact = torch.cat([twin._evaluate(part) for part in x[rows].split(self.chunk)])
        failed = torch.nonzero(~(torch.isneginf(value[rows]) & torch.isneginf(exact)))[:, 0]
        if len(failed) == 0:
            return
        row, found = int(rows[failed[0]]), float(exact[failed[0]])
        size = abs(found)
        where = x[row].flatten()[:16].tolist()
        if not math.isfinite(found):
            raise FloatingPointError(f"log ψ is {found} in float64 too, at {where}; check the model")
        name = str(self.storage).removeprefix("torch.")
        what = "ψ" if self._factor == 2.0 else "π"
        raise FloatingPointError(
            f"log {what} overflows {name}: |value| up to {size:.2g} at {where}; use bf16 or rescale"
        )
