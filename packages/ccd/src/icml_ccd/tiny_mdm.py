"""A small masked diffusion language model: a bidirectional Transformer that predicts masked tokens.

The network is icml_lm's TinyLM without the causal mask. Positions are rotary; a learned vector for every
position can be added where a task is about places (a sudoku's cells).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from icml_core.run import write_json
from icml_lm import KeyValueCache, TinyConfig, TinyLM
from jaxtyping import Float, Int
from torch import Tensor, nn

FILE = "mdm.json"


@dataclass(frozen=True)
class MDMConfig:
    """Sizes and conventions of a masked diffusion model.

    Attributes:
        vocab: number of tokens, the mask among them.
        mask_id: the mask token.
        d, layers, heads, hidden: of the Transformer (``icml_lm.TinyConfig``).
        initializer_range: standard deviation of the first weights.
        positions: so many positions have a learned vector; 0 for rotary positions alone.
        shift_logits: whether logits at a position are for the next token, as in models made from
            left-to-right ones (Dream).
        eos_id: end token, where there is one.
        block_length: where given, a position sees its own block and those before it, so that keys and values
            of earlier blocks can be kept exactly; None lets everything see everything.
        prompt_length: length of the first block, with ``block_length``.
    """

    vocab: int
    mask_id: int
    d: int = 64
    layers: int = 2
    heads: int = 4
    hidden: int | None = None
    initializer_range: float = 0.1
    positions: int = 0
    shift_logits: bool = False
    eos_id: int | None = None
    block_length: int | None = None
    prompt_length: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.mask_id < self.vocab:
            raise ValueError(f"mask_id={self.mask_id} is none of the {self.vocab} tokens")
        if self.positions < 0 or self.prompt_length < 0:
            raise ValueError(
                f"positions={self.positions} and prompt_length={self.prompt_length} must not be negative"
            )
        if self.block_length is not None and self.block_length < 1:
            raise ValueError(f"block_length={self.block_length} must be at least 1, or None")


class TinyMDM(nn.Module):
    """A masked diffusion model: ids with masks to logits of every position.

    Args:
        config: its sizes.
        seed: of the first weights.

    Example:
        >>> model = TinyMDM(MDMConfig(vocab=11, mask_id=10, d=16, heads=2))
        >>> model(torch.tensor([[1, 10, 10]])).shape
        torch.Size([1, 3, 11])
    """

    def __init__(self, config: MDMConfig, *, seed: int = 0) -> None:
        super().__init__()
        sizes = {"d": config.d, "layers": config.layers, "heads": config.heads, "hidden": config.hidden}
        sizes["initializer_range"] = config.initializer_range
        self._set(config, TinyLM(TinyConfig(vocab=config.vocab, causal=False, **sizes), seed=seed))
        if config.positions:
            generator = torch.Generator().manual_seed(seed + 1)
            drawn = torch.randn(config.positions, config.d, generator=generator, dtype=torch.float32)
            self.place = nn.Parameter(drawn * self.lm.config.initializer_range)

    def _set(self, config: MDMConfig, lm: TinyLM) -> None:
        self.config, self.lm = config, lm
        self.register_parameter("place", None)
        self._kept: KeyValueCache | None = None
        self.cached_tokens = 0

    @property
    def mask_id(self) -> int:
        """The mask token."""
        return self.config.mask_id

    @property
    def eos_id(self) -> int | None:
        """The end token, or None."""
        return self.config.eos_id

    @property
    def shift_logits(self) -> bool:
        """Whether logits at a position are for the next token."""
        return self.config.shift_logits

    def forward(
        self,
        ids: Int[Tensor, "batch length"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        position_ids: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "batch length vocab"]:
        """Logits of every position."""
        return self.lm.lm_head(self.hidden(ids, attention_mask, position_ids))

    def forward_rows(
        self,
        ids: Int[Tensor, "batch length"],
        rows: Int[Tensor, " k"],
        attention_mask: Int[Tensor, "batch length"] | None = None,
        position_ids: Int[Tensor, "batch length"] | None = None,
    ) -> Float[Tensor, "k vocab"]:
        """Logits of chosen rows of the flattened batch: the head does not see the others."""
        return self.lm.lm_head(self.hidden(ids, attention_mask, position_ids).flatten(0, 1)[rows])

    def forward_cached(
        self, ids: Int[Tensor, "batch length"], start: int, stop: int, refresh: bool
    ) -> Float[Tensor, "batch span vocab"]:
        """Logits of positions start to stop - 1, with keys and values of all before ``start`` kept.

        A call with ``refresh`` computes them. With ``block_length`` they cannot change later, so that the
        result is exact. Without it they were computed with the response as it stood at the refresh, which is
        an approximation (Fast-dLLM's prefix cache, arXiv 2505.22618).
        """
        exact = self.config.block_length is not None
        end = stop if exact else ids.shape[1]
        if refresh or self._kept is None:
            self._kept = self.lm.new_cache(end)
            hidden = self._run(ids[:, :end], 0, self._kept)[:, start:]
        else:
            hidden = self._run(ids[:, start:end], start, self._kept)
            self.cached_tokens += ids.shape[0] * start
        self.cached_tokens += ids.shape[0] * (ids.shape[1] - end)
        self._kept.crop(start)
        return self.lm.lm_head(hidden[:, : stop - start])

    def hidden(
        self,
        ids: Int[Tensor, "batch length"],
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Float[Tensor, "batch length d"]:
        """The residual stream before the head."""
        if self.config.block_length is not None:
            if attention_mask is not None:
                raise ValueError("a model with blocks takes no attention_mask; its prompts have one length")
            return self._run(ids, 0, None)
        embedded = self._embedded(ids, position_ids, 0)
        out = self.lm.model(inputs_embeds=embedded, attention_mask=attention_mask, position_ids=position_ids)
        return out.last_hidden_state

    def _run(self, ids: Tensor, past: int, cache: KeyValueCache | None) -> Tensor:
        """Hidden states of positions from ``past`` on, with those before in the cache."""
        length = ids.shape[1]
        seen = None
        if self.config.block_length is not None:
            block = self._block_of(past + length, ids.device)
            seen = (block[past:, None] >= block[None])[None, None]
        out = self.lm.model(
            inputs_embeds=self._embedded(ids, None, past), attention_mask=seen, past_key_values=cache
        )
        return out.last_hidden_state

    def _block_of(self, length: int, device: torch.device) -> Tensor:
        behind = torch.arange(length, device=device) - self.config.prompt_length
        return torch.where(behind < 0, -1, behind // self.config.block_length)

    def _embedded(self, ids: Tensor, position_ids: Tensor | None, past: int) -> Tensor:
        embedded = self.lm.model.embed_tokens(ids)
        if self.place is None:
            return embedded
        last = past + ids.shape[1]
        if last > len(self.place):
            raise ValueError(f"{last} positions; this model has learned {len(self.place)}")
        return embedded + (self.place[past:last] if position_ids is None else self.place[position_ids])

    @classmethod
    def from_causal(cls, model: Any, mask_id: int, *, eos_id: int | None = None) -> TinyMDM:
        """A masked diffusion model with the weights of a left-to-right one (a Llama, or a TinyLM).

        The causal mask is off and the logits stay shifted, as in Dream (arXiv 2508.15487); it must still be
        trained. Weights are shared with the given model.

        Raises:
            ValueError: the model is not of Llama's architecture.
        """
        lm = model if isinstance(model, TinyLM) else TinyLM.from_llama(model)
        config = replace(lm.config, causal=False)
        both = TinyLM.__new__(TinyLM)
        nn.Module.__init__(both)
        both.config, both.model, both.lm_head = config, lm.model, lm.lm_head
        both.model.config = config
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        sizes = {"d": config.d, "layers": config.layers, "heads": config.heads, "hidden": config.hidden}
        made._set(MDMConfig(config.vocab, mask_id, shift_logits=True, eos_id=eos_id, **sizes), both)
        return made.train(model.training)

    def save(self, folder: str | Path) -> None:
        """Write configuration and weights into a folder, each whole or not at all."""
        folder = Path(folder)
        self.lm.save(folder)
        if self.place is not None:
            from safetensors.torch import save_file

            save_file({"place": self.place.detach().contiguous()}, folder / "place.safetensors")
        write_json(folder / FILE, asdict(self.config))

    @classmethod
    def load(cls, folder: str | Path) -> TinyMDM:
        """A model that ``save`` wrote, in evaluation.

        Raises:
            ValueError: the folder holds none, or its files do not fit together.
        """
        folder = Path(folder)
        try:
            config = MDMConfig(**json.loads((folder / FILE).read_text(encoding="utf-8")))
        except (OSError, TypeError, ValueError) as error:
            raise ValueError(f"{folder} holds no masked diffusion model: {error}") from error
        lm = TinyLM.load(folder)
        if lm.config.vocab != config.vocab or lm.config.causal:
            raise ValueError(f"the weights in {folder} are not those that its {FILE} describes")
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made._set(config, lm)
        if config.positions:
            from safetensors.torch import load_file

            place = load_file(folder / "place.safetensors")["place"]
            if place.shape != (config.positions, config.d):
                raise ValueError(f"{folder} has vectors of {list(place.shape)} positions and widths")
            made.place = nn.Parameter(place)
        return made.eval()
