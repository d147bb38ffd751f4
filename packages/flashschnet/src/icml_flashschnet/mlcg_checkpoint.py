"""Weights of SchNet models that mlcg trained (https://github.com/ClementiGroup/mlcg).

A state dict names its layers as mlcg does: ``embedding_layer``, ``rbf_layer``,
``interaction_blocks.N.conv...``, ``output_network.layers.N``, behind whatever prefix wrappers put there.
Sizes, basis and cutoff are read from it. What it does not hold, activation and envelopes, is given. Units are
Å and kcal/mol in both.
"""

from __future__ import annotations

import os
import pickle
import re
import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from icml_flashschnet.activation import Activation
from icml_flashschnet.radial import BasisKind, RadialBasis
from icml_flashschnet.schnet import FlashSchNet, SchNetConfig

_LAYERS = {
    "conv.lin1.weight": "project.weight",
    "conv.filter_network.layers.0.weight": "filter.inner.weight",
    "conv.filter_network.layers.0.bias": "filter.inner.bias",
    "conv.filter_network.layers.2.weight": "filter.outer.weight",
    "conv.lin2.weight": "mix.weight",
    "conv.lin2.bias": "mix.bias",
    "lin.weight": "update.weight",
    "lin.bias": "update.bias",
}
"""Names of an interaction block's weights there and here."""


def load_mlcg(
    source: str | os.PathLike[str] | Mapping[str, Tensor],
    *,
    activation: Activation = "tanh",
    rbf_cutoff: bool = True,
    filter_cutoff: bool = True,
) -> FlashSchNet:
    """A network with the weights of an mlcg ``StandardSchNet``.

    Args:
        source: a state dict, or a file that ``torch.save`` wrote of one; nothing else in it is unpickled.
        activation: of the network; mlcg's configurations say ``torch.nn.Tanh``.
        rbf_cutoff: whether its radial basis was made with a ``CosineCutoff``.
        filter_cutoff: whether its convolutions were.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file holds whole objects; names are missing or left over; the basis was trained, or
            does not begin at 0.
    """
    state = _read(source)
    ends = [name for name in state if name.endswith("embedding_layer.weight")]
    if len(ends) != 1:
        raise ValueError(
            f"expected one embedding_layer.weight of an mlcg SchNet, found {ends or 'none'}; "
            f"the names begin with {sorted({name.split('.')[0] for name in state})}"
        )
    prefix = ends[0].removesuffix("embedding_layer.weight")
    own = {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
    if others := sorted({name.rpartition(".")[0] for name in state if not name.startswith(prefix)}):
        warnings.warn(
            f"only the network under {prefix!r} is read, not {', '.join(others)}: add the prior by CGPrior",
            stacklevel=2,
        )
    basis = _basis(own, rbf_cutoff)
    renamed = {"embedding.weight": own.pop("embedding_layer.weight")}
    for name in list(own):
        block = re.fullmatch(r"interaction_blocks\.(\d+)\.(.+)", name)
        output = re.fullmatch(r"output_network\.layers\.(\d+)\.(weight|bias)", name)
        if block and block[2] in _LAYERS:
            renamed[f"interactions.{block[1]}.{_LAYERS[block[2]]}"] = own.pop(name)
        elif output:
            renamed[f"readout.{int(output[1]) // 2}.{output[2]}"] = own.pop(name)
    if own:
        raise ValueError(f"names that a StandardSchNet does not have: {', '.join(own)}")
    model = FlashSchNet(_config(renamed, basis, activation, filter_cutoff)).to(
        renamed["embedding.weight"].dtype
    )
    expected = model.state_dict()
    if missing := [name for name in expected if name not in renamed]:
        raise ValueError(f"the state dict lacks what is called here {', '.join(missing)}")
    if surplus := [name for name in renamed if name not in expected]:
        raise ValueError(f"the state dict holds more than the network takes: {', '.join(surplus)}")
    for name, value in expected.items():
        if renamed[name].shape != value.shape:
            raise ValueError(
                f"{name} has shape {list(renamed[name].shape)}; expected {list(value.shape)} from the others"
            )
    model.load_state_dict(renamed)
    return model


def _read(source: str | os.PathLike[str] | Mapping[str, Tensor]) -> dict[str, Tensor]:
    if not isinstance(source, Mapping):
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(f"no model file {path}")
        try:
            source = torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            raise ValueError(
                f"{path} holds whole objects, which may run code when they are unpickled: where mlcg is "
                "installed, torch.save(torch.load(path, weights_only=False).state_dict(), ...) and give that"
            ) from error
        if isinstance(source, Mapping) and isinstance(source.get("state_dict"), Mapping):
            source = source["state_dict"]  # a checkpoint of Lightning
    if not isinstance(source, Mapping):
        raise ValueError(f"expected a state dict of tensors, got {type(source).__name__}")
    return {str(name): value for name, value in source.items() if isinstance(value, Tensor)}


def _basis(own: dict[str, Tensor], envelope: bool) -> RadialBasis:
    """The basis, checked against its formula: centres and widths here are not trainable."""
    found = {name: own.pop(name) for name in list(own) if name.startswith("rbf_layer.")}
    names = {name.removeprefix("rbf_layer.") for name in found}
    kinds: dict[BasisKind, set[str]] = {"gauss": {"offset", "coeff"}, "expnorm": {"means", "betas"}}
    kind = next((kind for kind, wanted in kinds.items() if wanted == names), None)
    if kind is None:
        raise ValueError(
            f"the radial basis holds {sorted(names) or 'nothing'}; a GaussianBasis has offset and coeff, "
            "an ExpNormalBasis means and betas"
        )
    if kind == "gauss":
        centers, width = found["rbf_layer.offset"].double(), found["rbf_layer.coeff"].double()
        r_cut = float(centers[-1])
    else:
        centers, width = found["rbf_layer.means"].double(), found["rbf_layer.betas"].double()
        r_cut = -float(torch.log(centers[0]))
    basis = RadialBasis(kind, len(centers), round(r_cut, 4), envelope)
    exact = torch.allclose(centers, basis.centers(centers), rtol=1e-4, atol=1e-4 * float(centers.abs().max()))
    if not exact or not torch.allclose(width, torch.full_like(width, basis.gamma), rtol=1e-3):
        raise ValueError(
            f"the {kind} basis is not that of a cutoff of {basis.r_cut} Å beginning at 0: "
            "it was trained, or has another lower end, and neither is offered here"
        )
    return basis


def _config(
    renamed: Mapping[str, Tensor], basis: RadialBasis, activation: Activation, filter_cutoff: bool
) -> SchNetConfig:
    blocks = {int(name.split(".")[1]) for name in renamed if name.startswith("interactions.")}
    outputs = sorted(
        (int(name.split(".")[1]), value.shape[0])
        for name, value in renamed.items()
        if name.startswith("readout.") and name.endswith(".weight")
    )
    if not blocks or not outputs or "interactions.0.project.weight" not in renamed:
        raise ValueError("the state dict has no interaction_blocks or no output_network")
    embedding = renamed["embedding.weight"]
    return SchNetConfig(
        n_types=embedding.shape[0],
        hidden=embedding.shape[1],
        filters=renamed["interactions.0.project.weight"].shape[0],
        n_rbf=basis.n_rbf,
        rbf=basis.kind,
        r_cut=basis.r_cut,
        layers=max(blocks) + 1,
        out=tuple(width for _, width in outputs[:-1]),
        activation=activation,
        rbf_cutoff=basis.envelope,
        filter_cutoff=filter_cutoff,
    )
