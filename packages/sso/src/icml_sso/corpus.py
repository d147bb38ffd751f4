"""Text as tokens, in windows: the standard library's sources, packed files, data sets, any iterator.

A window holds context + 1 tokens: inputs are all but its last, targets all but its first. Where a corpus
knows its length, batch number t of seed s is a pure function of (s, t), so that a training resumes on the
very batch that came next, without a state. Files are read as numbers only; nothing is unpickled.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from icml_sso.token_files import open_tokens

Split: TypeAlias = Literal["train", "validation"]

STANDARD_LIBRARY_BYTES = 2_000_000
VALIDATION_EVERY = 10  # every tenth file is held out: 90/10
_VALIDATION_STREAM = 1 << 40  # separates the held-out draws from those of training under one seed


class Corpus(Protocol):
    """Where windows come from.

    Attributes:
        vocab_size: tokens are below it.
        identity: a short description that changes with the data; a checkpoint remembers it.
    """

    vocab_size: int
    identity: str

    def batch(
        self, step: int, size: int, context: int, *, seed: int, split: Split = "train"
    ) -> Int[Tensor, "size window"]:
        """The windows of one step."""
        ...


class TokenCorpus:
    """Random windows of arrays that lie in memory or on disk.

    Args:
        train: pieces of one-dimensional integer arrays; windows do not cross from one piece to another.
        validation: held-out pieces; where empty, the last tenth of the training tokens is held out.
        vocab_size: tokens are below it.
        identity: a description; by default a hash of lengths, ends and a sample of the tokens.

    Raises:
        ValueError: no tokens, an array that is not one-dimensional, or a vocabulary below 1.
        TypeError: an array of something else than integers.
    """

    def __init__(
        self,
        train: Sequence[np.ndarray],
        validation: Sequence[np.ndarray] = (),
        *,
        vocab_size: int,
        identity: str | None = None,
    ) -> None:
        if vocab_size < 1:
            raise ValueError(f"vocab_size={vocab_size} must be at least 1")
        for piece in (*train, *validation):
            if not np.issubdtype(piece.dtype, np.integer):
                raise TypeError(f"tokens are integers; got an array of {piece.dtype}")
            if piece.ndim != 1:
                raise ValueError(f"expected arrays of one dimension, got shape {piece.shape}")
        kept = [piece for piece in train if len(piece) > 1]
        held = [piece for piece in validation if len(piece) > 1]
        if not kept:
            raise ValueError("the corpus has no piece of two tokens or more")
        if not held:
            kept, held = _hold_out(kept)
        self.vocab_size = vocab_size
        self._pieces: dict[Split, list[np.ndarray]] = {"train": kept, "validation": held}
        self.identity = identity or f"tokens {_fingerprint((*kept, *held))}"

    def tokens(self, split: Split = "train") -> int:
        """How many tokens the split holds."""
        return sum(len(piece) for piece in self._pieces[split])

    def batch(
        self, step: int, size: int, context: int, *, seed: int, split: Split = "train"
    ) -> Int[Tensor, "size window"]:
        """Windows at places that (seed, split, step) choose, each place equally likely.

        Raises:
            ValueError: no piece is as long as a window, or a token is outside the vocabulary.
        """
        if size < 1 or context < 1 or step < 0:
            raise ValueError(f"step={step}, size={size}, context={context}: sizes from 1, steps from 0")
        pieces = self._pieces[split]
        places = np.array([max(len(piece) - context, 0) for piece in pieces])
        if not places.sum():
            longest = max(len(piece) for piece in pieces)
            raise ValueError(
                f"no piece of the {split} split holds a window of {context + 1} tokens; the longest has "
                f"{longest}: "
                "give more text or a smaller context"
            )
        key = (seed, step + (_VALIDATION_STREAM if split == "validation" else 0))
        chosen = np.random.default_rng(key).integers(places.sum(), size=size)
        ends = np.cumsum(places)
        piece_of = np.searchsorted(ends, chosen, side="right")
        starts = chosen - (ends[piece_of] - places[piece_of])
        windows = np.stack(
            [pieces[p][s : s + context + 1].astype(np.int64) for p, s in zip(piece_of, starts, strict=True)]
        )
        return _checked(windows, self.vocab_size)


class StreamCorpus:
    """Consecutive windows of an iterator of tokens, in its own order, each token used once.

    Resuming reads the iterator again up to the batch that comes next, so ``source`` must give the same tokens
    each time that it is called.

    Args:
        source: a callable that gives a fresh iterator over tokens, or over sequences of tokens.
        vocab_size: tokens are below it.
        validation_batches: so many batches at the beginning are held out.
        identity: what a checkpoint remembers.
    """

    def __init__(
        self,
        source: Callable[[], Iterable[Any]],
        *,
        vocab_size: int,
        validation_batches: int = 8,
        identity: str = "stream",
    ) -> None:
        if vocab_size < 1 or validation_batches < 0:
            raise ValueError(
                f"vocab_size={vocab_size} from 1, validation_batches={validation_batches} from 0 are expected"
            )
        if not callable(source):
            raise TypeError(
                "source must be a function that gives a fresh iterator, so that a training can be resumed: "
                f"pass `lambda: iter(...)` instead of {type(source).__name__}"
            )
        self.vocab_size, self.identity = vocab_size, identity
        self._source, self._held_batches = source, validation_batches
        self._held: list[Tensor] = []
        self._stream: Iterator[int] | None = None
        self._shape, self._next = (0, 0), 0

    def batch(
        self, step: int, size: int, context: int, *, seed: int = 0, split: Split = "train"
    ) -> Int[Tensor, "size window"]:
        """The ``step``-th batch of the stream; the seed has no part in it.

        Raises:
            ValueError: the stream ends before it, or a token is outside the vocabulary.
        """
        if split == "validation" and not self._held_batches:
            raise ValueError("nothing is held out of this stream: give validation_batches above 0")
        if self._stream is None or self._shape != (size, context) or (split == "train" and step < self._next):
            self._restart((size, context))
        if split == "validation":
            return self._held[step % len(self._held)]
        while self._next < step:
            self._read()
            self._next += 1
        batch = self._read()
        self._next += 1
        return batch

    def _restart(self, shape: tuple[int, int]) -> None:
        self._shape, self._next = shape, 0
        self._stream = _flat(self._source())
        self._held = [self._read() for _ in range(self._held_batches)]

    def _read(self) -> Tensor:
        size, context = self._shape
        wanted = size * (context + 1)
        assert self._stream is not None
        tokens = np.fromiter(islice(self._stream, wanted), dtype=np.int64)
        if len(tokens) < wanted:
            raise ValueError(
                f"the stream ended {wanted - len(tokens)} tokens short of batch {self._next}: "
                "train for fewer steps, or give an iterator that repeats"
            )
        return _checked(tokens.reshape(size, context + 1), self.vocab_size)


def standard_library(limit: int | None = STANDARD_LIBRARY_BYTES) -> TokenCorpus:
    """The bytes of this Python's own sources: real text that is always there; 256 tokens.

    Files come in the order of a hash of their names until there are ``limit`` bytes; every tenth is held out.

    Args:
        limit: bytes, or None for all.

    Raises:
        ValueError: a limit below 1.
        FileNotFoundError: this Python has no sources of its standard library.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit={limit} must be at least 1 byte")
    folder = Path(sysconfig.get_paths()["stdlib"])
    packages = (
        "",
        "asyncio",
        "concurrent",
        "email",
        "html",
        "http",
        "importlib",
        "json",
        "logging",
        "unittest",
        "xml",
    )
    paths = [path for package in packages for path in folder.joinpath(package).glob("[a-z]*.py")]
    if not paths:
        raise FileNotFoundError(
            f"no sources of the standard library in {folder}; give --corpus a file of tokens"
        )
    paths.sort(key=lambda path: sha256(str(path.relative_to(folder)).encode()).digest())
    return _bytes_of(paths, limit, "standard library")


