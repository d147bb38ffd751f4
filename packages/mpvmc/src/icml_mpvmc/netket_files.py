"""States that NetKet has written (``.mpack``), read without NetKet, Flax or msgpack.

The format is MessagePack with Flax's extension 1 for arrays, whose contents are (shape, name of the dtype,
bytes). Only what such files hold is understood; lengths are compared with the file before anything is made of
them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

MAX_FILE = 2**31
_DEEPEST = 32
_ARRAY = 1
_NUMBERS = {
    0xCA: ">f", 0xCB: ">d", 0xCC: ">B", 0xCD: ">H", 0xCE: ">I", 0xCF: ">Q",
    0xD0: ">b", 0xD1: ">h", 0xD2: ">i", 0xD3: ">q",
}  # fmt: skip
_DTYPES = (
    "float16",
    "float32",
    "float64",
    "int8",
    "int32",
    "int64",
    "uint32",
    "uint64",
    "bool",
    "complex64",
    "complex128",
)


def read_parameters(path: Path) -> dict[str, Any]:
    """The nested mapping of parameters in a file of NetKet: of its state, its variables, or ``params``
    itself.

    Args:
        path: the ``.mpack`` file.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is too large, damaged, or holds something else.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    if path.stat().st_size > MAX_FILE:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; up to {MAX_FILE} are read")
    try:
        found = _Reader(path.read_bytes()).value(0)
    except (ValueError, struct.error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"{path} is no .mpack file as NetKet writes it: {error}") from error
    for key in ("variables", "params"):
        if isinstance(found, dict) and key in found:
            found = found[key]
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no parameters")
    return found


class _Reader:
    """One pass over the bytes."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise ValueError("it ends early")
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def value(self, depth: int) -> Any:
        if depth > _DEEPEST:
            raise ValueError(f"nested deeper than {_DEEPEST}")
        tag = self.take(1)[0]
        if tag < 0x80:
            return tag
        if tag < 0x90:
            return self.mapping(tag & 0x0F, depth)
        if tag < 0xA0:
            return self.sequence(tag & 0x0F, depth)
        if tag < 0xC0:
            return self.take(tag & 0x1F).decode()
        if tag >= 0xE0:
            return tag - 0x100
        if tag in _NUMBERS:
            return self.number(_NUMBERS[tag])
        if tag in (0xC0, 0xC2, 0xC3):
            return {0xC0: None, 0xC2: False, 0xC3: True}[tag]
        if 0xC4 <= tag <= 0xC6:
            return self.take(self.number((">B", ">H", ">I")[tag - 0xC4]))
        if 0xC7 <= tag <= 0xC9:
            return self.extension(self.number((">B", ">H", ">I")[tag - 0xC7]), depth)
        if 0xD4 <= tag <= 0xD8:
            return self.extension(1 << (tag - 0xD4), depth)
        if 0xD9 <= tag <= 0xDB:
            return self.take(self.number((">B", ">H", ">I")[tag - 0xD9])).decode()
        if tag in (0xDC, 0xDD):
            return self.sequence(self.number(">H" if tag == 0xDC else ">I"), depth)
        if tag in (0xDE, 0xDF):
            return self.mapping(self.number(">H" if tag == 0xDE else ">I"), depth)
        raise ValueError(f"byte {tag:#x} begins nothing")

    def sequence(self, count: int, depth: int) -> list[Any]:
        if count > len(self.data) - self.at:
            raise ValueError("it ends early")
        return [self.value(depth + 1) for _ in range(count)]

    def mapping(self, count: int, depth: int) -> dict[Any, Any]:
        if 2 * count > len(self.data) - self.at:
            raise ValueError("it ends early")
        return {self.value(depth + 1): self.value(depth + 1) for _ in range(count)}

    def extension(self, length: int, depth: int) -> np.ndarray:
        kind = self.number(">b")
        inner = _Reader(self.take(length))
        if kind != _ARRAY:
            raise ValueError(f"extension {kind} is no array")
        shape, name, raw = inner.value(depth + 1)
        name = name.decode() if isinstance(name, bytes) else name
        if name not in _DTYPES or not all(isinstance(s, int) and s >= 0 for s in shape):
            raise ValueError(f"an array of {name} {shape}")
        dtype = np.dtype(name)
        count = 1
        for side in shape:
            count *= side
        if count * dtype.itemsize != len(raw):
            raise ValueError(f"an array of shape {shape} has {len(raw)} bytes")
        return np.frombuffer(raw, dtype).reshape(shape).copy()
