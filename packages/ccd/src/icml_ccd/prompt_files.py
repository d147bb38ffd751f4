"""Prompts from a user's JSONL file, and the user's checker of the answers."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

LARGEST = 64 << 20
"""Bytes of a file of prompts that is read."""


class Prompt(NamedTuple):
    """A line: the prompt, and everything that the line says (for the checker)."""

    text: str
    line: dict[str, Any]


def read_prompts(path: str | Path, field: str = "prompt") -> list[Prompt]:
    """Prompts of a file with one JSON object a line.

    Args:
        path: the file.
        field: which entry holds the prompt; GSM8K has ``question``, HumanEval ``prompt``, MBPP ``text``.

    Raises:
        ValueError: a line is no object or lacks the entry, naming the line; an empty or very large file.
        FileNotFoundError: there is no file.
    """
    path = Path(path)
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} has {path.stat().st_size} bytes; prompts up to {LARGEST} bytes are read")
    found = []
    for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not text.strip():
            continue
        try:
            line = json.loads(text)
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
        if not isinstance(line, dict) or not isinstance(line.get(field), str):
            raise ValueError(f"{path}, line {number} has no text under {field!r}; expected one object a line")
        found.append(Prompt(line[field], line))
    if not found:
        raise ValueError(f"{path} holds no prompt")
    return found


def load_checker(spec: str) -> Callable[[dict[str, Any], str], bool]:
    """The user's own function ``(line, answer) -> bool`` from ``FILE.py:NAME``; that file is run.

    Raises:
        ValueError: another form, no such file, or no such function.
    """
    file, _, name = spec.rpartition(":")
    path = Path(file)
    if not file or path.suffix != ".py" or not path.is_file():
        raise ValueError(f"a checker is given as FILE.py:FUNCTION, and {spec!r} names no file that exists")
    module_spec = importlib.util.spec_from_file_location(f"checker_{path.stem}", path)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    module_spec.loader.exec_module(module)
    checker = getattr(module, name, None)
    if not callable(checker):
        raise ValueError(f"{path} has no function {name!r}")
    found: Callable[[dict[str, Any], str], bool] = checker
    return found
