"""Model files: weights as safetensors, and beside them the format, configuration, units and prior.

Nothing is ever unpickled, and no size is believed before the file's own header has confirmed it.

    kind      "icml-flashschnet-model"
    format    number of the format, written as text
    config    JSON of SchNetConfig
    filter    "network" or "table"
    units     JSON: length, energy
    prior     JSON of PriorParameters, where there is one
    notes     JSON: free text of whoever saved it
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from icml_core.run import write_atomically
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from icml_flashschnet.convolution import Kernel
from icml_flashschnet.filter_table import FilterTable
from icml_flashschnet.prior_fit import PriorParameters
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig

KIND = "icml-flashschnet-model"
FORMAT = 1
UNITS = {"length": "Å", "energy": "kcal/mol"}
LARGEST_METADATA = 16_000_000
"""Characters of metadata that are read at most."""


@dataclass(frozen=True)
class SavedModel:
    """What a model file holds.

    Attributes:
        network: the network, in evaluation.
        prior: parameters of the prior that it was trained beside, or None.
        units: of positions and energies.
        notes: free text.
    """

    network: FlashSchNet
    prior: PriorParameters | None = None
    units: Mapping[str, str] = field(default_factory=lambda: dict(UNITS))
    notes: Mapping[str, str] = field(default_factory=dict)


def save_model(
    path: str | Path,
    network: FlashSchNet,
    *,
    prior: PriorParameters | None = None,
    units: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Write a model file, whole or not at all.

    Args:
        path: the file; its name ends in ``.safetensors`` by convention.
        network: a network, compressed or not.
        prior: parameters of the prior that belongs to it.
        units: of positions and energies; Å and kcal/mol by default.
        notes: free text to keep with it.

    Raises:
        ValueError: some layers are compressed and others not.
    """
    tabulated = {isinstance(layer.filter, FilterTable) for layer in network.interactions}
    if len(tabulated) != 1:
        raise ValueError("some layers are tables and others are networks: compress all layers or none")
    metadata = {
        "kind": KIND,
        "format": str(FORMAT),
        "config": json.dumps(asdict(network.config)),
        "filter": "table" if tabulated.pop() else "network",
        "units": json.dumps(dict(units or UNITS), ensure_ascii=False),
        "notes": json.dumps(dict(notes or {}), ensure_ascii=False),
    }
    if prior is not None:
        metadata["prior"] = prior.to_json()
    tensors = {name: value.detach().cpu().contiguous() for name, value in network.state_dict().items()}
    with write_atomically(Path(path)) as temporary:
        save_file(tensors, temporary, metadata)


