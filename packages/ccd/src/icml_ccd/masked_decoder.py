"""A model with its rule and settings, called as transformers' ``generate`` is."""

from __future__ import annotations

from typing import Any

from jaxtyping import Int, Int64
from torch import Tensor

from icml_ccd.decoding import decode
from icml_ccd.model_calls import Model
from icml_ccd.trace import DecodeOutput


class MaskedDecoder:
    """``decode`` with its arguments kept.

    Args:
        model: as for ``decode``.
        rule: as for ``decode``.
        options: as for ``decode``.

    Example:
        ``MaskedDecoder(model, "ccd_ds", eps=0.2).generate(ids, max_new_tokens=64)``
    """

    def __init__(self, model: Model, rule: Any = "ccd_ds", **options: Any) -> None:
        self.model, self.rule, self.options = model, rule, options
        self.last: DecodeOutput | None = None

    def generate(
        self,
        input_ids: Int[Tensor, "batch prompt"],
        max_new_tokens: int = 128,
        attention_mask: Int[Tensor, "batch prompt"] | None = None,
        **options: Any,
    ) -> Int64[Tensor, "batch all"]:
        """Prompt and response; ``last`` holds the trace."""
        given = {**self.options, **options}
        self.last = decode(
            self.model, input_ids, max_new_tokens, rule=self.rule, attention_mask=attention_mask, **given
        )
        return self.last.sequences
