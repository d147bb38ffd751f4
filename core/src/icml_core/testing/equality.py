"""Deep comparison of results of any kind: numbers, arrays, tensors, dataclasses, containers."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any


def difference(first: Any, second: Any, *, tolerance: float = 0.0, path: str = "result") -> str | None:
    """Where two results differ, in words, or None where they do not.

    Args:
        tolerance: relative to the larger magnitude, for floating-point numbers.
    """
    if first is second:
        return None
    if type(first) is not type(second):
        return f"{path}: {type(first).__name__} against {type(second).__name__}"
    if isinstance(first, float):
        same = first == second or (math.isnan(first) and math.isnan(second))
        close = abs(first - second) <= tolerance * max(abs(first), abs(second))
        return None if same or close else f"{path}: {first!r} against {second!r}"
    if isinstance(first, Mapping):
        if list(first) != list(second):
            return f"{path}: keys {list(first)} against {list(second)}"
        return _first(first, ((k, first[k], second[k]) for k in first), tolerance, path)
    if isinstance(first, (list, tuple)):
        if len(first) != len(second):
            return f"{path}: {len(first)} against {len(second)} items"
        return _first(
            first, ((i, a, b) for i, (a, b) in enumerate(zip(first, second, strict=True))), tolerance, path
        )
    if _is_tensor(first):
        return _arrays(first.detach().cpu().numpy(), second.detach().cpu().numpy(), tolerance, path)
    if _is_array(first):
        return _arrays(first, second, tolerance, path)
    if hasattr(first, "tocsr"):
        a, b = first.tocsr(), second.tocsr()
        return difference(
            (a.shape, a.indptr, a.indices, a.data),
            (b.shape, b.indptr, b.indices, b.data),
            tolerance=tolerance,
            path=path,
        )
    if _is_module(first):
        return difference(dict(first.state_dict()), dict(second.state_dict()), tolerance=tolerance, path=path)
    if is_dataclass(first):
        items = ((f.name, getattr(first, f.name), getattr(second, f.name)) for f in fields(first))
        return _first(first, items, tolerance, path)
    if hasattr(first, "__dict__") and type(first).__eq__ is object.__eq__ and not callable(first):
        return difference(vars(first), vars(second), tolerance=tolerance, path=path)
    if callable(first) and hasattr(first, "__qualname__"):
        same = first.__qualname__ == second.__qualname__
        return None if same else f"{path}: {first.__qualname__} against {second.__qualname__}"
    return None if bool(first == second) else f"{path}: {first!r} against {second!r}"


def _first(container: Any, items: Any, tolerance: float, path: str) -> str | None:
    for key, a, b in items:
        if (found := difference(a, b, tolerance=tolerance, path=f"{path}[{key!r}]")) is not None:
            return found
    return None


def _arrays(first: Any, second: Any, tolerance: float, path: str) -> str | None:
    import numpy as np

    if first.shape != second.shape or first.dtype != second.dtype:
        return f"{path}: {first.dtype}{list(first.shape)} against {second.dtype}{list(second.shape)}"
    if first.dtype.kind not in "fc":
        return None if np.array_equal(first, second) else f"{path}: values differ"
    scale = float(np.max(np.abs(first), initial=0.0))
    gap = float(np.max(np.abs(first - second), initial=0.0))
    if np.array_equal(first, second, equal_nan=True) or gap <= tolerance * scale:
        return None
    return f"{path}: values differ by up to {gap:.3g} of {scale:.3g}"


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _is_module(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.nn.Module)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, (numpy.ndarray, numpy.generic))
