"""Targets as a matrix: classes one-hot and renumbered, soft and multi-hot labels, real numbers, or none.

Class numbers that skip some (0, 5, 9) are renumbered: a one-hot matrix up to the largest would have empty
columns, which shrink the mean squared error and with it its weight among the terms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

Task = Literal["auto", "classification", "regression", "label_free"]
TASKS = ("auto", "classification", "regression", "label_free")


@dataclass(frozen=True)
class Targets:
    """Checked targets.

    Attributes:
        kind: ``"classes"``, ``"soft"``, ``"multilabel"``, ``"regression"`` or ``"none"``.
        matrix: Y, float64; None without labels.
        labels: class of each example, 0 … C - 1, of hard classes only.
        classes: what the class numbers stand for.
        weights: of the examples, of mean 1.
    """

    kind: str
    matrix: Float[Tensor, "n outputs"] | None = None
    labels: Int[Tensor, " n"] | None = None
    classes: tuple[Any, ...] = ()
    weights: Float[Tensor, " n"] | None = None


def as_targets(
    targets: Any,
    n: int,
    *,
    task: str = "auto",
    class_weight: str | Mapping[Any, float] | None = None,
    device: str | torch.device = "cpu",
) -> Targets:
    """Check targets.

    Args:
        targets: [n] classes (integers, booleans or text), [n, C] one-hot, soft (rows sum to 1) or multi-hot,
            [n] or [n, q] real numbers, or None.
        n: number of examples.
        task: ``"auto"`` takes floating [n] as regression, integers and text as classes, [n, C] of 0 and 1 or
            of rows that sum to 1 as labels, and None as label-free.
        class_weight: ``"balanced"`` (inverse to the frequency), or a weight for each class.
        device: of the result.

    Raises:
        ValueError: none given to a supervised task, another length, classes that are no integers, a single
            class, NaN, an unknown task or class weight.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r} is not one of {', '.join(TASKS)}")
    if task == "label_free" or (task == "auto" and targets is None):
        return Targets("none")
    if targets is None:
        raise ValueError(f"task={task!r} needs targets; give them, or say task='label_free'")
    array = _array(targets)
    if len(array) != n:
        raise ValueError(f"{len(array)} targets were given for {n} examples; they must be as many")
    if array.ndim not in (1, 2) or array.size == 0:
        raise ValueError(f"targets have shape {list(array.shape)}; expected [n] or [n, outputs]")
    real = array.dtype.kind == "f"
    if real and not np.isfinite(array).all():
        raise ValueError(f"target {int(np.argwhere(~np.isfinite(array))[0][0])} is NaN or infinite")
    if task == "auto":
        task = "classification" if not real or (array.ndim == 2 and _is_label_matrix(array)) else "regression"
    if task == "regression":
        if array.dtype.kind not in "fiub":
            raise ValueError(f"targets of dtype {array.dtype} are no numbers to regress on")
        if class_weight is not None:
            raise ValueError("class_weight needs classes; a regression has none")
        matrix = np.asarray(array, dtype=np.float64).reshape(n, -1)
        return Targets("regression", torch.tensor(matrix, device=device), weights=_ones(n, device))
    if array.ndim == 1:
        return _classes(array, class_weight, device)
    return _label_matrix(array, class_weight, device)


def _array(targets: Any) -> np.ndarray:
    if isinstance(targets, Tensor):
        targets = targets.detach().cpu()
        targets = targets.float() if targets.dtype in (torch.bfloat16, torch.float16) else targets
        return targets.numpy()
    array = np.asarray(targets)
    if array.dtype.kind == "O":
        if not all(isinstance(v, str) for v in array.ravel()):
            raise ValueError("targets are objects of several types; expected numbers or text")
        array = array.astype(str)
    if array.dtype.kind not in "fiubU":
        raise ValueError(f"targets have dtype {array.dtype}; expected numbers, booleans or text")
    return array


def _is_label_matrix(array: np.ndarray) -> bool:
    return bool((array >= 0).all() and (array <= 1).all()) and (
        bool(np.isin(array, (0, 1)).all()) or bool(np.allclose(array.sum(1), 1, atol=1e-4))
    )


def _classes(array: np.ndarray, class_weight: Any, device: Any) -> Targets:
    if array.dtype.kind == "f":
        broken = array[array != np.round(array)]
        example = f"such as {broken[0]}" if len(broken) else f"of dtype {array.dtype}"
        raise ValueError(
            f"class labels must be integers, booleans or text, and these are floating numbers {example}; "
            "convert "
            "them, or say task='regression'"
        )
    found, labels = np.unique(array, return_inverse=True)
    if len(found) < 2:
        raise ValueError(
            f"all {len(array)} examples are of one class, {found[0].item()!r}; there is nothing to tell apart"
        )
    numbers = torch.tensor(labels.reshape(-1), device=device)
    matrix = torch.nn.functional.one_hot(numbers, len(found)).double()
    classes = tuple(v.item() for v in found)
    return Targets("classes", matrix, numbers, classes, _weights(numbers, classes, class_weight))


def _label_matrix(array: np.ndarray, class_weight: Any, device: Any) -> Targets:
    matrix = np.asarray(array, dtype=np.float64)
    if not _is_label_matrix(matrix):
        raise ValueError(
            f"targets of shape {list(matrix.shape)} are neither one-hot, nor soft (rows that sum to 1), nor "
            "multi-hot "
            "(0 and 1)"
        )
    hard = bool(np.isin(matrix, (0, 1)).all())
    one_each = bool(np.allclose(matrix.sum(1), 1, atol=1e-4))
    if hard and one_each:
        return _classes(matrix.argmax(1), class_weight, device)
    if class_weight is not None:
        raise ValueError("class_weight needs one class an example; these targets are soft or multi-hot")
    kind = "soft" if one_each else "multilabel"
    tensor = torch.tensor(matrix, device=device)
    if bool((tensor == tensor[:1]).all()):
        raise ValueError("all examples have the same targets; there is nothing to tell apart")
    return Targets(kind, tensor, classes=tuple(range(matrix.shape[1])), weights=_ones(len(matrix), device))


def _weights(labels: Tensor, classes: tuple[Any, ...], class_weight: Any) -> Tensor:
    if class_weight is None:
        return _ones(len(labels), labels.device)
    counts = torch.bincount(labels, minlength=len(classes)).double()
    if class_weight == "balanced":
        by_class = 1 / counts
    elif isinstance(class_weight, Mapping):
        missing = [c for c in classes if c not in class_weight]
        if missing or any(not float(w) > 0 for w in class_weight.values()):
            raise ValueError(
                f"class_weight must give a weight above 0 to every class; {missing or class_weight}"
            )
        by_class = torch.tensor([float(class_weight[c]) for c in classes], device=labels.device).double()
    else:
        raise ValueError(f"class_weight={class_weight!r} is neither None, 'balanced' nor a mapping")
    weights = by_class[labels]
    return weights / weights.mean()


def _ones(n: int, device: Any) -> Tensor:
    return torch.ones(n, dtype=torch.float64, device=device)
