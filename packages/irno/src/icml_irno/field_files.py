"""Fields from files: .npz and .safetensors with x and y, HDF5 in the Well's format, NetCDF with x and y.

Files are treated as hostile: nothing is unpickled, and sizes are read before anything is allocated.
"""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_core.errors import NeedsError, install_command
from torch import Tensor

MOST_BYTES = 8 * 2**30


@dataclass(frozen=True)
class FieldFile:
    """What a file holds.

    Attributes:
        x: [samples, channels, *space]; frames of the past side by side, oldest first.
        y: [samples, channels, *space]; no samples where the file has inputs alone.
        mask: [samples, 1, *space] where points of y exist, or None.
        channels: names of y's channels.
        history: frames in x.
        spacing: of y's grid, or None where the file does not say.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None
    channels: tuple[str, ...]
    history: int
    spacing: tuple[float, ...] | None


def read_fields(
    path: Path, *, history: int = 1, lead: int = 1, most_bytes: int = MOST_BYTES, targets: bool = True
) -> FieldFile:
    """Read pairs, in float32.

    Args:
        path: ``.npz`` or ``.safetensors`` with x, y and optionally mask; ``.h5`` or ``.hdf5`` in the Well's
            format, whose trajectories are cut into windows; ``.nc`` with variables x (coarse) and y (fine).
        history: frames of the input, for trajectories.
        lead: frames from the last of the input to the target, for trajectories.
        most_bytes: refuse more.
        targets: refuse inputs without targets (no y, or trajectories that end before one); else they are
            read by themselves.

    Raises:
        FileNotFoundError: no such file.
        ValueError: another kind of file, missing arrays, trajectories that are too short, or a file that
            is too large.
        NeedsError: h5py or xarray is missing.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if history < 1 or lead < 1:
        raise ValueError(f"history={history} and lead={lead}; expected at least 1")
    kind = path.suffix.lower()
    if kind in (".h5", ".hdf5", ".hdf"):
        return _windows(path, history, lead, most_bytes, targets)
    if kind == ".nc":
        return _plain(path, _netcdf(path, most_bytes), targets)
    if kind == ".npz":
        return _plain(path, _npz(path, most_bytes), targets)
    if kind == ".safetensors":
        return _plain(path, _safetensors(path, most_bytes), targets)
    raise ValueError(f"{path} is no .npz, .safetensors, .h5, .hdf5 or .nc file")


def write_well(
    path: Path, trajectories: Tensor, names: list[str], spacing: tuple[float, ...], name: str
) -> None:
    """Write [trajectories, times, fields, *space] of scalar fields in the Well's HDF5 format.

    Raises:
        NeedsError: h5py is missing.
        ValueError: names and fields differ in number.
    """
    h5py = _need("h5py")
    if trajectories.shape[2] != len(names):
        raise ValueError(f"{trajectories.shape[2]} fields and {len(names)} names")
    space = trajectories.shape[3:]
    axes = ("x", "y", "z")[: len(space)]
    with h5py.File(path, "w") as file:
        file.attrs["dataset_name"] = name
        file.attrs["grid_type"] = "cartesian"
        file.attrs["n_spatial_dims"] = len(space)
        file.attrs["n_trajectories"] = len(trajectories)
        dimensions = file.create_group("dimensions")
        dimensions.attrs["spatial_dims"] = list(axes)
        for axis, n, s in zip(axes, space, spacing, strict=True):
            dimensions.create_dataset(axis, data=np.arange(n) * s)
        dimensions.create_dataset("time", data=np.arange(trajectories.shape[1], dtype=np.float32))
        group = file.create_group("t0_fields")
        group.attrs["field_names"] = names
        for i, field in enumerate(names):
            dataset = group.create_dataset(field, data=trajectories[:, :, i].numpy().astype(np.float32))
            dataset.attrs["time_varying"] = dataset.attrs["sample_varying"] = True
            dataset.attrs["dim_varying"] = [True] * len(space)
        for empty in ("t1_fields", "t2_fields", "scalars", "boundary_conditions"):
            file.create_group(empty)


