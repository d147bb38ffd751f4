"""The blocks of a network: found by name, counted against its configuration, and the norm after them.

The last entry of ``hidden_states`` is after the final norm in some models and before it in others. What a
block returns is unambiguous, so that layers are read by hooks; the normed state is a candidate of its own, on
request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

LISTS = ("layers", "layer", "blocks", "block", "h", "resblocks", "encoder_layers", "decoder_layers")
NORMS = (
    "norm", "final_norm", "ln_f", "final_layer_norm", "final_layernorm", "norm_f", "layernorm", "ln_final",
    "ln_post",
    "post_layernorm", "last_layernorm", "layer_norm", "fc_norm",
)  # fmt: skip
COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers", "encoder_layers", "depth")
DECODER_COUNTS = ("num_decoder_layers", "decoder_layers")


@dataclass(frozen=True)
class Blocks:
    """Blocks of one stack.

    Attributes:
        names: of the blocks, as ``named_modules`` has them, in order.
        list_name: of the list that holds them; None where they were named one by one.
        norm: name of the norm after the last, where there is one.
    """

    names: list[str]
    list_name: str | None = None
    norm: str | None = None


def find_blocks(model: nn.Module, layers: str | Sequence[str] | None = None) -> Blocks:
    """The blocks of a model.

    Args:
        model: any module.
        layers: names of modules to read, one by one; or the name, or an unambiguous part of the name, of the
            list that holds the blocks, such as ``"encoder"`` where there is a decoder too.

    Raises:
        ValueError: no list of blocks, or several (they are named); a module that does not exist; another
            number of blocks than the configuration says.
    """
    if layers is not None and not isinstance(layers, str):
        names = [str(n) for n in layers]
        known = dict(model.named_modules())
        missing = [n for n in names if n not in known]
        if missing or not names:
            raise ValueError(f"{type(model).__name__} has no module {missing or names}; see named_modules()")
        return Blocks(names)
    found = _stacks(model)
    if layers is not None:
        chosen = [n for n in found if n == layers] or [n for n in found if layers in n.split(".")]
        chosen = chosen or [n for n in found if layers in n]
        if len(chosen) != 1:
            raise ValueError(
                f"layers={layers!r} names {len(chosen)} of the lists of blocks of {type(model).__name__}: "
                f"{', '.join(found) or 'none'}"
            )
        found = chosen
    if not found:
        raise ValueError(
            f"{type(model).__name__} has no list of blocks that is known by its name; give layers= as module "
            "names "
            "to read"
        )
    if len(found) > 1:
        raise ValueError(
            f"{type(model).__name__} has several lists of blocks: {', '.join(found)}; choose one by layers="
        )
    return _described(model, found[0])


def _described(model: nn.Module, name: str) -> Blocks:
    modules = dict(model.named_modules())
    blocks = [f"{name}.{child}" for child, _ in modules[name].named_children()]
    expected = _expected_count(model, name)
    if expected and len(blocks) not in expected:
        raise ValueError(
            f"{name} holds {len(blocks)} blocks but the configuration says {sorted(expected)}; give layers= "
            "as module "
            "names to read"
        )
    parent = name.rpartition(".")[0]
    norm = None
    while norm is None:
        there = dict(modules[parent].named_children())
        norm = next((n for n in NORMS if n in there and _is_norm(there[n])), None)
        if norm is not None:
            return Blocks(blocks, name, f"{parent}.{norm}" if parent else norm)
        if not parent:
            return Blocks(blocks, name)
        parent = parent.rpartition(".")[0]
    return Blocks(blocks, name)


def _stacks(model: nn.Module) -> list[str]:
    """Lists of at least two modules of one class under a known name, the outermost of nested ones."""
    found: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or name.rpartition(".")[2] not in LISTS:
            continue
        kinds = {type(child) for child in module.children()}
        if len(kinds) != 1 or not any(True for _ in next(iter(module.children())).parameters()):
            continue
        if not any(name.startswith(outer + ".") for outer in found):
            found.append(name)
    counted = [n for n in found if (e := _expected_count(model, n)) and len(model.get_submodule(n)) in e]  # type: ignore[arg-type]
    longer = [n for n in found if len(model.get_submodule(n)) > 1]  # type: ignore[arg-type]
    return counted or longer or found


def _expected_count(model: nn.Module, name: str) -> set[int]:
    """Numbers of blocks that the configurations of the model and its parts tell, that belong to this list."""
    found: set[int] = set()
    path = ""
    for part in ("", *name.split(".")):
        path = f"{path}.{part}".strip(".")
        config = getattr(model.get_submodule(path), "config", None)
        if config is None:
            continue
        keys = DECODER_COUNTS if "decoder" in name.split(".") and _has(config, DECODER_COUNTS) else COUNTS
        values = [getattr(config, k, None) for k in keys]
        # The innermost configuration that says something is the list's own.
        found = {v for v in values if isinstance(v, int) and not isinstance(v, bool)} or found
    return found


def _has(config: Any, keys: Sequence[str]) -> bool:
    return any(isinstance(getattr(config, k, None), int) for k in keys)


def _is_norm(module: nn.Module) -> bool:
    return "norm" in type(module).__name__.lower()
