"""Models by name, and what keeps them fixed: freezing, frozen copies, and a hash of the weights."""

from __future__ import annotations

import copy
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import nn

from icml_lm.artefacts import base, base_names
from icml_lm.memory import check_memory

ModelT = TypeVar("ModelT", bound=nn.Module)


class Loaded(NamedTuple):
    """A model, in evaluation, and its tokenizer."""

    model: Any
    tokenizer: Any


def load(
    spec: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
    attn: str = "sdpa",
) -> Loaded:
    """A model and its tokenizer, from what is on this machine; nothing is downloaded.

    Args:
        spec: ``"smollm2"``; ``"tiny:NAME"``, a trained base; ``"hf:PATH"`` or a path: a folder that
            transformers or ``TinyLM.save`` wrote, or a ``.gguf`` file.
        dtype: of the weights. Loading needs their size in this type and little more.
        device: where they go; the CPU by default.
        attn: ``"sdpa"``, ``"eager"`` or another implementation that transformers knows.

    Raises:
        ValueError: a spec of another form; an unknown base; a file that is no model.
        FileNotFoundError: the path, or the distribution that carries SmolLM2, is not there.
        MemoryError: the weights do not fit; names the bytes needed.
    """
    device = torch.device("cpu" if device is None else device)
    text = str(spec)
    if text == "smollm2":
        from icml_lm.smollm2 import load_smollm2

        return Loaded(*load_smollm2(dtype=dtype, device=device, attn=attn))
    if text.startswith("tiny:"):
        return Loaded(*load_folder(base(text.removeprefix("tiny:")), dtype=dtype, device=device, attn=attn))
    path = Path(text.removeprefix("hf:")).expanduser()
    if not path.exists():
        forms = f"'smollm2', 'tiny:NAME' ({', '.join(base_names())}), 'hf:PATH' or an existing path"
        if text.startswith("hf:") or isinstance(spec, Path) or path.suffix or len(path.parts) > 1:
            raise FileNotFoundError(f"there is no model at {path}; a model is given as {forms}")
        raise ValueError(f"{text!r} names no model; say {forms}")
    if path.suffix.lower() == ".gguf":
        from icml_lm.gguf_weights import load_gguf

        return Loaded(*load_gguf(path, dtype=dtype, device=device, attn=attn))
    if not path.is_dir():
        raise ValueError(f"{path} is neither a folder nor a .gguf file")
    return Loaded(*load_folder(path, dtype=dtype, device=device, attn=attn))


def load_folder(
    folder: Path, *, dtype: torch.dtype, device: torch.device | str, attn: str = "sdpa"
) -> tuple[Any, Any]:
    """Model and tokenizer of a folder that transformers or ``TinyLM.save`` wrote.

    Raises:
        ValueError: the folder has no ``config.json``.
        MemoryError: the weights do not fit.
    """
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8"))["model_type"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} holds no model: its config.json is missing or names no model_type"
        ) from error
    check_memory(_weight_bytes(folder, dtype), device, f"{folder.name} in {dtype}")
    if kind == "tiny":
        from icml_lm.tiny import TinyLM
        from icml_lm.tokenizers import load_tokenizer

        model = TinyLM.load(folder, dtype=dtype).to(device)
        model.set_attention(attn)
        saved = folder / "tokenizer.json"
        return model, load_tokenizer(saved) if saved.is_file() else None
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, attn_implementation=attn, local_files_only=True, trust_remote_code=False
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return model.to(device).eval(), tokenizer


def freeze(model: ModelT) -> ModelT:
    """Take the gradients off all parameters and put the model in evaluation; returns it."""
    for parameter in model.parameters():
        parameter.requires_grad_(False)
        parameter.grad = None
    return model.eval()


def frozen_copy(model: ModelT) -> ModelT:
    """A frozen model with weights of its own; the given one stays as it is."""
    return freeze(copy.deepcopy(model))


def weight_hash(model: nn.Module) -> str:
    """SHA-256 over names, types, shapes and bits of all parameters and persistent buffers."""
    found = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        value = tensor.detach().cpu().contiguous()
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return found.hexdigest()


def _weight_bytes(folder: Path, dtype: torch.dtype) -> int:
    """Bytes of the safetensors in a folder once cast; 0 where there are none."""
    total = 0
    for path in sorted(folder.glob("*.safetensors")):
        with path.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if not 0 < size <= path.stat().st_size:
                raise ValueError(f"{path} is no safetensors file: its header would take {size} bytes")
            header = json.loads(stream.read(size))
        for name, entry in header.items():
            if name != "__metadata__":
                count = 1
                for extent in entry["shape"]:
                    count *= extent
                total += count * dtype.itemsize
    return total
