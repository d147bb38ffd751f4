"""Wavefunctions by name, and their files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from icml_core.checkpoint import load_state, save_state
from torch import nn

from icml_mpvmc.hamiltonian import Hamiltonian, Sector
from icml_mpvmc.models import RBM, complex_rbm
from icml_mpvmc.rescnn import ResCNN

KIND = "icml-mpvmc-wavefunction"
NETWORKS = ("rbm", "complex_rbm", "rescnn")
MAX_PARAMETERS = 10**8
"""Parameters above which a file is not believed."""


def network(
    name: str,
    shape: tuple[int, ...],
    *,
    alpha: float = 2,
    filters: int = 16,
    blocks: int = 4,
    std: float = 0.05,
    seed: int = 0,
    dtype: torch.dtype = torch.float64,
) -> nn.Module:
    """A new wavefunction.

    Args:
        name: ``"rbm"``, ``"complex_rbm"`` or ``"rescnn"``.
        shape: of the lattice; its product is the number of spins.
        alpha: hidden units per spin of a Boltzmann machine.
        filters: channels of the convolutions.
        blocks: residual blocks.
        std: of a Boltzmann machine's first parameters.
        seed: of the first parameters.
        dtype: of the parameters.

    Raises:
        ValueError: an unknown name.
    """
    n_spins = math.prod(shape)
    if name == "rbm":
        return RBM(n_spins, alpha, std=std, seed=seed, dtype=dtype)
    if name == "complex_rbm":
        return complex_rbm(n_spins, alpha, std=std, seed=seed, dtype=dtype)
    if name == "rescnn":
        return ResCNN(tuple(shape), filters, blocks, seed=seed, dtype=dtype)
    raise ValueError(f"network={name!r}; expected one of {', '.join(NETWORKS)}")


def save_wavefunction(
    path: Path, model: nn.Module, config: dict[str, Any], H: Hamiltonian | None = None
) -> None:
    """Write parameters, what ``network`` needs to build the model again, and the space that it is trained in.

    Args:
        path: of the file.
        model: the wavefunction.
        config: ``network``, ``shape`` and options.
        H: whose sectors and exchange pairs are stored.
    """
    whole = dict(config)
    if H is not None and H.sectors:
        whole["sectors"] = [[list(s.sites), s.total] for s in H.sectors]
        whole["pairs"] = np.asarray(H.exchange_pairs).tolist()
    state = {"config": json.dumps(whole), "parameters": dict(model.state_dict())}
    save_state(path, state, kind=KIND, identity={})


def space_of(config: dict[str, Any]) -> tuple[tuple[Sector, ...], np.ndarray | None]:
    """The sectors and exchange pairs of a stored wavefunction; none where nothing was conserved."""
    sectors = tuple(
        Sector(tuple(int(i) for i in sites), int(total)) for sites, total in config.get("sectors", [])
    )
    pairs = np.asarray(config.get("pairs", []), dtype=np.int64).reshape(-1, 2)
    return sectors, pairs if len(pairs) else None


def load_wavefunction(path: Path) -> tuple[nn.Module, dict[str, Any]]:
    """The model and its configuration: ``network``, ``shape``, options, and what ``space_of`` reads; nothing
    is unpickled.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: another file, or a damaged one.
    """
    state = load_state(Path(path), kind=KIND, identity={})
    try:
        config = json.loads(state["config"])
        shape = tuple(int(s) for s in config["shape"])
        options = {k: config[k] for k in ("alpha", "filters", "blocks") if k in config}
        alpha, filters, blocks = (
            float(config.get(k, d)) for k, d in (("alpha", 2), ("filters", 16), ("blocks", 4))
        )
        size = math.prod(shape) * max(1.0, alpha) * math.prod(shape)
        if config["network"] == "rescnn":
            size = max(float(math.prod(shape)), filters**2 * 3 ** len(shape) * (2 * blocks + 1))
        if min(shape) < 1 or min(alpha, filters) <= 0 or blocks < 0 or not 0 < size <= MAX_PARAMETERS:
            raise ValueError(f"a wavefunction of shape {shape} with {size:.3g} parameters is not believed")
        n_spins = math.prod(shape)
        sectors, pairs = space_of(config)
        named = [i for sector in sectors for i in sector.sites]
        if pairs is not None:
            named += pairs.ravel().tolist()
        if any(not 0 <= i < n_spins for i in named):
            raise ValueError(f"its sectors name spins outside {n_spins}")
        model = network(config["network"], shape, **options)
        model.load_state_dict(state["parameters"])
    except (KeyError, TypeError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} holds no wavefunction: {error}") from error
    return model, config


def machine_of_netket(parameters: dict[str, Any]) -> nn.Module:
    """A Boltzmann machine from the parameters of ``netket.models.RBM`` (real), given as nested mappings of
    arrays.

    Args:
        parameters: ``{"Dense": {"kernel": [spins, hidden], "bias": [hidden]}, "visible_bias": [spins]}``.

    Raises:
        ValueError: other names or shapes, or complex parameters.
    """
    try:
        kernel = np.asarray(parameters["Dense"]["kernel"])
        bias = np.asarray(parameters["Dense"].get("bias", np.zeros(kernel.shape[1])))
        visible = parameters.get("visible_bias")
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ValueError(
            "these are not the parameters of netket.models.RBM: Dense/kernel is missing"
        ) from error
    if np.iscomplexobj(kernel):
        raise ValueError("the machine is complex; build an AmplitudePhase from its parts")
    if kernel.ndim != 2 or bias.shape != kernel.shape[1:]:
        raise ValueError(
            f"Dense has shapes {kernel.shape} and {bias.shape}; expected [spins, hidden] and [hidden]"
        )
    model = RBM(len(kernel), kernel.shape[1] / len(kernel), visible_bias=visible is not None)
    with torch.no_grad():
        model.weight.copy_(torch.from_numpy(kernel.astype(np.float64)))
        model.hidden_bias.copy_(torch.from_numpy(bias.astype(np.float64)))
        if visible is not None and model.visible_bias is not None:
            model.visible_bias.copy_(torch.from_numpy(np.asarray(visible, dtype=np.float64)))
    return model
