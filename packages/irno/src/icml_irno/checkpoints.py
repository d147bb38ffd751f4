"""A trained corrector in one file: tensors and JSON in safetensors, nothing that is ever unpickled.

The file holds the corrector with its architecture, alpha, K, lam, grid and the statistics of the data; of the
base only where it is this package's ``FNO``. Another base is given again when the file is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from icml_core.run import write_atomically
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from icml_irno.backbones import make_refiner
from icml_irno.fno import FNO
from icml_irno.operator import IRNO
from icml_irno.statistics import Statistics

KIND, FNO_KIND = "icml-irno", "icml-irno-fno"


def save_irno(
    model: IRNO, path: Path, *, x: Statistics | None = None, y: Statistics | None = None, history: int = 1
) -> None:
    """Write the corrector, and the base where it is an ``FNO``.

    Args:
        model: whose corrector knows its architecture (``config``), as this package's do.
        path: the file.
        x, y: what inputs and outputs were normalised by.
        history: frames of the input.

    Raises:
        ValueError: the corrector is a module without ``config``; save its state dict instead.
    """
    config = getattr(model.refiner, "config", None)
    if not isinstance(config, dict):
        raise ValueError(
            f"the corrector {type(model.refiner).__name__} has no config to build it from; save "
            "model.state_dict()"
        )
    tensors = {f"refiner.{k}": v for k, v in model.refiner.state_dict().items()}
    if model.scale is not None:
        tensors["scale"] = model.scale
    if model.mask is not None:
        tensors["mask"] = model.mask
    document: dict[str, Any] = {
        "refiner": config, "alpha": model.alpha, "K": model.K, "lam": list(model.lam),
        "out_channels": model.out_channels, "shape": model.shape, "spacing": model.spacing,
        "resize": model.resize, "resample": model.resample, "history": history, "base": None,
    }  # fmt: skip
    _add_statistics(tensors, x, y)
    if isinstance(model.base, FNO):
        document["base"] = model.base.config
        tensors |= {f"base.{k}": v for k, v in model.base.state_dict().items()}
    _write(path, tensors, KIND, document)


def load_irno(
    path: Path, base: nn.Module | Callable[[Tensor], Tensor] | None = None, device: str = "cpu"
) -> tuple[IRNO, dict[str, Any]]:
    """Read a corrector and put it around a base.

    Args:
        path: from :func:`save_irno`.
        base: instead of the one in the file; without either h_0 = 0.
        device: where the corrector goes.

    Returns:
        the operator in eval mode, and what is known of the data: ``x`` and ``y`` (``Statistics`` or None) and
        ``history``.

    Raises:
        FileNotFoundError, ValueError: no such file, or one of another kind, or damaged.
    """
    tensors, document = _read(path, KIND, device)
    try:
        config = dict(document["refiner"])
        refiner = make_refiner(
            config.pop("kind"), config.pop("in_channels"), config.pop("out_channels"), **config
        )
        # Parameters take the precision of the file, so that a reloaded model gives the same bits.
        refiner.to(
            next(v.dtype for k, v in tensors.items() if k.startswith("refiner.") and v.is_floating_point())
        )
        refiner.load_state_dict(_part(tensors, "refiner."))
        if base is None and document["base"] is not None:
            base = FNO(**document["base"])
            state = _part(tensors, "base.")
            base.to(next(iter(state.values())).dtype)
            base.load_state_dict(state)
        model = IRNO(
            base.eval().requires_grad_(False) if isinstance(base, nn.Module) else base,
            refiner, document["alpha"], document["K"], out_channels=document["out_channels"],
            scale=tensors.get("scale"), mask=tensors.get("mask"), resize=document["resize"],
            resample=document["resample"], spacing=document["spacing"], shape=document["shape"],
        )  # fmt: skip
        first, last = document["lam"]
        model.lam = (float(first), float(last))
        data = {
            "x": _statistics(tensors, "x"),
            "y": _statistics(tensors, "y"),
            "history": int(document["history"]),
        }
    except (KeyError, TypeError, RuntimeError, StopIteration) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__} {error}") from error
    return model.eval().to(device), data


def save_fno(
    model: FNO, path: Path, *, x: Statistics | None = None, y: Statistics | None = None, history: int = 1
) -> None:
    """Write an ``FNO``, with what its inputs and outputs were normalised by."""
    tensors = dict(model.state_dict())
    _add_statistics(tensors, x, y)
    _write(path, tensors, FNO_KIND, {"base": model.config, "history": history})


def load_fno(path: Path, device: str = "cpu") -> tuple[FNO, dict[str, Any]]:
    """Read an ``FNO``, and what is known of its data, as of :func:`load_irno`.

    Raises:
        FileNotFoundError, ValueError: no such file, or one of another kind, or damaged.
    """
    tensors, document = _read(path, FNO_KIND, device)
    try:
        data = {
            "x": _statistics(tensors, "x"),
            "y": _statistics(tensors, "y"),
            "history": int(document["history"]),
        }
        state = {k: v for k, v in tensors.items() if not k.startswith("statistics.")}
        model = FNO(**document["base"]).to(next(iter(state.values())).dtype)
        model.load_state_dict(state)
    except (KeyError, TypeError, RuntimeError, StopIteration) as error:
        raise ValueError(f"{path} is damaged: {type(error).__name__} {error}") from error
    return model.eval().to(device), data


def load_well_base(folder: Path, name: str = "FNO") -> nn.Module:
    """A published model of ``the_well.benchmark.models`` from a local folder, in eval mode.

    The folder is what the model's page offers: ``config.json`` and ``model.safetensors``. Nothing is fetched.

    Raises:
        FileNotFoundError: the folder lacks one of the two.
        NeedsError: the-well is not installed.
        ValueError: the-well has no such model.
    """
    from importlib import import_module, util

    from icml_core.errors import NeedsError, install_command

    folder = Path(folder)
    missing = [n for n in ("config.json", "model.safetensors") if not (folder / n).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{folder} lacks {' and '.join(missing)}; download the model's files there first"
        )
    if util.find_spec("the_well") is None:
        raise NeedsError("the-well", hint=install_command("the-well[benchmark]"))
    models = import_module("the_well.benchmark.models")
    if not hasattr(models, name):
        raise ValueError(f"the_well.benchmark.models has no {name!r}; see its __all__")
    found: nn.Module = getattr(models, name).from_pretrained(str(folder.resolve()), local_files_only=True)
    return found.eval().requires_grad_(False)


def _add_statistics(tensors: dict[str, Tensor], x: Statistics | None, y: Statistics | None) -> None:
    for name, statistics in (("x", x), ("y", y)):
        if statistics is not None:
            tensors[f"statistics.{name}.mean"] = statistics.mean
            tensors[f"statistics.{name}.std"] = statistics.std


def _statistics(tensors: dict[str, Tensor], name: str) -> Statistics | None:
    if f"statistics.{name}.mean" not in tensors:
        return None
    return Statistics(tensors[f"statistics.{name}.mean"].cpu(), tensors[f"statistics.{name}.std"].cpu())


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}


def _write(path: Path, tensors: dict[str, Tensor], kind: str, document: dict[str, Any]) -> None:
    ready = {k: v.detach().cpu().contiguous().clone() for k, v in tensors.items()}
    with write_atomically(Path(path)) as temporary:
        save_file(ready, temporary, {"kind": kind, "format": "1", "model": json.dumps(document)})


def _read(path: Path, kind: str, device: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no file {path}")
    try:
        with safe_open(path, framework="pt", device=device) as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
    except Exception as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error
    if metadata.get("kind") != kind:
        raise ValueError(f"{path} holds {metadata.get('kind')!r}; expected a file of {kind}")
    try:
        document = json.loads(metadata["model"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its description is damaged: {error}") from error
    if not isinstance(document, dict) or not all(isinstance(t, torch.Tensor) for t in tensors.values()):
        raise ValueError(f"{path}: its description is no object")
    return tensors, document
