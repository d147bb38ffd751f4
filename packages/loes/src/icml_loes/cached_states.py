"""States of real models on a text task, computed once and kept in the user's cache under a hash of what they
are of."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from icml_loes.collector import Collected, collect_states

RECIPE = 3
"""Version of what is computed: another number computes it again."""
BATCH = 32
MODELS = ("minilm", "smollm2")


def text_model(name: str) -> tuple[Any, Any]:
    """A model without its head, and its tokenizer: ``"minilm"`` (all-MiniLM-L6-v2), or what ``icml_lm.load``
    takes.

    Raises:
        NeedsError: icml-lm, or the distribution with the weights, is not installed.
        ValueError: an unknown name.
    """
    from icml_core.errors import NeedsError, install_command

    try:
        from icml_lm import load
        from icml_lm.embed import find_minilm
    except ImportError as error:
        raise NeedsError("icml-loes[text]", hint=install_command("icml-loes[text]")) from error
    if name == "minilm":
        try:
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise NeedsError("icml-loes[text]", hint=install_command("icml-loes[text]")) from error
        folder = find_minilm()
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        return AutoModel.from_pretrained(folder, local_files_only=True, dtype=torch.float32).eval(), tokenizer
    model, tokenizer = load(name)
    if getattr(tokenizer, "pad_token", "") is None:
        tokenizer.pad_token = tokenizer.eos_token
    return getattr(model, "model", model), tokenizer


def text_states(
    name: str, texts: tuple[str, ...], *, max_length: int, pooling: str = "mean", curvature: bool = True
) -> Collected:
    """States of every block (before the final norm), kept in the cache.

    Args:
        name: of the model.
        texts: which are read in this order.
        max_length: tokens of a text.
        pooling: of tokens.
        curvature: also of token paths.

    Raises:
        NeedsError: see ``text_model``.
    """
    from icml_core.errors import NeedsError, install_command

    try:
        from icml_lm.artefacts import artefact
    except ImportError as error:
        raise NeedsError("icml-loes[text]", hint=install_command("icml-loes[text]")) from error
    key = json.dumps([RECIPE, name, list(texts), max_length, pooling, curvature, _weights_version(name)])
    version = hashlib.sha256(key.encode()).hexdigest()[:16]

    def build(folder: Path) -> None:
        from safetensors.torch import save_file

        model, tokenizer = text_model(name)
        batches = [list(texts[i : i + BATCH]) for i in range(0, len(texts), BATCH)]
        found = collect_states(
            model, batches, tokenizer=tokenizer, max_length=max_length, pooling=pooling, curvature=curvature
        )
        if found.dropped:
            raise ValueError(f"texts {found.dropped[:5]} have no finite states")
        tensors = {"states": found.stacked().contiguous()}
        if found.curvatures is not None:
            tensors["curvatures"] = found.curvatures.contiguous()
        save_file(tensors, folder / "states.safetensors", {"names": json.dumps(found.names)})

    folder = artefact(f"loes-states-{name}", version, build)
    return _read(folder / "states.safetensors", pooling)


def _read(path: Path, pooling: str) -> Collected:
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        names = json.loads(file.metadata()["names"])
        states: Float[Tensor, "n layers dim"] = file.get_tensor("states")
        bends = file.get_tensor("curvatures") if "curvatures" in file.keys() else None  # noqa: SIM118
    return Collected(list(states.unbind(1)), names, None, [], pooling, bends)


def _weights_version(name: str) -> str:
    """What the weights are, so that another model under the same name is computed anew."""
    from icml_lm.artefacts import digest

    if name == "minilm":
        from icml_lm.embed import find_minilm

        return digest(find_minilm() / "model.safetensors")
    if name == "smollm2":
        from icml_lm.smollm2 import find_smollm2

        return digest(find_smollm2())
    return name