def text_files(paths: Sequence[Path], limit: int | None = None) -> TokenCorpus:
    """The bytes of text files (or of all files below folders); every tenth file is held out.

    Args:
        paths: files and folders.
        limit: bytes, or None for all.

    Raises:
        FileNotFoundError: a path that does not exist.
        ValueError: nothing in them.
    """
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise FileNotFoundError(f"no file or folder {path}")
        found += sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
    return _bytes_of(found, limit, "text")


def packed_tokens(
    train: Path, validation: Path | None = None, *, vocab_size: int, dtype: str = "auto"
) -> TokenCorpus:
    """Windows of packed files of tokens, read from disk as needed.

    Args:
        train: a ``.bin`` file (see :func:`icml_sso.token_files.open_tokens`), or a folder with ``train.bin``
            and ``val.bin`` as nanoGPT writes it.
        validation: held-out tokens; without it the last tenth of ``train`` is held out.
        vocab_size: tokens are below it; checked in each batch.
        dtype: of a file without an index.

    Raises:
        FileNotFoundError: a file that does not exist.
        ValueError: a file that is not what it seems.
    """
    if train.is_dir():
        held = train / "val.bin"
        validation = held if validation is None and held.is_file() else validation
        train = train / "train.bin"
    pieces = open_tokens(train, dtype=dtype, vocab_size=vocab_size)
    held_out = open_tokens(validation, dtype=dtype, vocab_size=vocab_size) if validation is not None else []
    return TokenCorpus(pieces, held_out, vocab_size=vocab_size)


