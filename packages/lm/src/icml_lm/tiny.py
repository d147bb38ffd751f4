"""TinyLM: a small decoder with RMSNorm, rotary positions, SwiGLU and grouped-query attention.

The architecture and the parameter names are those of transformers' Llama, so that copied weights give the
same logits; one switch makes it bidirectional. Touvron et al., "LLaMA", arXiv 2302.13971; Su et al.,
"RoFormer", arXiv 2104.09864; Shazeer, "GLU variants improve Transformer", arXiv 2002.05202.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
from icml_core.randomness import seeded
from icml_core.run import write_atomically, write_json
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from icml_lm.cache import KeyValueCache
from icml_lm.rotary import RotaryTable
from icml_lm.tiny_layers import Block, Context, RMSNorm, visible

IGNORE = -100
"""Label of a token that is not supervised, as in torch's cross-entropy."""


@dataclass(frozen=True)
class TinyConfig:
    """Sizes of a TinyLM.

    Attributes:
        vocab: number of tokens.
        d: width of the residual stream.
        layers: number of blocks.
        heads: query heads; ``d / heads`` is even.
        kv_heads: key and value heads, a divisor of ``heads``; as many by default.
        hidden: width of the gated network; 8/3 of ``d``, rounded up to a multiple of 8, by default.
        causal: whether a token sees only those before it.
        tied: whether the head is the embedding.
        rope_theta: base of the rotary wavelengths.
        eps: added to the mean square in RMSNorm.
        initializer_range: standard deviation of the first weights.
    """

    vocab: int
    d: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int | None = None
    hidden: int | None = None
    causal: bool = True
    tied: bool = False
    rope_theta: float = 10_000.0
    eps: float = 1e-5
    initializer_range: float = 0.02

    def __post_init__(self) -> None:
        for name in ("vocab", "d", "layers", "heads"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}={value!r} of a TinyLM must be a positive integer")
        if self.d % (2 * self.heads):
            raise ValueError(f"d={self.d} must be an even multiple of heads={self.heads} (rotary pairs)")
        kv = self.heads if self.kv_heads is None else self.kv_heads
        hidden = -(-self.d * 8 // 3 // 8) * 8 if self.hidden is None else self.hidden
        if kv < 1 or self.heads % kv:
            raise ValueError(f"kv_heads={kv} must divide heads={self.heads}")
        if hidden < 1:
            raise ValueError(f"hidden={hidden} must be positive")
        object.__setattr__(self, "kv_heads", kv)
        object.__setattr__(self, "hidden", hidden)

    # Under transformers' names, for tools that read a model's configuration.
    model_type = "tiny"
    vocab_size = property(lambda self: self.vocab)
    hidden_size = property(lambda self: self.d)
    num_hidden_layers = property(lambda self: self.layers)
    num_attention_heads = property(lambda self: self.heads)
    num_key_value_heads = property(lambda self: self.kv_heads)
    tie_word_embeddings = property(lambda self: self.tied)

    def to_dict(self) -> dict[str, Any]:
        """The fields, and ``model_type`` and ``tie_word_embeddings``, which PEFT reads."""
        return {**asdict(self), "model_type": self.model_type, "tie_word_embeddings": self.tied}


@dataclass
class TinyOutput:
    """What a TinyLM returns; fields by attribute, by name, or by position among those that are set."""

    loss: Float[Tensor, ""] | None = None
    logits: Float[Tensor, "batch kept vocab"] | None = None
    past_key_values: KeyValueCache | None = None
    last_hidden_state: Float[Tensor, "batch tokens d"] | None = None
    hidden_states: tuple[Float[Tensor, "batch tokens d"], ...] | None = None
    sinks: tuple[Float[Tensor, "batch heads tokens"], ...] | None = None

    @property
    def cache(self) -> KeyValueCache | None:
        """The cache, under transformers' newer name."""
        return self.past_key_values

    def keys(self) -> list[str]:
        """Names of the fields that are set."""
        return [f.name for f in fields(self) if getattr(self, f.name) is not None]

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __getitem__(self, key: str | int) -> Any:
        if isinstance(key, int):
            return getattr(self, self.keys()[key])
        if key not in self.keys():
            raise KeyError(f"{key!r} is not in this output, which has {self.keys()}")
        return getattr(self, key)


class TinyDecoder(nn.Module):
    """Embedding, blocks and final norm: ``TinyLM.model``."""

    def __init__(self, config: TinyConfig) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(config.vocab, config.d)
        self.layers = nn.ModuleList([Block(config, i) for i in range(config.layers)])
        self.norm = RMSNorm(config.d, config.eps)
        self.rotary = RotaryTable(config.d // config.heads, config.rope_theta)

    def forward(
        self,
        input_ids: Int[Tensor, "batch tokens"] | None = None,
        *,
        inputs_embeds: Float[Tensor, "batch tokens d"] | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Int[Tensor, "batch tokens"] | None = None,
        past_key_values: KeyValueCache | None = None,
        use_cache: bool = False,
        output_hidden_states: bool = False,
        output_sinks: bool = False,
    ) -> TinyOutput:
        """Hidden states; see ``TinyLM.forward``."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("a TinyLM takes either input_ids or inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        if use_cache and past_key_values is None:
            past_key_values = KeyValueCache(self.config.layers)
        context = self._context(x, attention_mask, position_ids, past_key_values, output_sinks)
        states = [x] if output_hidden_states else None
        for block in self.layers:
            x = block(x, context)
            if states is not None:
                states.append(x)
        x = self.norm(x)
        if states is not None:
            states[-1] = x  # as transformers: the last one is the normalised one
        return TinyOutput(
            past_key_values=past_key_values,
            last_hidden_state=x,
            hidden_states=None if states is None else tuple(states),
            sinks=None if context.sinks is None else tuple(context.sinks),
        )

    def _context(
        self,
        x: Tensor,
        mask: Tensor | None,
        positions: Tensor | None,
        cache: KeyValueCache | None,
        sinks: bool,
    ) -> Context:
        tokens = x.shape[1]
        past = 0 if cache is None else cache.length
        cos, sin = self.rotary.at(positions, past, tokens, x)
        triangle = self.config.causal and mask is None and past == 0 and tokens > 1
        seen = None if triangle else visible(tokens, past, mask, self.config.causal, x)
        # Of a left-padded row the first real token is the sink.
        first = mask.long().argmax(-1) if sinks and mask is not None and mask.dim() == 2 else None
        return Context(cos, sin, seen, triangle, cache, [] if sinks else None, first)


class TinyLM(nn.Module):
    """A small language model.

    Args:
        config: its sizes.
        seed: of the first weights, drawn from a normal distribution.

    Example:
        >>> model = TinyLM(TinyConfig(vocab=10, d=16, heads=2))
        >>> model(torch.tensor([[1, 2, 3]])).logits.shape
        torch.Size([1, 3, 10])
    """

    def __init__(self, config: TinyConfig, *, seed: int = 0) -> None:
        super().__init__()
        self.config = config
        with seeded(seed):  # torch's own initialisers, whose draws are not kept
            self.model = TinyDecoder(config)
            self.lm_head = nn.Linear(config.d, config.vocab, bias=False)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    drawn = torch.randn(
                        parameter.shape, generator=generator, device="cpu", dtype=torch.float32
                    )
                    parameter.copy_(drawn * config.initializer_range)
        if config.tied:
            self.lm_head.weight = self.model.embed_tokens.weight

    def forward(
        self,
        input_ids: Int[Tensor, "batch tokens"] | None = None,
        *,
        inputs_embeds: Float[Tensor, "batch tokens d"] | None = None,
        attention_mask: Int[Tensor, "batch all"] | Bool[Tensor, "batch 1 tokens all"] | None = None,
        position_ids: Int[Tensor, "batch tokens"] | None = None,
        labels: Int[Tensor, "batch tokens"] | None = None,
        past_key_values: KeyValueCache | None = None,
        use_cache: bool = False,
        output_hidden_states: bool = False,
        output_sinks: bool = False,
        logits_to_keep: int = 0,
        return_dict: bool = True,
    ) -> TinyOutput:
        """Logits, and what else is asked for, by the calling convention of transformers.

        Args:
            input_ids: tokens.
            inputs_embeds: their embeddings, instead.
            attention_mask: 1 for real tokens and 0 for padding, over the cached and the new positions; or
                which key each query may see, as booleans or as terms added to the scores, [batch, 1, tokens,
                all].
            position_ids: positions for the rotary angles; counted on from the cache by default.
            labels: targets, equal to ``input_ids`` or -100. A causal model is scored on the next token, a
                bidirectional one on the token itself; the loss is the mean over supervised tokens, and 0
                (attached to the graph) where there is none.
            past_key_values: the cache, changed in place.
            use_cache: whether to return one.
            output_hidden_states: the embedding and the residual stream after every block; the last one is
                normalised.
            output_sinks: per layer, the attention that each query pays to the first real token.
            logits_to_keep: logits of the last so many positions only; 0 for all.
            return_dict: True; here for callers that pass it.

        Raises:
            ValueError: neither or both of tokens and embeddings; a mask of another length; a cache with a
                bidirectional model.
        """
        if not self.config.causal and (use_cache or past_key_values is not None):
            raise ValueError("a bidirectional TinyLM has no cache: earlier tokens see the later ones")
        out = self.model(
            input_ids,
            inputs_embeds=inputs_embeds,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
            output_hidden_states=output_hidden_states,
            output_sinks=output_sinks,
        )
        hidden = out.last_hidden_state
        out.logits = self.lm_head(hidden[:, -logits_to_keep:] if logits_to_keep else hidden)
        if labels is not None:
            out.loss = token_loss(out.logits, labels, shift=self.config.causal)
        return out

    def new_cache(self, capacity: int = 0) -> KeyValueCache:
        """An empty cache with room for ``capacity`` positions."""
        return KeyValueCache(self.config.layers, capacity)

    def set_attention(self, kind: str) -> None:
        """Choose ``"sdpa"`` or ``"eager"`` attention in every block.

        Raises:
            ValueError: another kind.
        """
        if kind not in ("sdpa", "eager"):
            raise ValueError(f"attention is 'sdpa' or 'eager', not {kind!r}")
        for block in self.model.layers:
            block.self_attn.kind = kind

    def get_input_embeddings(self) -> nn.Module:
        """The embedding, under transformers' name."""
        return self.model.embed_tokens

    def get_output_embeddings(self) -> nn.Module:
        """The head, under transformers' name."""
        return self.lm_head

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.model.embed_tokens.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The weights' type."""
        return self.model.embed_tokens.weight.dtype

    def save(self, folder: str | Path) -> None:
        """Write ``config.json`` and ``model.safetensors`` into a folder, each whole or not at all."""
        from safetensors.torch import save_file

        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        weights = {name: p.detach().contiguous() for name, p in self.named_parameters()}
        with write_atomically(folder / "model.safetensors") as temporary:
            save_file(weights, temporary)
        write_json(folder / "config.json", self.config.to_dict())

    @classmethod
    def load(cls, folder: str | Path, *, dtype: torch.dtype | None = None) -> TinyLM:
        """A model that ``save`` wrote, in evaluation.

        Raises:
            ValueError: the configuration is not a TinyLM's, or the weights do not fit it.
        """
        from safetensors.torch import load_file

        folder = Path(folder)
        found = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        if found.get("model_type") != TinyConfig.model_type:
            raise ValueError(f"{folder} holds a model of type {found.get('model_type')!r}, not a TinyLM")
        known = {f.name for f in fields(TinyConfig)}
        model = cls(TinyConfig(**{name: value for name, value in found.items() if name in known}))
        weights = load_file(folder / "model.safetensors")
        expected = {name: p.shape for name, p in model.named_parameters()}
        if {name: w.shape for name, w in weights.items()} != expected:
            raise ValueError(f"the weights in {folder} are not those that its config.json describes")
        model.to(next(iter(weights.values())).dtype)
        model.load_state_dict(weights, strict=False)
        return model.to(dtype).eval()

    def to_llama(self) -> Any:
        """The same model as a ``transformers.LlamaForCausalLM``.

        Raises:
            ValueError: the model is bidirectional, which Llama is not.
        """
        from icml_lm.llama import to_llama

        return to_llama(self)

    @classmethod
    def from_llama(cls, model: Any) -> TinyLM:
        """The same model as a ``transformers.LlamaForCausalLM``, sharing its weights.

        Raises:
            ValueError: the model uses biases, scaled rotary positions or another activation.
        """
        from icml_lm.llama import from_llama

        return from_llama(model)


def token_loss(
    logits: Float[Tensor, "batch tokens vocab"], labels: Int[Tensor, "batch tokens"], *, shift: bool = True
) -> Float[Tensor, ""]:
    """Mean cross-entropy over supervised tokens; 0, attached to the graph, where there is none.

    Args:
        logits: at every position.
        labels: targets, or -100.
        shift: whether position t is scored on label t + 1, as for a causal model.
    """
    if shift:
        logits, labels = logits[:, :-1], labels[:, 1:]
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    total = nn.functional.cross_entropy(
        logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum"
    )
    return total / (labels != IGNORE).sum().clamp(min=1)
