"""Read series that people have in files: a folder of CSV files, an NPZ or NPY file, a ``.ts`` file. Files are
not trusted."""

from __future__ import annotations

import csv
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.lib import format as npy_format

from icml_idealpoint.simulation import read_ts

MAX_BYTES = 2**31  # of one array, or of all files of a folder
_MAX_FILES = 200_000


@dataclass(frozen=True)
class NamedSeries:
    """Series and what they are called.

    Attributes:
        names: one a series.
        series: [points, channels] each.
        times: of each, or None.
    """

    names: list[str]
    series: list[np.ndarray]
    times: list[np.ndarray] | None

    @property
    def number(self) -> dict[str, int]:
        """The number of each name."""
        return {name: k for k, name in enumerate(self.names)}


def read_series(path: Path) -> NamedSeries:
    """Read a folder of CSV files (rows are points, columns channels; a column ``time`` gives times), or one
    file.

    NPZ: one array a series; NPY: [series, points] or [series, points, channels]; ``.ts``: as aeon has them;
    one CSV: a series a row. Arrays of Python objects are refused and nothing is unpickled.

    Raises:
        FileNotFoundError: nothing is there.
        ValueError: another kind of file, one that is too large, or content that is no series, with its place.
    """
    path = Path(path)
    if path.is_dir():
        return _folder(path)
    if not path.is_file():
        raise FileNotFoundError(f"{path} is neither a file nor a folder")
    kind = path.suffix.lower()
    if kind == ".npz":
        arrays = _npz(path)
        return NamedSeries(list(arrays), [_points(a, f"{path}, {n}") for n, a in arrays.items()], None)
    if kind == ".npy":
        with path.open("rb") as stream:
            array = _npy(stream, str(path))
        if array.ndim not in (2, 3):
            raise ValueError(f"{path} has shape {list(array.shape)}; expected [series, points(, channels)]")
        return NamedSeries([str(k) for k in range(len(array))], [_points(a, str(path)) for a in array], None)
    if kind == ".ts":
        series, _ = read_ts(path)
        return NamedSeries([str(k) for k in range(len(series))], series, None)
    if kind == ".csv":
        rows = _table(path)[1]
        return NamedSeries(
            [str(k) for k in range(len(rows))], [_points(row, str(path)) for row in rows], None
        )
    raise ValueError(f"{path} is none of a folder of CSV files, .npz, .npy, .ts, .csv")


def _folder(path: Path) -> NamedSeries:
    files = sorted(p for p in path.glob("*.csv") if p.is_file())
    if not files:
        raise ValueError(f"{path} holds no CSV files")
    if len(files) > _MAX_FILES or sum(p.stat().st_size for p in files) > MAX_BYTES:
        raise ValueError(f"{path} holds more than {_MAX_FILES} files or {MAX_BYTES} bytes")
    series, times = [], []
    for file in files:
        header, rows = _table(file)
        if len({len(row) for row in rows}) > 1:
            raise ValueError(f"{file} has rows of different lengths")
        table = np.array(rows)
        if "time" in header:
            column = header.index("time")
            times.append(table[:, column])
            table = np.delete(table, column, axis=1)
        series.append(_points(table, str(file)))
    if times and len(times) != len(series):
        raise ValueError(f"{path}: some files have a column 'time' and others have none")
    return NamedSeries([file.stem for file in files], series, times or None)


def _table(path: Path) -> tuple[list[str], list[np.ndarray]]:
    if path.stat().st_size > MAX_BYTES:
        raise ValueError(f"{path} has more than {MAX_BYTES} bytes")
    header: list[str] = []
    rows = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            for number, line in enumerate(csv.reader(stream), 1):
                if not line:
                    continue
                try:
                    rows.append(np.array([float(v) if v.strip() else np.nan for v in line]))
                except ValueError as error:
                    if number > 1:
                        raise ValueError(f"{path}, line {number}: {error}") from error
                    header = [v.strip().lower() for v in line]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file: {error}") from error
    if not rows:
        raise ValueError(f"{path} holds no numbers")
    return header, rows


def _npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            members = [info for info in archive.infolist() if info.filename.endswith(".npy")]
            if not members or len(members) > _MAX_FILES:
                raise ValueError(f"{path} holds {len(members)} arrays; expected one a series")
            if sum(info.file_size for info in members) > MAX_BYTES:
                raise ValueError(f"{path} unpacks to more than {MAX_BYTES} bytes")
            found = {}
            for info in members:
                with archive.open(info) as stream:
                    found[info.filename.removesuffix(".npy")] = _npy(stream, f"{path}, {info.filename}")
            return found
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is no NPZ file: {error}") from error


def _npy(stream, where: str) -> np.ndarray:  # type: ignore[no-untyped-def]
    """An array of numbers; the header is checked before anything is allocated."""
    try:
        version = npy_format.read_magic(stream)
        reader = npy_format.read_array_header_1_0 if version == (1, 0) else npy_format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except (ValueError, EOFError) as error:
        raise ValueError(f"{where} is no array of NumPy: {error}") from error
    if dtype.hasobject or dtype.kind not in "fiub":
        raise ValueError(f"{where} has dtype {dtype}; expected numbers")
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if count * dtype.itemsize > MAX_BYTES:
        raise ValueError(f"{where} has shape {list(shape)}, more than {MAX_BYTES} bytes")
    data = stream.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise ValueError(f"{where} is cut off")
    array = np.frombuffer(data, dtype=dtype)
    return (array.reshape(shape[::-1]).T if fortran else array.reshape(shape)).astype(np.float64)


def _points(array: np.ndarray, where: str) -> np.ndarray:
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(f"{where} has shape {list(array.shape)}; expected [points] or [points, channels]")
    return array