def read_trajectories(
    path: Path, *, copies: int = 1, most_bytes: int = MOST_BYTES
) -> tuple[Tensor, tuple[str, ...], tuple[float, ...] | None]:
    """[trajectories, times, fields, *space] of an HDF5 file in the Well's format, names of the fields,
    spacing.

    Raises:
        ValueError: another format, or so large that ``copies`` of it exceed ``most_bytes``.
        NeedsError: h5py is missing.
    """
    h5py = _need("h5py")
    parts: list[np.ndarray] = []
    names: list[str] = []
    try:
        with h5py.File(path, "r") as file:
            dims = int(file.attrs.get("n_spatial_dims", 0))
            if not 1 <= dims <= 3:
                raise ValueError(f"{path} says n_spatial_dims={dims}; expected the Well's format with 1 to 3")
            found = [(f"t{o}_fields", o) for o in range(3) if f"t{o}_fields" in file]
            sets = [(name, file[g][name], order) for g, order in found for name in file[g]]
            sets = [s for s in sets if isinstance(s[1], h5py.Dataset)]
            if not sets:
                raise ValueError(f"{path} has no fields in t0_fields, t1_fields or t2_fields")
            total = sum(4 * math.prod(s[1].shape) for s in sets)
            if total * copies > most_bytes:
                raise ValueError(
                    f"{path} would take {total * copies / 2**30:.1f} GiB as windows; split it, or train from "
                    "the_well.data.WellDataset, which reads sample by sample"
                )
            for name, dataset, order in sets:
                if dataset.dtype.kind not in "fiu" or dataset.ndim != 2 + dims + order:
                    raise ValueError(
                        f"{path}: {name} has shape {list(dataset.shape)} of {dataset.dtype}; expected "
                        f"[trajectories, times, {dims} axes] and {order} of components"
                    )
                values = np.asarray(dataset[()], dtype=np.float32)
                components = math.prod(values.shape[2 + dims :])
                values = np.moveaxis(values.reshape(*values.shape[: 2 + dims], components), -1, 2)
                parts.append(values)
                names += [name] if components == 1 else [f"{name}_{i}" for i in range(components)]
            spacing = _spacing(file, dims)
    except OSError as error:
        raise ValueError(f"{path} is no HDF5 file: {error}") from error
    if len({p.shape[:2] + p.shape[3:] for p in parts}) != 1:
        raise ValueError(f"{path}: fields differ in trajectories, times or grid: {[p.shape for p in parts]}")
    return torch.from_numpy(np.concatenate(parts, 2)), tuple(names), spacing


def _windows(path: Path, history: int, lead: int, most_bytes: int, targets: bool) -> FieldFile:
    fields, names, spacing = read_trajectories(path, copies=history + 1, most_bytes=most_bytes)
    count = fields.shape[1] - history - lead + 1
    if count < 1 and not targets and fields.shape[1] >= history:
        x = torch.stack(
            [fields[:, t : t + history].flatten(1, 2) for t in range(fields.shape[1] - history + 1)], 1
        ).flatten(0, 1)
        return FieldFile(x, fields[:0, 0], None, names, history, spacing)
    if count < 1:
        raise ValueError(
            f"{path} has {fields.shape[1]} times; history={history} and lead={lead} need {history + lead}"
        )
    x = torch.stack([fields[:, t : t + history].flatten(1, 2) for t in range(count)], 1).flatten(0, 1)
    y = torch.stack([fields[:, t + history + lead - 1] for t in range(count)], 1).flatten(0, 1)
    return FieldFile(x, y, None, names, history, spacing)