def load_model(
    path: str | Path,
    *,
    expected: SchNetConfig | None = None,
    device: str | torch.device = "cpu",
    kernel: Kernel = "auto",
) -> SavedModel:
    """Read a model file.

    Args:
        path: the file.
        expected: refuse a model of another configuration.
        device: where its weights go.
        kernel: which code convolves.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no model file, a newer format, another configuration than expected (the differing
            keys are shown), missing or surplus weights (named), weights that are not finite.
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no model file {path}")
    metadata, tensors = _read(path)
    config = _config(path, metadata)
    if expected is not None and expected != config:
        different = [
            f"{f.name} is {getattr(config, f.name)!r}, expected {getattr(expected, f.name)!r}"
            for f in fields(config)
            if getattr(config, f.name) != getattr(expected, f.name)
        ]
        raise ValueError(f"{path} is a model of another configuration: {'; '.join(different)}")
    tabulated = metadata.get("filter") == "table"
    _check_weights(path, config, tensors, tabulated)
    network = FlashSchNet(config, kernel=kernel).to(dtype=tensors["embedding.weight"].dtype)
    if tabulated:
        for number, layer in enumerate(network.interactions):
            layer.filter = FilterTable(tensors[f"interactions.{number}.filter.table"], config.r_cut)
    network.load_state_dict(tensors)
    prior = PriorParameters.from_json(metadata["prior"]) if "prior" in metadata else None
    return SavedModel(
        network.to(device).requires_grad_(not tabulated),
        prior,
        _json(path, metadata, "units", UNITS),
        _json(path, metadata, "notes", {}),
    )


def _read(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("kind") != KIND:
                found = metadata.get("kind", "no kind")
                raise ValueError(f"{path} is no model file of icml-flashschnet: it holds {found!r}")
            if sum(len(value) for value in metadata.values()) > LARGEST_METADATA:
                raise ValueError(f"{path}: more than {LARGEST_METADATA} characters of metadata")
            number = metadata.get("format", "")
            if not number.isdecimal() or not 1 <= int(number) <= FORMAT:
                raise ValueError(f"{path} has format {number or 'none'!r}; this version reads 1 to {FORMAT}")
            return metadata, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 no dict
    except SafetensorError as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


def _config(path: Path, metadata: Mapping[str, str]) -> SchNetConfig:
    values = _json(path, metadata, "config", {})
    known = {f.name for f in fields(SchNetConfig)}
    if set(values) != known:
        raise ValueError(
            f"{path}: the configuration lacks {sorted(known - set(values))} and has unknown "
            f"{sorted(set(values) - known)}"
        )
    return SchNetConfig(**values)


def _json(path: Path, metadata: Mapping[str, str], key: str, default: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(metadata[key]) if key in metadata else dict(default)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}: {key} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path}: {key} must be a JSON object, got {type(value).__name__}")
    return value


def _check_weights(path: Path, config: SchNetConfig, tensors: dict[str, Tensor], tabulated: bool) -> None:
    """Compare the tensors in the file with those that the configuration stands for, before building it."""
    if config.layers > len(tensors) or len(config.out) > len(tensors):
        raise ValueError(f"{path}: {len(tensors)} tensors cannot be a network of {config.layers} layers")
    shapes = weight_shapes(config, tabulated)
    missing, surplus = sorted(shapes.keys() - tensors.keys()), sorted(tensors.keys() - shapes.keys())
    if missing or surplus:
        raise ValueError(
            f"{path}: the weights do not fit the configuration; missing: {', '.join(missing) or 'none'}; "
            f"surplus: {', '.join(surplus) or 'none'}"
        )
    dtypes = {tensor.dtype for tensor in tensors.values()}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        raise ValueError(
            f"{path}: weights must all be float32 or all float64, got {sorted(map(str, dtypes))}"
        )
    for name, shape in shapes.items():
        got = tuple(tensors[name].shape)
        if len(got) != len(shape) or any(w is not None and w != g for w, g in zip(shape, got, strict=True)):
            raise ValueError(f"{path}: {name} has shape {list(got)}, the configuration says {list(shape)}")
        if not math.isfinite(float(tensors[name].double().abs().sum())):
            raise ValueError(f"{path}: {name} holds values that are not finite")


def weight_shapes(config: SchNetConfig, tabulated: bool = False) -> dict[str, tuple[int | None, ...]]:
    """Name and shape of every tensor of a network; None stands for a size that the file decides.

    Args:
        config: sizes of the network.
        tabulated: whether its filters are tables.
    """
    shapes: dict[str, tuple[int | None, ...]] = {"embedding.weight": (config.n_types, config.hidden)}
    for number in range(config.layers):
        layer = f"interactions.{number}"
        shapes[f"{layer}.project.weight"] = (config.filters, config.hidden)
        if tabulated:
            shapes[f"{layer}.filter.table"] = (None, 2, config.filters)
        else:
            shapes[f"{layer}.filter.inner.weight"] = (config.filters, config.n_rbf)
            shapes[f"{layer}.filter.inner.bias"] = (config.filters,)
            shapes[f"{layer}.filter.outer.weight"] = (config.filters, config.filters)
        shapes[f"{layer}.mix.weight"] = (config.hidden, config.filters)
        shapes[f"{layer}.mix.bias"] = (config.hidden,)
        shapes[f"{layer}.update.weight"] = (config.hidden, config.hidden)
        shapes[f"{layer}.update.bias"] = (config.hidden,)
    widths = (config.hidden, *config.out)
    for number, (a, b) in enumerate(pairwise(widths)):
        shapes[f"readout.{number}.weight"], shapes[f"readout.{number}.bias"] = (b, a), (b,)
    shapes[f"readout.{len(config.out)}.weight"] = (1, widths[-1])
    return shapes
