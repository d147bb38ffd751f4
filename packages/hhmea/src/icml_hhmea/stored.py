"""What a file of a trained flow says about itself."""

from __future__ import annotations

from pathlib import Path

from icml_core.checkpoint import stored_identity

from icml_hhmea.npe import KIND, NPEOptions


def options_of(path: Path) -> tuple[int, NPEOptions]:
    """How many electrodes with thresholds a stored flow was trained with, and its options.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it holds no flow.
    """
    try:
        identity = stored_identity(Path(path), kind=KIND)
        options = NPEOptions(**identity["options"])
        names = [str(n) for n in identity["names"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} holds no trained flow: {error}") from error
    return sum(name.startswith("log threshold") for name in names), options
