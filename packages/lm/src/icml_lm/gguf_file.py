"""The directory of a GGUF file: which tensors it holds and where.

The format is a header (magic, version, counts), metadata as typed key-value pairs, a list of tensors with
shape, type and offset, and the aligned data: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The
``gguf`` distribution's own reader makes a NumPy array of every string in the vocabulary, which for a small
model takes more memory than its weights; here the metadata's arrays are stepped over.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_LONGEST_NAME, _MOST_AXES = 1 << 16, 8
_ALIGNMENT = 32


@dataclass(frozen=True)
class StoredTensor:
    """One tensor of the file, packed.

    Attributes:
        name: GGUF's name.
        shape: row-major, the fastest axis last.
        kind: ``gguf.GGMLQuantizationType``.
        row_bytes: bytes of one run along the last axis.
        start: of its data in the file.
    """

    path: Path
    name: str
    shape: tuple[int, ...]
    kind: Any
    row_bytes: int
    start: int

    def rows(self, block: int) -> Iterator[tuple[slice, np.ndarray]]:
        """Blocks of about ``block`` numbers in float32, with their rows in the flattened tensor."""
        from gguf import dequantize

        width = self.shape[-1]
        count = math.prod(self.shape[:-1])
        step = max(1, block // width)
        with self.path.open("rb") as stream:
            stream.seek(self.start)
            for first in range(0, count, step):
                rows = min(step, count - first)
                packed = np.fromfile(stream, dtype=np.uint8, count=rows * self.row_bytes)
                yield slice(first, first + rows), dequantize(self._typed(packed, rows), self.kind)

    def whole(self) -> np.ndarray:
        """The tensor in float32."""
        return next(self.rows(math.prod(self.shape)))[1].reshape(self.shape)

    def _typed(self, packed: np.ndarray, rows: int) -> np.ndarray:
        plain = {"F32": np.float32, "F16": np.float16, "F64": np.float64}.get(self.kind.name)
        return packed.reshape(rows, -1) if plain is None else packed.view(plain).reshape(rows, -1)


@dataclass(frozen=True)
class Directory:
    """What a GGUF file holds: metadata other than arrays, and tensors by name."""

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_directory(path: Path) -> Directory:
    """Read the directory, and check that every tensor lies inside the file.

    Raises:
        ValueError: the file is no GGUF, is cut off, or says impossible sizes.
    """
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    with path.open("rb") as stream:
        size = path.stat().st_size
        if stream.read(4) != b"GGUF":
            raise ValueError(f"{path} does not begin as a GGUF file does")
        try:
            version, n_tensors, n_fields = _read(stream, "<IQQ")
            if version not in _VERSIONS:
                raise ValueError(f"{path} is GGUF version {version}; versions {_VERSIONS} are read")
            metadata = {}
            for _ in range(n_fields):
                key = _string(stream)
                value = _value(stream, _read(stream, "<I")[0])
                if value is not None:
                    metadata[key] = value
            listed = []
            for _ in range(n_tensors):
                name = _string(stream)
                (axes,) = _read(stream, "<I")
                if not 1 <= axes <= _MOST_AXES:
                    raise ValueError(f"{path}: tensor {name!r} has {axes} axes")
                extents = _read(stream, f"<{axes}Q")
                kind, offset = _read(stream, "<IQ")
                listed.append((name, extents[::-1], GGMLQuantizationType(kind), offset))
        except (struct.error, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"{path} is cut off or damaged in its directory: {error}") from error
        alignment = metadata.get("general.alignment", _ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ValueError(f"{path}: the alignment of the data is {alignment!r}")
        data = -(-stream.tell() // alignment) * alignment
    tensors = {}
    for name, shape, kind, offset in listed:
        block, block_bytes = GGML_QUANT_SIZES[kind]
        row_bytes = shape[-1] // block * block_bytes
        end = data + offset + math.prod(shape[:-1]) * row_bytes
        if shape[-1] % block or not math.prod(shape) or end > size:
            raise ValueError(f"{path}: tensor {name!r} of shape {shape} does not lie inside the file")
        tensors[name] = StoredTensor(path, name, shape, kind, row_bytes, data + offset)
    return Directory(metadata, tensors)


def _read(stream: BinaryIO, form: str) -> tuple[Any, ...]:
    return struct.unpack(form, stream.read(struct.calcsize(form)))


def _string(stream: BinaryIO) -> str:
    (length,) = _read(stream, "<Q")
    if length > _LONGEST_NAME:
        raise ValueError(f"a name of {length} bytes in a GGUF directory")
    return stream.read(length).decode("utf-8")


def _skip(stream: BinaryIO, length: int) -> None:
    if stream.tell() + length > os.fstat(stream.fileno()).st_size:
        raise struct.error(f"{length} bytes of metadata are announced and not there")
    stream.seek(length, 1)


def _value(stream: BinaryIO, kind: int) -> Any:
    """A scalar or string; arrays are stepped over and give None."""
    if kind in _SCALARS:
        return _read(stream, "<" + _SCALARS[kind])[0]
    if kind == _STRING:
        (length,) = _read(stream, "<Q")
        if length > _LONGEST_NAME:  # such as a long template: no use here
            _skip(stream, length)
            return None
        return stream.read(length).decode("utf-8", errors="replace")
    if kind != _ARRAY:
        raise ValueError(f"metadata of unknown type {kind} in a GGUF file")
    inner, count = _read(stream, "<IQ")
    if inner in _SCALARS:
        _skip(stream, count * struct.calcsize(_SCALARS[inner]))
    else:
        for _ in range(count):
            if inner == _STRING:
                _skip(stream, _read(stream, "<Q")[0])
            else:
                _value(stream, inner)
    return None
