"""Packed files of tokens, opened without trust: raw ones (nanoGPT) and Megatron's ``.bin`` with ``.idx``.

A raw file is nothing but integers. A Megatron index says where documents lie in the ``.bin`` beside it:
    "MMIDIDX\\0\\0", version u64 = 1, type code u8, sequences u64, documents u64,
    lengths i32[sequences], byte offsets i64[sequences], document ends i64[documents]      (little-endian)
(github.com/NVIDIA/Megatron-LM, core/datasets/indexed_dataset.py.)
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<QBQQ")
_TYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}  # codes of Megatron's integer types
_RAW_TYPES = ("uint8", "uint16", "uint32", "int32", "int64")
_SAMPLE = 4096


def open_tokens(path: Path, *, dtype: str = "auto", vocab_size: int | None = None) -> list[np.ndarray]:
    """The tokens of a file, mapped into memory, not read: one array a document run.

    A ``.bin`` with an ``.idx`` beside it is Megatron's; else it is raw.

    Args:
        path: the ``.bin``, or either file of a Megatron pair, or their common name without suffix.
        dtype: of a raw file; "auto" takes uint16 where the vocabulary fits, else uint32.
        vocab_size: of the tokens; decides "auto", and a sample of the file is checked against it.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: sizes, offsets or tokens that contradict each other; says which.
    """
    if path.suffix not in (".bin", ".idx"):
        path = path.with_name(path.name + ".bin")
    data, index = path.with_suffix(".bin"), path.with_suffix(".idx")
    if not data.is_file():
        raise FileNotFoundError(f"no file of tokens {data}")
    if not data.stat().st_size:
        raise ValueError(f"{data} is empty")
    pieces = _megatron(data, index) if index.is_file() else [_raw(data, dtype, vocab_size)]
    if vocab_size is not None:
        _check_sample(data, pieces, vocab_size)
    return pieces


def write_tokens(
    path: Path, documents: list[np.ndarray], *, dtype: str = "uint16", index: bool = False
) -> None:
    """Write documents behind each other into a ``.bin``, with Megatron's ``.idx`` where asked.

    Args:
        path: the ``.bin``.
        documents: one-dimensional arrays of tokens.
        dtype: uint16 or int32.
        index: write the ``.idx`` too.

    Raises:
        ValueError: a token that the type cannot hold, or a type that Megatron has no code for.
    """
    from icml_core.run import write_atomically

    if dtype not in _RAW_TYPES:
        raise ValueError(f"dtype={dtype!r} is none of {', '.join(_RAW_TYPES)}")
    kind = np.dtype(dtype).newbyteorder("<")
    for number, document in enumerate(documents):
        low, high = (int(document.min()), int(document.max())) if len(document) else (0, 0)
        if low < np.iinfo(kind).min or high > np.iinfo(kind).max:
            raise ValueError(f"document {number} has tokens from {low} to {high}, which {dtype} cannot hold")
    with write_atomically(path) as temporary, temporary.open("wb") as stream:
        for document in documents:
            stream.write(np.ascontiguousarray(document, dtype=kind).tobytes())
    if not index:
        return
    codes = {np.dtype(name): code for code, name in _TYPES.items()}
    if kind not in codes:
        raise ValueError(f"Megatron's index has no code for {dtype}; take int32")
    lengths = np.array([len(document) for document in documents], dtype="<i4")
    offsets = np.concatenate(([0], np.cumsum(lengths[:-1], dtype="<i8"))) * kind.itemsize
    ends = np.arange(len(documents) + 1, dtype="<i8")
    with write_atomically(path.with_suffix(".idx")) as temporary, temporary.open("wb") as stream:
        stream.write(MAGIC + _HEADER.pack(1, codes[kind], len(documents), len(ends)))
        stream.write(lengths.tobytes() + offsets.astype("<i8").tobytes() + ends.tobytes())


def _raw(path: Path, dtype: str, vocabulary: int | None) -> np.ndarray:
    if dtype == "auto":
        dtype = "uint16" if vocabulary is None or vocabulary <= 1 << 16 else "uint32"
    if dtype not in _RAW_TYPES:
        raise ValueError(f"dtype={dtype!r} is none of auto, {', '.join(_RAW_TYPES)}")
    kind = np.dtype(dtype).newbyteorder("<")
    size = path.stat().st_size
    if size % kind.itemsize:
        raise ValueError(
            f"{path} has {size} bytes, no multiple of {kind.itemsize}: its tokens are not {dtype}"
        )
    return np.memmap(path, dtype=kind, mode="r")


def _megatron(data: Path, index: Path) -> list[np.ndarray]:
    size, room = data.stat().st_size, index.stat().st_size
    with index.open("rb") as stream:
        head = stream.read(len(MAGIC) + _HEADER.size)
        if len(head) < len(MAGIC) + _HEADER.size or not head.startswith(MAGIC):
            raise ValueError(
                f"{index} does not begin as a Megatron index; delete it if {data.name} is a raw file"
            )
        version, code, sequences, documents = _HEADER.unpack(head[len(MAGIC) :])
        if version != 1:
            raise ValueError(f"{index} has version {version}; this reads version 1")
        if code not in _TYPES:
            raise ValueError(f"{index} names type code {code}; integers have {', '.join(map(str, _TYPES))}")
        wanted = len(head) + sequences * (4 + 8) + documents * 8
        # Before anything is allocated: a header may promise 2^60 sequences. Multimodal modes may follow.
        if room < wanted:
            raise ValueError(
                f"{index} has {room} bytes, but its header promises {sequences} sequences and {documents} "
                f"documents, which take {wanted}"
            )
        lengths = np.frombuffer(stream.read(sequences * 4), dtype="<i4").astype(np.int64)
        offsets = np.frombuffer(stream.read(sequences * 8), dtype="<i8")
    kind = np.dtype(_TYPES[code])
    if not sequences:
        raise ValueError(f"{index} has no sequences")
    bad = (
        (lengths < 0)
        | (offsets < 0)
        | (offsets % kind.itemsize != 0)
        | (offsets > size - lengths * kind.itemsize)
    )
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            f"{index}: sequence {first} of {lengths[first]} tokens at byte {offsets[first]} does not lie "
            f"within the {size} bytes of {data.name}"
        )
    tokens = np.memmap(data, dtype=kind, mode="r", shape=(size // kind.itemsize,))
    starts = offsets // kind.itemsize
    # Sequences that lie behind each other become one run, so that windows may cross documents, as in
    # training.
    breaks = np.flatnonzero(starts[1:] != starts[:-1] + lengths[:-1]) + 1
    firsts, lasts = np.concatenate(([0], breaks)), np.concatenate((breaks, [sequences])) - 1
    return [tokens[starts[a] : starts[b] + lengths[b]] for a, b in zip(firsts, lasts, strict=True)]


def _check_sample(path: Path, pieces: list[np.ndarray], vocabulary: int) -> None:
    for piece in pieces[:16]:
        sample = np.asarray(piece[:: max(len(piece) // _SAMPLE, 1)])
        if len(sample) and (int(sample.max()) >= vocabulary or int(sample.min()) < 0):
            raise ValueError(
                f"{path} holds tokens from {sample.min()} to {sample.max()}, but the vocabulary has "
                f"{vocabulary}: "
                "another tokenizer, or another integer type (--dtype)"
            )
