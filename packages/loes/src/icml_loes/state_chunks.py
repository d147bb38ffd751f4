"""Pooled states in chunks: in memory, and in a folder from which an interrupted collection goes on."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from icml_loes.batches import Batch

KIND = "icml-loes-states"


@dataclass(frozen=True)
class Chunk:
    """States of consecutive examples."""

    layers: list[Tensor]
    names: list[str]
    targets: np.ndarray | None
    dropped: list[int]
    curvatures: Tensor | None = None


class StateChunks:
    """Chunks in order.

    Args:
        folder: where they are kept; None for memory alone.
        identity: what they are states of; a folder of something else is refused.
        batches_per_chunk: how many batches one file holds.

    Raises:
        ValueError: the folder holds chunks of something else, or damaged ones.
    """

    def __init__(self, folder: Path | None, identity: dict[str, Any], batches_per_chunk: int) -> None:
        self._folder, self._identity, self._most = folder, identity, max(1, batches_per_chunk)
        self._chunks: list[Chunk] = []
        self._known: list[str] = []
        self._pending: list[Chunk] = []
        self._fingerprints: list[str] = []
        self._place = 0
        self._files = 0
        if folder is not None:
            self._read(folder)

    def has(self, batch: Batch) -> bool:
        """Whether the next batch is in the folder already.

        Raises:
            ValueError: the folder holds another batch in its place.
        """
        if self._place >= len(self._known):
            return False
        if self._known[self._place] != batch.fingerprint():
            raise ValueError(
                f"batch {self._place} differs from the one that {self._folder} was collected from; the order "
                "must be "
                "the same each time (no shuffling), or take another folder"
            )
        self._place += 1
        return True

    def add(self, batch: Batch, chunk: Chunk) -> None:
        """Keep the states of the next batch."""
        self._place += 1
        if self._folder is None:
            self._chunks.append(chunk)
            return
        self._pending.append(chunk)
        self._fingerprints.append(batch.fingerprint())
        if len(self._pending) >= self._most:
            self._write()

    def finish(self) -> list[Chunk]:
        """All chunks, in order."""
        self._write()
        chunks, self._chunks = self._chunks[: self._place], []
        return chunks

    def _write(self) -> None:
        if not self._pending or self._folder is None:
            return
        from icml_core.checkpoint import save_state

        for chunk in self._pending:
            self._chunks.append(chunk)
        state = {
            "fingerprints": self._fingerprints,
            "chunks": [
                {
                    "layers": c.layers,
                    "names": c.names,
                    "targets": None if c.targets is None else c.targets.tolist(),
                    "dtype": None if c.targets is None else c.targets.dtype.str,
                    "dropped": c.dropped,
                    "curvatures": c.curvatures,
                }
                for c in self._pending
            ],
        }
        path = self._folder / f"chunk-{self._files:05}.safetensors"
        path.parent.mkdir(parents=True, exist_ok=True)
        save_state(path, state, kind=KIND, identity=self._identity)
        self._files += 1
        self._pending, self._fingerprints = [], []

    def _read(self, folder: Path) -> None:
        from icml_core.checkpoint import load_state

        while (path := folder / f"chunk-{self._files:05}.safetensors").is_file():
            state = load_state(path, kind=KIND, identity=json.loads(json.dumps(self._identity)))
            self._known += state["fingerprints"]
            for c in state["chunks"]:
                targets = None if c["targets"] is None else np.array(c["targets"], dtype=_dtype(c["dtype"]))
                self._chunks.append(Chunk(c["layers"], c["names"], targets, c["dropped"], c["curvatures"]))
            self._files += 1


def _dtype(text: Any) -> np.dtype[Any]:
    found = np.dtype(str(text))
    if found.kind not in "fiubU":
        raise ValueError(f"targets of dtype {text!r} are no numbers or text")
    return found
