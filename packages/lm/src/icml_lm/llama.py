"""TinyLM to transformers' Llama and back; the parameters have the same names."""

from __future__ import annotations

from typing import Any

import torch
from icml_core.randomness import seeded

from icml_lm.tiny import TinyConfig, TinyLM

MAX_POSITIONS = 8192
"""What an exported configuration says; rotary positions have no limit of their own."""


def to_llama(model: TinyLM) -> Any:
    """The same model as a ``transformers.LlamaForCausalLM``, with weights of its own.

    Raises:
        ValueError: the model is bidirectional, which Llama is not.
    """
    from transformers import LlamaConfig, LlamaForCausalLM

    c = model.config
    if not c.causal:
        raise ValueError("a bidirectional TinyLM cannot be exported: Llama is causal")
    config = LlamaConfig(
        vocab_size=c.vocab,
        hidden_size=c.d,
        intermediate_size=c.hidden,
        num_hidden_layers=c.layers,
        num_attention_heads=c.heads,
        num_key_value_heads=c.kv_heads,
        rms_norm_eps=c.eps,
        rope_parameters={"rope_type": "default", "rope_theta": c.rope_theta},
        tie_word_embeddings=c.tied,
        initializer_range=c.initializer_range,
        max_position_embeddings=MAX_POSITIONS,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    with seeded(0):  # first weights that are not kept
        llama = LlamaForCausalLM(config)
    llama.to(model.device, model.dtype)
    # The wavelengths stay in float32; a cast there and back would have rounded them.
    llama.model.rotary_emb = type(llama.model.rotary_emb)(config).to(model.device)
    llama.load_state_dict(model.state_dict())
    if c.tied:
        llama.tie_weights()
    return llama.train(model.training)


def from_llama(model: Any) -> TinyLM:
    """The same model as a ``transformers.LlamaForCausalLM``, sharing its weights.

    Raises:
        ValueError: the model uses biases, scaled rotary positions or another activation.
    """
    c = model.config
    rope = dict(c.rope_parameters)
    plain = {
        "model_type": (c.model_type, "llama"),
        "hidden_act": (c.hidden_act, "silu"),
        "attention_bias": (c.attention_bias, False),
        "mlp_bias": (c.mlp_bias, False),
        "rope_type": (rope.get("rope_type", "default"), "default"),
        "head_dim": (c.head_dim, c.hidden_size // c.num_attention_heads),
    }
    for name, (given, wanted) in plain.items():
        if given != wanted:
            raise ValueError(f"a TinyLM has {name}={wanted!r}; this model has {given!r}")
    config = TinyConfig(
        vocab=c.vocab_size,
        d=c.hidden_size,
        layers=c.num_hidden_layers,
        heads=c.num_attention_heads,
        kv_heads=c.num_key_value_heads,
        hidden=c.intermediate_size,
        tied=bool(c.tie_word_embeddings),
        rope_theta=float(rope["rope_theta"]),
        eps=c.rms_norm_eps,
        initializer_range=c.initializer_range,
    )
    with torch.device("meta"):
        tiny = TinyLM.__new__(TinyLM)
        _bare(tiny, config)
    tiny.load_state_dict(model.state_dict(), assign=True, strict=False)
    if config.tied:
        tiny.lm_head.weight = tiny.model.embed_tokens.weight
    return tiny.train(model.training)


def _bare(tiny: TinyLM, config: TinyConfig) -> None:
    """Modules without first weights."""
    from torch import nn

    from icml_lm.tiny import TinyDecoder

    nn.Module.__init__(tiny)
    tiny.config = config
    tiny.model = TinyDecoder(config)
    tiny.lm_head = nn.Linear(config.d, config.vocab, bias=False)
