"""Smooth elastic distances on the CPU: the lanes of a vector are pairs.

The rows of x are cut into blocks of about sqrt(n). The way forward keeps the row of state before each block;
the way back computes the rows of one block anew, and weighs their cells as it passes them. Short series need
one block, which is computed once. All of that is work space of one group of lanes: what remains of a pair is
its value and its gradients.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icml_kernels.njit import threads as default_threads
from icml_kernels.series.recurrence import radius
from icml_kernels.series.soft_elastic.loops import LANES, solve_groups

# Bytes of the table below which it is faster to fetch rows from the cache than to compute them twice.
ONE_BLOCK = 2**24
_ROWS_OF_VALUES = 16  # of a block where no gradient is wanted
_FEW_CELLS = 200_000  # below this a thread costs more than it saves


def value(*arguments: Any) -> Tensor:
    """See ``reference.value``."""
    return _run(False, *arguments)[0]


def value_and_gradients(*arguments: Any) -> tuple[Tensor, ...]:
    """See ``reference.value_and_gradients``."""
    return _run(True, *arguments)


def _run(
    gradients: bool,
    x: Tensor,
    y: Tensor,
    p: Tensor,
    q: Tensor,
    x_times: Tensor,
    y_times: Tensor,
    gamma: Tensor,
    nu: Tensor,
    x_lengths: Tensor,
    y_lengths: Tensor,
    metric: str,
    cost: str,
    smoothing: float,
    band: float,
    relative: bool,
    masked: bool,
) -> tuple[Tensor, ...]:
    pairs, n, channels = x.shape
    m = y.shape[1]
    # Pairs of like length share a group, so that short ones do not wait for long ones.
    order = torch.argsort(x_lengths * (m + 1) + y_lengths, stable=True).numpy()
    groups = -(-pairs // LANES)
    lanes = np.concatenate([order, np.repeat(order[-1:], groups * LANES - pairs)]).reshape(groups, LANES)
    reach = radius(x_lengths, y_lengths, band, relative).numpy()[lanes]
    inputs = [_by_point(x, lanes), _by_channel(y, lanes)]
    inputs += [_by_channel(t[:, :, None], lanes)[:, 0] for t in (p, q, x_times, y_times)]
    lengths = (x_lengths.numpy()[lanes], y_lengths.numpy()[lanes], reach)
    kind = inputs[0].dtype.type
    numbers = (kind(gamma), kind(nu), kind(smoothing) ** 2)
    flags = (gradients, metric == "twed", cost == "squared", band >= 0, masked)
    block = min(n, _ROWS_OF_VALUES)
    if gradients:
        block = n if n * m * LANES * x.element_size() <= ONE_BLOCK else int(n**0.5) + 1
    shapes = [a.shape for a in inputs] if gradients else [(1,) * a.ndim for a in inputs]
    found = [np.zeros((groups, LANES), kind)]
    found += [np.zeros(shape, kind) for shape in shapes] + [np.zeros((groups, LANES), kind) for _ in range(2)]
    shares = max(1, min(default_threads(), groups, groups * LANES * n * m // _FEW_CELLS))
    bounds = np.linspace(0, groups, shares + 1).astype(np.int64)
    arguments = (block, *flags, *numbers, *inputs, *lengths, *found)
    if shares == 1:
        solve_groups(0, groups, *arguments)
    else:
        with ThreadPoolExecutor(shares) as pool:
            for done in [
                pool.submit(solve_groups, bounds[s], bounds[s + 1], *arguments) for s in range(shares)
            ]:
                done.result()
    back = np.empty(pairs, np.int64)
    back[lanes.ravel()[:pairs]] = np.arange(pairs)
    results = [torch.from_numpy(found[0].ravel()[back])]
    if not gradients:
        return tuple(results)
    by_point = found[1].reshape(groups, n, channels, LANES).transpose(0, 3, 1, 2)
    results.append(torch.from_numpy(by_point.reshape(-1, n, channels)[back]))
    by_channel = found[2].reshape(groups, channels, m, LANES).transpose(0, 3, 2, 1)
    results.append(torch.from_numpy(by_channel.reshape(-1, m, channels)[back]))
    for array in found[3:7]:
        by_lane = array.reshape(groups, -1, LANES).transpose(0, 2, 1)
        results.append(torch.from_numpy(by_lane.reshape(groups * LANES, -1)[back]))
    return (*results, *(torch.from_numpy(array.ravel()[back]) for array in found[7:]))


def _by_point(values: Tensor, lanes: np.ndarray) -> np.ndarray:
    """[groups, points, channels * LANES]"""
    moved = np.ascontiguousarray(values.numpy()[lanes].transpose(0, 2, 3, 1))
    return moved.reshape(*moved.shape[:2], -1)


def _by_channel(values: Tensor, lanes: np.ndarray) -> np.ndarray:
    """[groups, channels, points * LANES]"""
    moved = np.ascontiguousarray(values.numpy()[lanes].transpose(0, 3, 2, 1))
    return moved.reshape(*moved.shape[:2], -1)