def dataset_tokens(
    dataset: Any,
    *,
    vocab_size: int,
    column: str | None = None,
    tokenizer: Any = None,
    limit: int | None = None,
) -> TokenCorpus:
    """Tokens of a ``datasets.Dataset`` or anything that iterates over rows.

    Args:
        dataset: rows are mappings.
        vocab_size: tokens are below it.
        column: of the tokens or the text; by default ``input_ids``, else ``text``.
        tokenizer: ``tokenizer(text)["input_ids"]`` turns text into tokens (transformers' convention).
        limit: stop after so many tokens.

    Raises:
        ValueError: no such column, text without a tokenizer, or no tokens.
    """
    pieces: list[np.ndarray] = []
    count = 0
    for index, row in enumerate(dataset):
        if not hasattr(row, "keys"):
            raise ValueError(
                f"row {index} is {type(row).__name__}; expected a mapping from columns to values"
            )
        name = column or ("input_ids" if "input_ids" in row else "text")
        if name not in row.keys():  # noqa: SIM118 rows of data sets need not support `in`
            raise ValueError(f"row {index} has no column {name!r}; it has {', '.join(map(str, row.keys()))}")
        value = row[name]
        if isinstance(value, str):
            if tokenizer is None:
                raise ValueError(f"column {name!r} holds text: give a tokenizer, or a column of tokens")
            value = tokenizer(value)["input_ids"]
        tokens = np.asarray(value)
        if tokens.size:
            pieces.append(tokens)
            count += tokens.size
        if limit is not None and count >= limit:
            break
    if not pieces:
        raise ValueError("the data set has no tokens")
    # One piece: documents are packed behind each other, as in pre-training.
    joined = np.concatenate(pieces)
    return TokenCorpus([joined], vocab_size=vocab_size)


def _bytes_of(paths: Sequence[Path], limit: int | None, name: str) -> TokenCorpus:
    pieces: dict[Split, list[np.ndarray]] = {"train": [], "validation": []}
    count = 0
    for index, path in enumerate(paths):
        piece = np.frombuffer(path.read_bytes(), dtype=np.uint8)
        if limit is not None:
            piece = piece[: limit - count]
        held = index % VALIDATION_EVERY == VALIDATION_EVERY - 1
        pieces["validation" if held else "train"].append(piece)
        count += len(piece)
        if count == limit:
            break
    every = (*pieces["train"], *pieces["validation"])
    return TokenCorpus(
        pieces["train"], pieces["validation"], vocab_size=256, identity=f"{name} {_fingerprint(every)}"
    )


def _hold_out(pieces: list[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The last tenth of the tokens, cut inside a piece where need be."""
    total = sum(len(piece) for piece in pieces)
    left = total - max(total // VALIDATION_EVERY, 1)
    kept, held = [], []
    for piece in pieces:
        cut = min(max(left, 0), len(piece))
        kept += [piece[:cut]] if cut else []
        held += [piece[cut:]] if cut < len(piece) else []
        left -= len(piece)
    return kept, held


def _flat(items: Iterable[Any]) -> Iterator[int]:
    for item in items:
        tokens = np.asarray(item)
        if not np.issubdtype(tokens.dtype, np.integer):
            raise TypeError(f"tokens are integers; the stream gave {tokens.dtype}: {str(item)[:60]}")
        yield from tokens.ravel().tolist()


def _checked(windows: np.ndarray, vocabulary: int) -> Tensor:
    low, high = int(windows.min()), int(windows.max())
    if low < 0 or high >= vocabulary:
        raise ValueError(
            f"tokens from {low} to {high}, but the vocabulary is 0 to {vocabulary - 1}: the file was "
            "written with another tokenizer or in another integer type"
        )
    return torch.from_numpy(windows)


def _fingerprint(pieces: Sequence[np.ndarray]) -> str:
    """Of lengths, ends and about a thousand tokens between: cheap for files of many gigabytes."""
    digest = sha256()
    for piece in pieces:
        digest.update(f"{len(piece)} ".encode())
    longest = max(pieces, key=len)
    for piece in (pieces[0], longest, pieces[-1]):
        sample = piece[:: max(len(piece) // 1000, 1)]
        digest.update(np.ascontiguousarray(sample, dtype=np.int64).tobytes())
    return digest.hexdigest()[:16]