def _spacing(file: Any, dims: int) -> tuple[float, ...] | None:
    if "dimensions" not in file:
        return None
    group = file["dimensions"]
    axes = [a.decode() if isinstance(a, bytes) else str(a) for a in group.attrs.get("spatial_dims", ())]
    lines = [np.asarray(group[a][()]).reshape(-1) for a in axes if a in group and group[a].ndim == 1]
    if len(lines) != dims or any(len(line) < 2 for line in lines):
        return None
    return tuple(float(line[1] - line[0]) for line in lines)


def _plain(path: Path, arrays: dict[str, np.ndarray], targets: bool) -> FieldFile:
    if not targets and "x" in arrays and "y" not in arrays:
        arrays = {**arrays, "y": arrays["x"][:0]}
    missing = [name for name in ("x", "y") if name not in arrays]
    if missing:
        raise ValueError(f"{path} lacks {' and '.join(missing)}; it has {', '.join(arrays) or 'nothing'}")
    tensors = {}
    for name in ("x", "y"):
        array = arrays[name]
        if array.dtype.kind not in "fiu" or not 3 <= array.ndim <= 5:
            raise ValueError(
                f"{path}: {name} is {array.dtype}{list(array.shape)}; expected real [samples, channels, "
                "*space]"
            )
        tensors[name] = torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    mask = torch.from_numpy(np.ascontiguousarray(arrays["mask"]).astype(bool)) if "mask" in arrays else None
    if mask is not None:
        space = tensors["y"].shape[2:] if len(tensors["y"]) else mask.shape[-(tensors["x"].dim() - 2) :]
        if mask.shape[-len(space) :] != space:
            raise ValueError(f"{path}: mask is {list(mask.shape)}; expected {[len(tensors['y']), 1, *space]}")
        mask = mask.reshape(-1, 1, *space)  # of every sample, or one for all
        count = len(tensors["x"])
        if len(mask) not in (1, count):
            raise ValueError(f"{path}: {len(mask)} masks for {count} samples")
        mask = mask.expand(count, 1, *space)
    channels = tuple(str(i) for i in range(tensors["y"].shape[1]))
    history = max(1, tensors["x"].shape[1] // tensors["y"].shape[1])
    return FieldFile(tensors["x"], tensors["y"], mask, channels, history, None)


def _npz(path: Path, most_bytes: int) -> dict[str, np.ndarray]:
    try:
        with zipfile.ZipFile(path) as archive:
            total = sum(i.file_size for i in archive.infolist())
        if total > most_bytes:
            raise ValueError(f"{path} unpacks to {total / 2**30:.1f} GiB; split it")
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in ("x", "y", "mask") if name in file}
    except (zipfile.BadZipFile, OSError, EOFError) as error:
        raise ValueError(f"{path} is no .npz file: {error}") from error


def _safetensors(path: Path, most_bytes: int) -> dict[str, np.ndarray]:
    from safetensors import safe_open

    if path.stat().st_size > most_bytes:
        raise ValueError(f"{path} has {path.stat().st_size / 2**30:.1f} GiB; split it")
    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys() if name in ("x", "y", "mask")}  # noqa: SIM118
    except Exception as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


def _netcdf(path: Path, most_bytes: int) -> dict[str, np.ndarray]:
    """Variables x and y: [sample, channel, *space], or [sample, *space] of one channel."""
    xarray = _need("xarray")
    _need("h5netcdf")
    try:
        with xarray.open_dataset(path, engine="h5netcdf") as data:
            total = sum(data[name].nbytes for name in ("x", "y", "mask") if name in data.data_vars)
            if total > most_bytes:
                raise ValueError(f"{path} would take {total / 2**30:.1f} GiB; split it")
            found = {
                name: np.asarray(data[name].values) for name in ("x", "y", "mask") if name in data.data_vars
            }
    except OSError as error:
        raise ValueError(f"{path} is no NetCDF file: {error}") from error
    return {name: a[:, None] if a.ndim == 3 else a for name, a in found.items()}


def _need(module: str) -> Any:
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError as error:
        raise NeedsError(module, hint=install_command("icml-irno[files]")) from error
