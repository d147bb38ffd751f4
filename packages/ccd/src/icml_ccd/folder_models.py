"""Masked diffusion models of transformers from a local folder: LLaDA, Dream and their kin.

Their code comes with the weights and runs only where the user says ``trust_remote_code=True``. What
``decode`` must know of a family (mask token, alignment of logits, form of the attention mask) is kept here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from icml_core.errors import NeedsError, install_command
from jaxtyping import Float, Int
from torch import Tensor


class Family(NamedTuple):
    """What a family of models agrees on.

    Attributes:
        mask_id: the mask token, where the configuration does not say one; None where it must.
        shift_logits: whether logits at a position are for the next token; None where it must be measured.
        pair_mask: whether the attention mask says for every pair of tokens whether one sees the other.
    """

    mask_id: int | None
    shift_logits: bool | None
    pair_mask: bool


FAMILIES = {
    "llada": Family(126336, False, False),
    "llada_moe": Family(156895, False, False),
    "Dream": Family(151666, True, True),
    "dream": Family(151666, True, True),
}
"""By ``model_type``: ML-GSAI/LLaDA and DreamLM/Dream, as their configurations and generation code say."""


class FolderModel:
    """A model of a folder as ``decode`` calls it.

    Attributes:
        model: transformers' model.
        tokenizer: transformers' tokenizer, or None.
        mask_id, eos_id, shift_logits: what the family or the configuration says.
    """

    def __init__(
        self, model: Any, tokenizer: Any, family: Family, mask_id: int | None, eos_id: int | None
    ) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.mask_id, self.eos_id, self.shift_logits = mask_id, eos_id, family.shift_logits
        self._pair_mask = family.pair_mask

    def __call__(
        self,
        ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        position_ids: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocab"]:
        """Logits of every position."""
        inputs: dict[str, Any] = {}
        if attention_mask is not None:
            seen = attention_mask.bool()
            inputs["attention_mask"] = (
                seen[:, None, :, None] & seen[:, None, None, :] if self._pair_mask else attention_mask
            )
            if self._pair_mask:
                inputs["position_ids"] = position_ids
        return self.model(ids, **inputs).logits


def load_mdm(
    folder: str | Path,
    *,
    trust_remote_code: bool = False,
    dtype: torch.dtype = torch.bfloat16,
    device: str | torch.device = "cpu",
) -> FolderModel:
    """A masked diffusion model from a local folder; nothing is downloaded.

    Args:
        folder: with ``config.json``, weights, and the model's code where transformers does not have it.
        trust_remote_code: whether code in that folder may run; read it first.
        dtype: of the weights.
        device: where they go.

    Raises:
        NeedsError: transformers is not installed.
        ValueError: the folder holds no model, or code that may not run.

    Example:
        ``model = load_mdm("LLaDA-8B-Instruct", trust_remote_code=True, device="cuda")``
    """
    folder = Path(folder).expanduser()
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        kind = str(config["model_type"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder} holds no model: no config.json names a model_type") from error
    if "auto_map" in config and not trust_remote_code:
        raise ValueError(
            f"{folder} brings the model's code along ({', '.join(config['auto_map'].values())}); read it, "
            "and say trust_remote_code=True to run it"
        )
    try:
        from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise NeedsError("transformers", hint=install_command("icml-ccd[hf]")) from error
    listed = config.get("auto_map", {})
    loader = AutoModel if "AutoModel" in listed or not listed else AutoModelForCausalLM
    options = {"local_files_only": True, "trust_remote_code": trust_remote_code}
    model = loader.from_pretrained(folder, dtype=dtype, **options).to(device).eval()
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    except (OSError, ValueError, KeyError):
        tokenizer = None  # a folder of weights alone: ids go in and out
    family = FAMILIES.get(kind, Family(None, None, False))
    mask_id = config.get("mask_token_id", family.mask_id)
    return FolderModel(model, tokenizer, family, mask_id, config.get("eos_token_id"))
