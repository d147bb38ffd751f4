"""What a file of a trained flow says about itself."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import safe_open

from icml_hhmea.npe import KIND, NPEOptions


def options_of(path: Path) -> tuple[int, NPEOptions]:
    """How many electrodes with thresholds a stored flow was trained with, and its options.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds no flow.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
        identity = json.loads(metadata["identity"])
        options = NPEOptions(**identity["options"])
        names = [str(n) for n in identity["names"]]
    except Exception as error:
        raise ValueError(f"{path} holds no trained flow: {error}") from error
    if metadata.get("kind") != KIND:
        raise ValueError(f"{path} holds {metadata.get('kind')!r}, not a trained flow")
    return sum(name.startswith("log threshold") for name in names), options
