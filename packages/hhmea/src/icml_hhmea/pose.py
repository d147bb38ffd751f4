"""Where a cell lies under an array, from its electrical image.

A spike begins in the axon's sodium band, whose electrodes see a trough first; soma and dendrites supply the
current and are positive first. Where both kinds of electrodes are there, the axon leaves from the one
centroid to the other, and the soma lies between them. Otherwise the soma is the centroid, weighted by
amplitude, of electrodes that are negative first and above 30 % of the largest, and the axon the shortest path
over electrodes on which the trough comes later and later.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from icml_hhmea.rgc import Pose

SOMA_SHARE = 0.3
NEIGHBOUR = 1.6  # pitches
LEAST_SNR = 5.0
# From the soma's middle to both centroids along the axon, µm: medians over draws of the model's prior.
SOURCE_BEHIND, BAND_AHEAD = 50.0, 61.0


@dataclass(frozen=True)
class Estimate:
    """The pose, and which electrodes the axon passes, from the soma on."""

    pose: Pose
    path: tuple[int, ...]
    soma: tuple[int, ...]


def noise_of(ei: np.ndarray) -> float:
    """Standard deviation of the noise: 1.4826 times the median absolute deviation of an electrode, and the
    median of that over electrodes, most of which see no spike or see it briefly."""
    spread = np.median(np.abs(ei - np.median(ei, axis=1, keepdims=True)), axis=1)
    return float(1.4826 * np.median(spread)) or 1e-6


def estimate_pose(
    ei: np.ndarray, xy: np.ndarray, *, noise: float | None = None, pitch: float = 30.0
) -> Estimate:
    """Find soma and axon.

    Args:
        ei: [electrodes, samples], µV.
        xy: [electrodes, 2 or 3], µm.
        noise: standard deviation, µV; estimated where not given.

    Raises:
        ValueError: shapes that do not fit, values that are not finite, or no trough above five standard
            deviations of the noise.
    """
    ei, xy = np.asarray(ei, dtype=np.float64), np.asarray(xy, dtype=np.float64)[:, :2]
    if ei.ndim != 2 or len(ei) != len(xy):
        raise ValueError(
            f"ei has shape {list(ei.shape)} for {len(xy)} electrodes; expected [electrodes, samples]"
        )
    if not np.isfinite(ei).all():
        raise ValueError("ei is not finite")
    level = noise_of(ei) if noise is None else float(noise)
    amplitude, time = -ei.min(1), ei.argmin(1).astype(np.float64)
    if amplitude.max() < LEAST_SNR * level:
        raise ValueError(
            f"the largest trough is {amplitude.max():.3g} µV, below five times the noise of {level:.3g} "
            f"µV: no spike"
        )
    sources = _source_and_band(ei, amplitude, level)
    if sources is not None:
        return _between(*sources, xy, np.flatnonzero(amplitude > 3 * level), pitch)
    first_sign = np.array([ei[e, : int(time[e]) + 1].max() < 0.5 * amplitude[e] for e in range(len(ei))])
    somatic = (amplitude > SOMA_SHARE * amplitude.max()) & first_sign
    if not somatic.any():
        somatic = amplitude == amplitude.max()
    # Along the axon troughs are large too: the soma is where they come first.
    early = somatic & (time <= time[somatic].min() + 0.15 * max(1.0, np.ptp(time[somatic])))
    weight = np.where(early, amplitude, 0)
    center = (weight[:, None] * xy).sum(0) / weight.sum()
    seen = np.flatnonzero(amplitude > 3 * level)
    root = int(seen[np.argmin(np.linalg.norm(xy[seen] - center, axis=1))])
    path = _axon(xy, amplitude, time, seen, root, NEIGHBOUR * pitch)
    if len(path) > 1:
        away = xy[list(path[1:])] - center
        reach = np.linalg.norm(away, axis=1)
        near = reach <= max(150.0, np.sort(reach)[0])
        direction = (away[near] / reach[near, None] * np.minimum(reach[near, None], 60.0)).sum(0)
    else:
        rest = np.where(early, 0, amplitude)
        direction = (rest[:, None] * (xy - center)).sum(0)
    angle = math.atan2(direction[1], direction[0])
    return Estimate(
        Pose(float(center[0]), float(center[1]), angle), path, tuple(np.flatnonzero(early).tolist())
    )


def _source_and_band(
    ei: np.ndarray, amplitude: np.ndarray, level: float
) -> tuple[np.ndarray, np.ndarray] | None:
    """Weights of electrodes that are positive first and of those with a trough first, where both are
    there."""
    time = ei.argmin(1)
    early = np.array([max(ei[e, : time[e] + 1].max(), 0.0) for e in range(len(ei))])
    clear = 4 * level
    source = np.where((early > 0.7 * amplitude) & (early > 0.15 * early.max()) & (early > clear), early, 0)
    band = np.where(
        (early < 0.3 * amplitude) & (amplitude > 0.3 * amplitude.max()) & (amplitude > clear), amplitude, 0
    )
    return (source, band) if source.any() and band.any() else None


def _between(
    source: np.ndarray, band: np.ndarray, xy: np.ndarray, seen: np.ndarray, pitch: float
) -> Estimate:
    behind, ahead = ((w[:, None] * xy).sum(0) / w.sum() for w in (source, band))
    reach = float(np.linalg.norm(ahead - behind))
    unit = (ahead - behind) / max(reach, 1e-9) if reach > 0 else np.array([1.0, 0.0])
    center = (behind + SOURCE_BEHIND * unit + ahead - BAND_AHEAD * unit) / 2
    along, across = (xy - center) @ unit, (xy - center) @ np.array([-unit[1], unit[0]])
    near = [int(e) for e in seen if along[e] > -pitch / 2 and abs(across[e]) < pitch]
    path = tuple(sorted(near, key=lambda e: along[e]))
    pose = Pose(float(center[0]), float(center[1]), math.atan2(unit[1], unit[0]))
    return Estimate(pose, path, tuple(np.flatnonzero(source).tolist()))


def _axon(
    xy: np.ndarray, amplitude: np.ndarray, time: np.ndarray, seen: np.ndarray, root: int, reach: float
) -> tuple[int, ...]:
    """Shortest path, steps over weak electrodes being longer, to the latest electrode that can be reached."""
    distance = np.linalg.norm(xy[seen, None] - xy[None, seen], axis=-1)
    allowed = (distance < reach) & (distance > 0) & (time[None, seen] >= time[seen, None])
    cost = np.where(allowed, distance * (1 + amplitude.max() / (10 * amplitude[None, seen])), 0)
    start = int(np.flatnonzero(seen == root)[0])
    length, before = dijkstra(csr_matrix(cost), indices=np.array(start), return_predecessors=True)
    there = np.isfinite(length)
    if there.sum() < 2:
        return (root,)
    lateness = np.where(there, time[seen] + 1e-3 * np.linalg.norm(xy[seen] - xy[root], axis=1), -np.inf)
    place = int(lateness.argmax())
    path = [place]
    while before[path[-1]] >= 0:
        path.append(int(before[path[-1]]))
    return tuple(int(seen[k]) for k in reversed(path))
