"""What commands write to standard output: a text, or one JSON document that nothing else mixes with."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterator
from typing import IO, Any


@contextlib.contextmanager
def document(wanted: bool) -> Iterator[IO[str]]:
    """Standard output for the one JSON document; whatever else prints meanwhile goes to standard error."""
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr) if wanted else contextlib.nullcontext():
        yield out


def dump(value: Any, out: IO[str]) -> None:
    """Write ``value``, in which dataclasses, paths and enums may be, as JSON."""
    from icml_core.run import _plain

    json.dump(_plain(value), out, indent=2, ensure_ascii=False)
    out.write("\n")
