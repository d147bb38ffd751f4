"""Tiny instances of the decoder and of a training, for the contract tests."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from icml_core import Example

if TYPE_CHECKING:
    from torch import Tensor

    from icml_sso.configurations import MoEConfig, TransformerConfig
    from icml_sso.pretraining import Pretraining


def transformer(seed: int) -> Example:
    """Two layers, the second with experts: logits of every place; a token beyond the vocabulary is
    refused."""
    import torch

    from icml_sso.configurations import MoEConfig
    from icml_sso.transformer import Transformer

    def check(logits: Tensor) -> None:
        assert logits.shape == (4, 8, 16)
        assert bool(torch.isfinite(logits).all())

    return Example(
        build=lambda: Transformer(_config(2, MoEConfig(4, 2, 8, 8)), seed=seed),
        inputs=lambda: torch.randint(0, 16, (4, 8), generator=torch.Generator().manual_seed(seed)),
        call=lambda model, tokens: model(tokens).logits,
        check=check,
        bad=lambda: torch.full((4, 8), 16),
    )


def pretraining(seed: int) -> Example:
    """Six steps on a text that counts; stopped after three and resumed it is the same training."""
    import numpy as np

    from icml_sso.corpus import TokenCorpus
    from icml_sso.pretraining import Pretraining, PretrainingOptions

    def build() -> Pretraining:
        text = TokenCorpus([np.arange(400) % 16], vocab_size=16)
        return Pretraining(_config(1), text, PretrainingOptions(lr=5e-2, steps=6, batch=4), seed=seed)

    def resumed(training: Pretraining, inputs: None, directory: Path) -> list[dict[str, float]]:
        file = directory / "half.safetensors"
        training.fit(until=3, checkpoint=file)
        return build().fit(checkpoint=file, resume=True).rows

    def check(rows: list[dict[str, float]]) -> None:
        assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
        assert rows[-1]["validation"] < rows[0]["loss"]

    return Example(
        build=build,
        inputs=lambda: None,
        call=lambda training, inputs: training.fit().rows,
        check=check,
        resumed=resumed,
    )


def _config(layers: int, moe: MoEConfig | None = None) -> TransformerConfig:
    from icml_sso.configurations import TransformerConfig

    return TransformerConfig(
        vocab_size=16,
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        intermediate_size=24,
        context=8,
        moe=moe,
    )
