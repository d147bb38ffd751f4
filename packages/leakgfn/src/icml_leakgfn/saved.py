"""A trained network in one safetensors file: weights, optimizer, random state, replayed trajectories,
options.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from icml_core.checkpoint import load_state, save_state, stored_identity

if TYPE_CHECKING:
    from icml_leakgfn.gfn import LeakGFN

KIND = "icml-leakgfn"
# What a file keeps of the construction; the reward and the environment are given anew.
OPTIONS = frozenset(
    [
        "loss",
        "alpha",
        "gamma",
        "eps",
        "budget_aware",
        "budgets",
        "reach_mask",
        "explore",
        "uniform",
        "walk",
        "replay",
        "replay_size",
        "score_all",
        "cut_reward",
        "anchor",
        "uniform_backward",
        "hindsight",
        "optimizer",
        "lr",
        "decay_steps",
        "hidden",
        "layers",
        "message_steps",
        "stop_on_collapse",
        "seed",
    ]
)
_MAY_DIFFER = ("device", "stop_on_collapse", "debug", "decay_steps")


def identity(gfn: LeakGFN) -> dict[str, Any]:
    """The environment and how the object was constructed, as JSON values."""
    env = gfn.env
    signature = env.signature() if hasattr(env, "signature") else {"world": type(env).__name__}
    known: dict[str, Any] = json.loads(json.dumps({"env": signature, "options": gfn.options}))
    return known


def save(gfn: LeakGFN, path: Path) -> None:
    """Write everything that is needed to go on."""
    state = {
        "net": dict(gfn.net.state_dict()),
        "log_z": gfn.log_z.detach(),
        "optimizer": gfn.optimizer.state_dict(),
        "z_optimizer": gfn.z_optimizer.state_dict(),
        "generator": gfn.generator.get_state(),
        "step": gfn.step,
        "log_eps": gfn.log_eps,
        "log_least": gfn.log_least,
        "buffer": gfn.buffer.state(),
        "history": gfn.history_,
        "recent": gfn.recent_,
        "collapsed": gfn.collapsed_,
    }
    save_state(path, state, kind=KIND, identity=identity(gfn))


def restore(gfn: LeakGFN, path: Path) -> None:
    """Take up what :func:`save` wrote.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no such file of this kind, a damaged one, or of another environment or construction.
    """
    may = tuple(f"options.{name}" for name in _MAY_DIFFER)
    state = load_state(path, kind=KIND, identity=identity(gfn), may_differ=may, device=gfn.device)
    try:
        gfn.net.load_state_dict(state["net"])
        with torch.no_grad():
            gfn.log_z.copy_(state["log_z"])
        gfn.optimizer.load_state_dict(state["optimizer"])
        gfn.z_optimizer.load_state_dict(state["z_optimizer"])
        gfn.generator.set_state(state["generator"].cpu())
        gfn.step, gfn.log_eps, gfn.log_least = state["step"], state["log_eps"], state["log_least"]
        gfn.buffer.load(state["buffer"])
        gfn.history_ = list(state["history"])
        gfn.recent_ = [tuple(item) for item in state["recent"]]
        gfn.collapsed_ = state["collapsed"]
    except (KeyError, RuntimeError, TypeError) as error:
        raise ValueError(f"{path} does not hold what this object needs: {error}") from error


def saved_options(path: Path, known: frozenset[str]) -> dict[str, Any]:
    """The options with which the object in a file was constructed; those alone that are ``known``.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no file of this kind.
    """
    try:
        options = stored_identity(path, kind=KIND)["options"]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no file of a trained flow network: {error}") from error
    if not isinstance(options, dict):
        raise ValueError(f"{path}: the options in it are damaged")
    return {name: value for name, value in options.items() if name in known}
