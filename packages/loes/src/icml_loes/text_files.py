"""Labelled texts in CSV files."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

LARGEST = 1 << 30


def read_texts(path: str | Path) -> tuple[list[str], np.ndarray]:
    """Texts and labels of a CSV with the columns ``text`` and ``label``.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: columns that are missing, an empty text or label (the line is named), no row, or a file
            that is too large or no text.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes; at most {LARGEST} are read")
    texts, labels = [], []
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream)
            missing = {"text", "label"} - set(reader.fieldnames or ())
            if missing:
                raise ValueError(f"{path.name} lacks the columns {', '.join(sorted(missing))}")
            for row in reader:
                if not (row["text"] or "").strip() or not (row["label"] or "").strip():
                    raise ValueError(f"{path.name}: line {reader.line_num} has no text or no label")
                texts.append(row["text"])
                labels.append(row["label"].strip())
    except (csv.Error, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} is no CSV in UTF-8: {error}") from error
    if not texts:
        raise ValueError(f"{path.name} has no row")
    return texts, np.array(labels)
