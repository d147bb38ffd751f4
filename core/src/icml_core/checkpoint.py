"""The whole state of a long job in one safetensors file: model, optimizer, record. Nothing is ever unpickled.

Any tree of dicts, lists, tuples, numbers, strings and tensors goes in and comes out bit for bit; tensors are
stored by name, the tree as JSON in the file's metadata. A file says what it is the state of, and refuses to
continue anything else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from icml_core.errors import NeedsError, install_command
from icml_core.run import write_atomically

if TYPE_CHECKING:
    import torch
    from torch import Tensor

FORMAT = 1
_DEEPEST = 32  # nesting that is followed; states of optimizers have four levels


def save_state(path: Path, state: dict[str, Any], *, kind: str, identity: dict[str, Any]) -> None:
    """Write the state, whole or not at all.

    Args:
        path: the file.
        state: a tree.
        kind: whose state it is, such as ``"icml-sso-training"``.
        identity: what is trained on what: model, options, data, as JSON values.

    Raises:
        NeedsError: safetensors is not installed.
        TypeError: something in the tree that is neither a container, number, string, None nor tensor.
    """
    save_file = _safetensors().torch.save_file
    tensors: dict[str, Tensor] = {}
    tree = _pack(state, tensors, "")
    metadata = {
        "kind": kind,
        "format": str(FORMAT),
        "identity": json.dumps(identity),
        "tree": json.dumps(tree),
    }
    with write_atomically(path) as temporary:
        save_file(tensors, temporary, metadata)


def load_state(
    path: Path,
    *,
    kind: str,
    identity: dict[str, Any],
    may_differ: tuple[str, ...] = (),
    device: str | torch.device = "cpu",
) -> dict[str, Any]:
    """Read a state that belongs to what ``identity`` describes.

    Args:
        path: the file.
        kind: as in :func:`save_state`.
        identity: as in :func:`save_state`.
        may_differ: dotted names of entries that may have changed.
        device: where the tensors go.

    Raises:
        NeedsError: safetensors is not installed.
        FileNotFoundError: there is no such file.
        ValueError: not such a file, a newer format, or another training (the differing entries are shown).
    """
    with _opened(path, device) as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 not a dict
    written, tree = _described(path, metadata, kind)
    different = differences(written, json.loads(json.dumps(identity)), may_differ)
    if different:
        raise ValueError(f"{path} belongs to another training: {'; '.join(different)}")
    try:
        state = _unpack(tree, tensors, 0)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path}: its tree is damaged: {error}") from error
    if not isinstance(state, dict):
        raise ValueError(f"{path}: its tree is {type(state).__name__}, not a dict")
    return state


def stored_identity(path: Path, *, kind: str) -> Any:
    """The ``identity`` that a file was saved with; no tensor is read.

    Args:
        path: the file.
        kind: as in :func:`save_state`.

    Raises:
        NeedsError: safetensors is not installed.
        FileNotFoundError: there is no such file.
        ValueError: not such a file, or a newer format.
    """
    with _opened(path) as file:
        metadata = file.metadata() or {}
    return _described(path, metadata, kind)[0]


def differences(old: Any, new: Any, may_differ: tuple[str, ...] = (), where: str = "") -> list[str]:
    """Entries in which two descriptions differ, as text."""
    if isinstance(old, dict) and isinstance(new, dict):
        return [
            line
            for key in sorted(old.keys() | new.keys())
            for line in differences(
                old.get(key), new.get(key), may_differ, f"{where}.{key}" if where else str(key)
            )
        ]
    return [] if where in may_differ or old == new else [f"{where} was {old!r}, now {new!r}"]


@contextmanager
def _opened(path: Path, device: str | torch.device = "cpu") -> Iterator[Any]:
    """The open file; whatever goes wrong inside is a ValueError that names it."""
    safetensors = _safetensors()
    if not path.is_file():
        raise FileNotFoundError(f"no checkpoint {path}")
    try:
        with safetensors.safe_open(path, framework="pt", device=str(device)) as file:
            yield file
    except Exception as error:
        raise ValueError(f"{path} is no safetensors file: {error}") from error


def _described(path: Path, metadata: dict[str, str], kind: str) -> tuple[Any, Any]:
    """The identity and the tree in a file's metadata."""
    if metadata.get("kind") != kind:
        raise ValueError(f"{path} holds {metadata.get('kind')!r}, not the state of a {kind}")
    try:
        version = int(metadata["format"])
        identity, tree = json.loads(metadata["identity"]), json.loads(metadata["tree"])
    except (KeyError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its metadata are damaged: {error}") from error
    if version > FORMAT:
        raise ValueError(f"{path} has format {version}; this version reads up to {FORMAT}")
    return identity, tree


def _safetensors() -> Any:
    try:
        import safetensors.torch
    except ImportError as error:
        raise NeedsError("safetensors", hint=install_command("safetensors")) from error
    return safetensors


def _pack(value: Any, tensors: dict[str, Tensor], where: str) -> Any:
    """JSON with a tag beside each container, since JSON knows neither tuples nor keys that are numbers."""
    import torch

    if isinstance(value, torch.Tensor):
        tensors[where] = value.detach().to("cpu", copy=True).contiguous()
        return {"tensor": where}
    if isinstance(value, dict):
        if any(not isinstance(key, str | int) for key in value):
            raise TypeError(f"{where}: keys must be strings or integers, got {list(value)[:5]}")
        return {"dict": [[key, _pack(item, tensors, f"{where}/{key}")] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        packed = [_pack(item, tensors, f"{where}/{index}") for index, item in enumerate(value)]
        return {"list" if isinstance(value, list) else "tuple": packed}
    if isinstance(value, torch.dtype):
        return {"dtype": str(value).removeprefix("torch.")}
    if value is None or isinstance(value, bool | int | float | str):
        return {"value": value}
    raise TypeError(f"{where} is a {type(value).__name__}, which a checkpoint does not hold")


def _unpack(packed: Any, tensors: dict[str, Tensor], depth: int) -> Any:
    import torch

    if depth > _DEEPEST:
        raise ValueError(f"nested deeper than {_DEEPEST}")
    if not isinstance(packed, dict):
        raise ValueError(f"{packed!r} has no tag")
    ((tag, value),) = packed.items()
    if tag == "tensor":
        return tensors[value]
    if tag == "dict":
        return {key: _unpack(item, tensors, depth + 1) for key, item in value}
    if tag in ("list", "tuple"):
        items = [_unpack(item, tensors, depth + 1) for item in value]
        return items if tag == "list" else tuple(items)
    if tag == "dtype":
        found = getattr(torch, value, None)
        if not isinstance(found, torch.dtype):
            raise ValueError(f"{value!r} is no dtype")
        return found
    if tag == "value":
        return value
    raise ValueError(f"unknown tag {tag!r}")
