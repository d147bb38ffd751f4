"""Read what users have in files: electrical images, electrode maps, activation curves, dictionaries of
patterns.

Files are not trusted: nothing is unpickled, and sizes are checked first.
"""

from __future__ import annotations

import csv
import math
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from icml_hhmea.curves import ActivationCurve
from icml_hhmea.electrodes import ElectrodeArray

MAX_BYTES = 2**30
MAX_ROWS = 5_000_000


@dataclass(frozen=True)
class ImageFile:
    """An electrical image: [electrodes, samples], samples a second, places or None, unit, noise or None."""

    ei: np.ndarray
    fs: float
    xy: np.ndarray | None
    units: str
    noise: float | None


@dataclass(frozen=True)
class PatternFile:
    """Patterns of stimulation: µA [patterns, electrodes], their names, trials and spikes (0 trials where
    unknown)."""

    names: list[str]
    patterns: Tensor
    trials: np.ndarray
    spikes: np.ndarray


def read_image(path: Path) -> ImageFile:
    """Read an ``.npz`` with the arrays ``ei`` [electrodes, samples] and ``fs``, and where there are ``xy``
    [electrodes, 2 or 3] in µm, ``noise``, and ``units`` (uV by default).

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another kind of file, one too large, missing arrays, or arrays of objects.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.suffix.lower() != ".npz":
        raise ValueError(f"{path} is no .npz file; save arrays ei and fs with numpy.savez")
    try:
        with zipfile.ZipFile(path) as archive:
            size = sum(info.file_size for info in archive.infolist())
        if size > MAX_BYTES:
            raise ValueError(f"{path} holds {size} bytes; at most {MAX_BYTES} are read")
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    for name in ("ei", "fs"):
        if name not in arrays:
            raise ValueError(f"{path} has {', '.join(arrays) or 'nothing'}; expected arrays ei and fs")
    ei = arrays["ei"]
    if ei.ndim != 2 or ei.dtype.kind not in "fiu":
        raise ValueError(f"{path}: ei is {ei.dtype}{list(ei.shape)}; expected numbers [electrodes, samples]")
    xy = arrays.get("xy")
    if xy is not None and (xy.ndim != 2 or xy.shape[0] != len(ei) or xy.shape[1] not in (2, 3)):
        raise ValueError(f"{path}: xy has shape {list(xy.shape)}; expected [{len(ei)}, 2 or 3]")
    noise = arrays.get("noise")
    return ImageFile(
        ei.astype(np.float64),
        float(arrays["fs"]),
        None if xy is None else xy.astype(np.float64),
        str(arrays["units"]) if "units" in arrays else "uV",
        None if noise is None else float(noise),
    )


def image_of_nwb(file: Any, unit: int) -> ImageFile:
    """The image of one unit of an opened NWB file: ``units["waveform_mean"]`` in volts or as the file says,
    with the places of ``electrodes``.

    Raises:
        ValueError: no mean waveforms over all electrodes.
    """
    units, electrodes = file.units, file.electrodes
    if units is None or "waveform_mean" not in units.colnames:
        raise ValueError("the NWB file's units have no waveform_mean")
    wave = np.asarray(units["waveform_mean"][unit], dtype=np.float64)
    wave = wave[:, None] if wave.ndim == 1 else wave
    if wave.shape[1] != len(electrodes):
        raise ValueError(
            f"waveform_mean has {wave.shape[1]} channels; the file has {len(electrodes)} electrodes"
        )
    xy = np.stack([np.asarray(electrodes[c][:], dtype=np.float64) for c in ("rel_x", "rel_y")], 1)
    rate = getattr(units, "waveform_rate", None)
    if rate is None:
        raise ValueError("the NWB file's units have no waveform_rate")
    unit_name = str(getattr(units, "waveform_unit", "volts")).lower()
    known = {"volts": "V", "v": "V", "millivolts": "mV", "mv": "mV", "microvolts": "uV", "uv": "uV"}
    if unit_name not in known:
        raise ValueError(f"waveform_unit {unit_name!r} is none of {', '.join(known)}")
    return ImageFile(wave.T, float(rate), xy, known[unit_name], None)


def read_electrodes(path: Path, **options: Any) -> ElectrodeArray:
    """Read a CSV with the columns ``electrode,x,y`` and, where there is, ``z``, in µm; electrodes count from
    0.

    Raises:
        ValueError: missing columns or electrodes, text that is no number, with its line.
    """
    rows = {}
    for k, r in _rows(path, ("electrode", "x", "y")):
        place = [number(r, c, k, path) for c in ("x", "y")]
        place.append(number({"z": r.get("z") or "0"}, "z", k, path))
        rows[int(number(r, "electrode", k, path))] = place
    if sorted(rows) != list(range(len(rows))):
        raise ValueError(f"{path}: electrodes must be 0 to {len(rows) - 1}, each once")
    places = [rows[e] for e in range(len(rows))]
    return ElectrodeArray(torch.tensor(places, dtype=torch.float64), **options)


def read_curves(path: Path) -> list[ActivationCurve]:
    """Read a CSV with the columns ``electrode,uA,trials,spikes``: a curve for each electrode and sign.

    Raises:
        ValueError: missing columns, text that is no number, more spikes than trials, with its line.
    """
    groups: dict[tuple[int, int], list[tuple[float, int, int]]] = {}
    for line, row in _rows(path, ("electrode", "uA", "trials", "spikes")):
        e = int(number(row, "electrode", line, path))
        amplitude = number(row, "uA", line, path)
        trials, spikes = int(number(row, "trials", line, path)), int(number(row, "spikes", line, path))
        if trials < 1 or not 0 <= spikes <= trials:
            raise ValueError(f"{path}, line {line}: {spikes} spikes in {trials} trials")
        groups.setdefault((e, 1 if amplitude > 0 else -1), []).append((amplitude, trials, spikes))
    curves = []
    for (e, _), points in sorted(groups.items()):
        a, n, k = zip(*points, strict=True)
        curves.append(ActivationCurve(e, a, tuple(s / t for s, t in zip(k, n, strict=True)), n))
    return curves


def read_patterns(path: Path, electrodes: int) -> PatternFile:
    """Read a CSV with the columns ``pattern,electrode,uA`` and, where there are, ``trials,spikes``: a row for
    each electrode of each pattern.

    Raises:
        ValueError: missing columns, an electrode that is not there, text that is no number, with its line.
    """
    names: dict[str, int] = {}
    entries, counts = [], {}
    for line, row in _rows(path, ("pattern", "electrode", "uA")):
        k = names.setdefault(row["pattern"], len(names))
        e = int(number(row, "electrode", line, path))
        if not 0 <= e < electrodes:
            raise ValueError(f"{path}, line {line}: electrode {e} of {electrodes}")
        entries.append((k, e, number(row, "uA", line, path)))
        if row.get("trials"):
            counts[k] = (int(number(row, "trials", line, path)), int(number(row, "spikes", line, path)))
    patterns = torch.zeros(len(names), electrodes, dtype=torch.float64)
    for k, e, amplitude in entries:
        patterns[k, e] = amplitude
    both = np.array([counts.get(k, (0, 0)) for k in range(len(names))], dtype=np.int64).reshape(-1, 2)
    return PatternFile(list(names), patterns, both[:, 0], both[:, 1])


def number(row: dict[str, str], column: str, line: int, path: Path) -> float:
    """A finite number of a row.

    Raises:
        ValueError: it is none, with file, line and column.
    """
    try:
        value = float(row[column])
    except (TypeError, ValueError):
        raise ValueError(f"{path}, line {line}: {column} {row[column]!r} is no number") from None
    if not math.isfinite(value):
        raise ValueError(f"{path}, line {line}: {column} is not finite")
    return value


def _rows(path: Path, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; at most {MAX_BYTES} are read")
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            lacking = [c for c in columns if c not in (reader.fieldnames or ())]
            if lacking:
                raise ValueError(
                    f"{path} lacks the columns {', '.join(lacking)}; it needs {','.join(columns)}"
                )
            for line, row in enumerate(reader, 2):
                if line > MAX_ROWS:
                    raise ValueError(f"{path} has more than {MAX_ROWS} rows")
                yield line, row
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}") from None
