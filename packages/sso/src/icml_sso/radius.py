"""Radius of the sphere of each matrix, and length of its update (spectral mu-P scaling).

    R = c sqrt(d_out / d_in),    ||update||_2 = lr s,    s = sqrt(d_out / d_in)

so that an input of RMS 1 gives an output whose RMS does not depend on the width (arXiv 2601.08393, section
3).
"""

from __future__ import annotations

import math

RADIUS_MODES = ("spectral_mup", "identity", "initialize")
SCALE_MODES = ("spectral_mup", "align_adamw_rms", "shape_scaling")
RETRACTIONS = ("hard", "dynamic", "off")
ADAMW_RMS = 0.2  # root mean square of an AdamW update, over lr


def target_radius(rows: int, columns: int, mode: str, scale: float, initial: float) -> float:
    """R of a (rows, columns) matrix; ``initial`` is its spectral norm at the start.

    ``"spectral_mup"``: c sqrt(rows / columns); ``"identity"``: c; ``"initialize"``: c times the initial norm.
    """
    if mode == "spectral_mup":
        return scale * math.sqrt(rows / columns)
    return scale if mode == "identity" else scale * initial


def update_scale(rows: int, columns: int, mode: str) -> float:
    """s of a (rows, columns) matrix: its update has spectral norm lr s.

    ``"spectral_mup"``: sqrt(rows / columns); ``"align_adamw_rms"``: 0.2 sqrt(max(rows, columns)), an update
        of
    RMS 0.2 lr; ``"shape_scaling"``: sqrt(max(1, rows / columns)).
    """
    if mode == "spectral_mup":
        return math.sqrt(rows / columns)
    if mode == "align_adamw_rms":
        return ADAMW_RMS * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, rows / columns))


def update_rms(rows: int, columns: int, mode: str) -> float:
    """Root mean square of an entry of the update, over lr, of a matrix of full rank: s / sqrt(max(rows,
    columns)).
    """
    return update_scale(rows, columns, mode) / math.sqrt(max(rows, columns))
