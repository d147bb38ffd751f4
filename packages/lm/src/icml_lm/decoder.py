"""The parts of any decoder-only model: backbone, embedding, blocks, final norm, and the head as a linear map.

Works on TinyLM, on transformers' causal models and on PEFT's wrappers around either.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

_BLOCKS = ("layers", "h", "blocks")
_ATTENTION = ("self_attn", "attn", "attention", "self_attention")
_MLP = ("mlp", "feed_forward", "ffn", "block_sparse_moe")
_NORM = ("norm", "ln_f", "final_layer_norm", "final_layernorm")
_HEAD_RTOL = 1e-3
"""How far the head as read from the configuration may be from the model's own logits, relative to their size
(coarser in 16 bits); a missing scale or cap is far outside."""


def base_model(model: Any) -> Any:
    """The model under PEFT's wrapper, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def backbone(model: Any) -> nn.Module:
    """The module that gives hidden states: embedding, blocks, final norm.

    Raises:
        TypeError: the model has none that is known.
    """
    inner = base_model(model)
    for name in ("model", "transformer", "gpt_neox", "backbone"):
        found = getattr(inner, name, None)
        if isinstance(found, nn.Module):
            # Multimodal and encoder-decoder wrappers keep the text decoder one level deeper.
            for deeper in ("language_model", "decoder"):
                nested = getattr(found, deeper, None)
                if isinstance(nested, nn.Module) and _first(nested, _BLOCKS) is not None:
                    return nested
            return found
    raise TypeError(f"{type(inner).__name__} has no decoder that is known; it has {_children(inner)}")


@dataclass(frozen=True)
class Parts:
    """Modules of a decoder, by role."""

    embedding: nn.Module
    blocks: tuple[nn.Module, ...]
    attentions: tuple[nn.Module, ...]
    mlps: tuple[nn.Module, ...]
    norm: nn.Module


def parts(model: Any) -> Parts:
    """The modules of a decoder, by role.

    Raises:
        TypeError: the model lacks one of them under any known name.
    """
    decoder = backbone(model)
    blocks = _first(decoder, _BLOCKS)
    embedding = base_model(model).get_input_embeddings()
    norm = _first(decoder, _NORM)
    if blocks is None or norm is None:
        raise TypeError(
            f"{type(decoder).__name__} has no blocks or norm that is known; it has {_children(decoder)}"
        )
    found = {}
    for role, names in (("attention", _ATTENTION), ("mlp", _MLP)):
        found[role] = tuple(_first(block, names) for block in blocks)
        if None in found[role]:
            raise TypeError(
                f"{type(blocks[0]).__name__} has no {role} that is known; it has {_children(blocks[0])}"
            )
    return Parts(embedding, tuple(blocks), found["attention"], found["mlp"], norm)


@dataclass(frozen=True)
class Head:
    """logits = cap(scale · (hidden · weightᵀ + bias)), with cap(x) = softcap · tanh(x / softcap)."""

    weight: Float[Tensor, "vocab d"]
    bias: Float[Tensor, " vocab"] | None = None
    logit_scale: float = 1.0
    softcap: float | None = None

    def logits(self, hidden: Float[Tensor, "... d"]) -> Float[Tensor, "... vocab"]:
        """The logits of hidden states."""
        out = nn.functional.linear(hidden, self.weight, self.bias)
        if self.logit_scale != 1.0:
            out = out * self.logit_scale
        return out if self.softcap is None else self.softcap * torch.tanh(out / self.softcap)


def head_of(model: Any) -> Head | None:
    """The head as a linear map, with the scale and cap of the configuration; None where it is another.

    Read: ``logit_scale`` (Cohere), ``logits_scaling`` (Granite, a divisor), ``lm_head_multiplier``
        (Falcon-H1),
    ``final_logit_softcapping`` (Gemma).
    """
    inner = base_model(model)
    head = inner.get_output_embeddings()
    if type(head) is not nn.Linear or head._forward_hooks or head._forward_pre_hooks:
        return None
    config = inner.config
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    scale = float(getattr(config, "logit_scale", None) or 1.0)
    scale *= float(getattr(config, "lm_head_multiplier", None) or 1.0)
    scale /= float(getattr(config, "logits_scaling", None) or 1.0)
    return Head(head.weight, head.bias, scale, getattr(config, "final_logit_softcapping", None))


def hidden_and_head(
    model: Any, input_ids: Int[Tensor, "batch tokens"], **inputs: Any
) -> tuple[Float[Tensor, "batch tokens d"] | None, Head | None, Any]:
    """One forward pass: hidden states of all positions, the head, and the model's output.

    Logits are asked for at the last position only, and the head is checked against them: an architecture that
    does more than its configuration says gets (None, None, output with all logits).
    """
    from icml_lm.cache import accepts

    head = head_of(model)
    if head is not None:
        if accepts(model, "logits_to_keep"):
            inputs["logits_to_keep"] = 1
        with _captured(backbone(model)) as caught:
            out = model(input_ids=input_ids, **inputs)
        if caught:
            hidden = caught[-1]
            with torch.no_grad():
                own = out.logits[:, -1].float()
                ours = head.logits(hidden[:, -1]).float()
                slack = _HEAD_RTOL if hidden.dtype in (torch.float32, torch.float64) else 16 * _HEAD_RTOL
                size = float(own.nan_to_num().abs().max())
                if torch.allclose(own, ours, rtol=slack, atol=slack * size, equal_nan=True):
                    return hidden, head, out
        inputs.pop("logits_to_keep", None)
        if inputs.get("past_key_values") is not None or inputs.get("cache") is not None:
            raise TypeError(
                f"the logits of {type(base_model(model)).__name__} are not its head's; pass no cache"
            )
    return None, None, model(input_ids=input_ids, **inputs)


@contextmanager
def _captured(module: nn.Module) -> Iterator[list[Tensor]]:
    caught: list[Tensor] = []

    def keep(_: nn.Module, __: Any, output: Any) -> None:
        hidden = output[0] if isinstance(output, tuple) else output.last_hidden_state
        caught.append(hidden)

    handle = module.register_forward_hook(keep)
    try:
        yield caught
    finally:
        handle.remove()


def _first(module: nn.Module, names: tuple[str, ...]) -> Any:
    for name in names:
        found = getattr(module, name, None)
        if isinstance(found, nn.Module):
            return found
    return None


def _children(module: nn.Module) -> str:
    return ", ".join(name for name, _ in module.named_children()) or "no modules"
