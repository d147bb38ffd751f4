"""Compiled CPU loops: numba with the house's options, a cache that works anywhere, and row shares.

``njit`` keeps NaN and infinity visible (no full ``fastmath``) and never writes beside the package.
``balanced_rows`` splits the rows of a ragged list into shares of equal work, one a thread.
"""

from __future__ import annotations

import os
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numba import prange as prange

FASTMATH = frozenset({"contract", "reassoc", "nsz"})

_lock = threading.Lock()


def njit(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """``numba.njit`` with ``fastmath={"contract", "reassoc", "nsz"}``, NumPy's division and a cache.

    The cache lies where ``NUMBA_CACHE_DIR`` says, else where ``cache_directory`` says; without a place
    to write, the loops are compiled anew in every process, and one warning says so. A compiled helper
    lives in the same file as its callers: numba looks for changes in that file alone.

    Args:
        function: the function, where the decorator stands without parentheses.
        options: further options of ``numba.njit``, such as ``parallel=True``; they win.
    """
    if function is None:
        return lambda f: njit(f, **options)
    settings = {"fastmath": set(FASTMATH), "error_model": "numpy", "cache": True, **options}
    with _lock:
        before = numba.config.CACHE_DIR
        if settings["cache"] and not before:
            directory = cache_directory()
            settings["cache"] = directory is not None
            numba.config.CACHE_DIR = str(directory or "")
        try:
            return numba.njit(**settings)(function)
        finally:
            numba.config.CACHE_DIR = before


@cache
def cache_directory() -> Path | None:
    """Where compiled loops are kept: the user's cache directory, else a temporary one, else nowhere."""
    for directory in (_user_cache(), _temporary_cache()):
        if directory is not None and _is_private_and_writable(directory):
            return directory
    warnings.warn(
        "icml-kernels found no directory to keep compiled loops in and compiles them in every process; "
        "set NUMBA_CACHE_DIR to a writable directory",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _user_cache() -> Path | None:
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
        return Path(base) / "icml-kernels" / "numba" if base else None
    if chosen := os.environ.get("XDG_CACHE_HOME"):
        return Path(chosen) / "icml-kernels" / "numba"
    home = os.environ.get("HOME")
    if not home:
        return None
    return (
        Path(home) / ("Library/Caches" if sys.platform == "darwin" else ".cache") / "icml-kernels" / "numba"
    )


def _temporary_cache() -> Path:
    owner = os.getuid() if hasattr(os, "getuid") else "user"
    return Path(tempfile.gettempdir()) / f"icml-kernels-{owner}" / "numba"


def _is_private_and_writable(directory: Path) -> bool:
    """Cached code is executed, so a directory that another user can write to is not trusted."""
    try:
        directory.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        directory.mkdir(exist_ok=True, mode=0o700)
        if hasattr(os, "getuid"):
            for path in (directory, directory.parent):
                status = path.stat()
                if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                    return False
        tempfile.TemporaryFile(dir=directory).close()
    except OSError:
        return False
    return True


def threads() -> int:
    """Number of threads for a compiled loop: torch's, bounded by what numba was started with."""
    return max(1, min(torch.get_num_threads(), numba.config.NUMBA_NUM_THREADS))


def balanced_rows(work: np.ndarray, shares: int) -> np.ndarray:
    """Bounds of ``shares`` runs of rows with nearly equal work.

    Args:
        work: cumulative work before each row and in total, [rows + 1], such as a CSR's ``ptr``.
        shares: number of runs.

    Returns:
        [shares + 1] int64, from 0 to the number of rows, not falling; share ``s`` owns the rows from
        ``bounds[s]`` up to ``bounds[s + 1]``.
    """
    rows = len(work) - 1
    if shares == 1 or rows == 0:
        return np.array([0, *[rows] * shares], dtype=np.int64)
    # Every row costs something even when its list is empty.
    cost = work + np.arange(rows + 1)
    bounds = np.searchsorted(cost, np.linspace(cost[0], cost[-1], shares + 1)).astype(np.int64)
    bounds[0], bounds[-1] = 0, rows
    return np.maximum.accumulate(bounds)
