"""States of tokens or patches to one vector an example: the first, the last, or the mean over attended ones.

The rule of the paper: the class token for BERT-like text encoders and ViT-like vision encoders, the mean for
audio encoders, decoders and unknown types. Means are over attended places only, so that what a text is padded
with, on either side, never enters.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

POOLINGS = ("auto", "cls", "mean", "last", "patch_mean")

BERT_LIKE = frozenset(
    [
        "albert",
        "bert",
        "camembert",
        "convbert",
        "deberta",
        "deberta-v2",
        "distilbert",
        "electra",
        "ernie",
        "eurobert",
        "ibert",
        "layoutlm",
        "longformer",
        "megatron-bert",
        "mobilebert",
        "modernbert",
        "mpnet",
        "nezha",
        "nomic_bert",
        "roberta",
        "roberta-prelayernorm",
        "roformer",
        "squeezebert",
        "xlm-roberta",
        "xlm-roberta-xl",
    ]
)
VIT_LIKE = frozenset(
    [
        "beit",
        "clip_vision_model",
        "data2vec-vision",
        "deit",
        "dinov2",
        "dinov2_with_registers",
        "dinov3_vit",
        "ijepa",
        "vit",
        "vit_mae",
        "vit_msn",
        "vit_hybrid",
    ]
)
PREFIX_TOKENS = {
    "vit": 1, "deit": 2, "beit": 1, "clip_vision_model": 1, "data2vec-vision": 1, "dinov2": 1, "ijepa": 0,
    "vit_mae": 1, "vit_msn": 1, "vit_hybrid": 1, "siglip_vision_model": 0,
}  # fmt: skip
"""Tokens before the patches, by model type; registers come on top."""

MaskFunction = Callable[[int, Tensor], Tensor]
"""(length of the hidden states, the input's mask [batch, length]) to the mask of the hidden states."""


def pool_states(
    states: Float[Tensor, "batch tokens dim"],
    mask: Int[Tensor, "batch tokens"] | None,
    pooling: str,
    prefix_tokens: int = 0,
) -> Float[Tensor, "batch dim"]:
    """One vector an example.

    Args:
        states: of one layer; [batch, dim] is returned as it is, [batch, dim, height, width] averaged over
            places.
        mask: which tokens are attended; all by default.
        pooling: ``"cls"`` (the first attended), ``"last"`` (the last attended), ``"mean"`` or
            ``"patch_mean"`` (the mean without the prefix).
        prefix_tokens: class and register tokens that ``"patch_mean"`` leaves out.

    Raises:
        ValueError: a mask of another shape, an example without attended tokens, an unknown pooling.
    """
    if states.dim() == 2:
        return states
    if states.dim() == 4:
        return states.mean((2, 3))
    if states.dim() != 3:
        raise ValueError(f"states have shape {list(states.shape)}; expected [batch, tokens, dim]")
    if mask is None:
        mask = torch.ones(states.shape[:2], dtype=torch.int64, device=states.device)
    if tuple(mask.shape) != tuple(states.shape[:2]):
        raise ValueError(
            f"the mask has shape {list(mask.shape)} but the states are {list(states.shape[:2])}; a model "
            "that shortens "
            "its input needs mask_fn, which gives the mask of the states"
        )
    attended = mask.to(states.device) != 0
    if pooling == "patch_mean":
        attended = attended & (torch.arange(states.shape[1], device=states.device) >= prefix_tokens)
    if not bool(attended.any(1).all()):
        raise ValueError(f"example {int((~attended.any(1)).nonzero()[0])} of the batch has no attended token")
    rows = torch.arange(len(states), device=states.device)
    if pooling == "cls":
        return states[rows, attended.int().argmax(1)]
    if pooling == "last":
        return states[rows, states.shape[1] - 1 - attended.int().flip(1).argmax(1)]
    if pooling not in ("mean", "patch_mean"):
        raise ValueError(f"pooling={pooling!r} is not one of {', '.join(POOLINGS[1:])}")
    # A sum over attended places alone: what stands in padding may be NaN.
    kept = torch.where(attended[..., None], states, 0)
    wide = kept.to(torch.float32) if states.dtype in (torch.float16, torch.bfloat16) else kept
    return (wide.sum(1) / attended.sum(1, keepdim=True)).to(states.dtype)


def choose_pooling(model: nn.Module, pooling: str = "auto") -> str:
    """The rule of the paper for ``"auto"``, else what was asked for.

    Raises:
        ValueError: an unknown pooling.
    """
    if pooling not in POOLINGS:
        raise ValueError(f"pooling={pooling!r} is not one of {', '.join(POOLINGS)}")
    kind = model_type(model)
    if pooling == "cls" and is_causal_decoder(model):
        warnings.warn(
            "pooling='cls' of a decoder reads the first token, which sees none of the others; use 'mean' or "
            "'last'",
            UserWarning,
            stacklevel=3,
        )
    if pooling != "auto":
        return pooling
    if kind in BERT_LIKE or kind in VIT_LIKE or getattr(model, "cls_token", None) is not None:
        return "cls"
    return "mean"


def prefix_length(model: nn.Module, given: int | None = None) -> int:
    """How many class and register tokens stand before the patches.

    Raises:
        ValueError: the model's layout is unknown and nothing was given.
    """
    if given is not None:
        return given
    for name in ("num_prefix_tokens", "prefix_tokens"):
        found = getattr(model, name, None)
        if isinstance(found, int):
            return found
    config = getattr(model, "config", None)
    registers = int(getattr(config, "num_register_tokens", 0) or 0)
    kind = model_type(model)
    if kind in PREFIX_TOKENS:
        return PREFIX_TOKENS[kind] + registers
    if registers:
        return 1 + registers
    raise ValueError(
        f"which tokens of {type(model).__name__} are no patches is not known; give prefix_tokens= (class and "
        "register "
        "tokens)"
    )


def states_mask(
    model: nn.Module, length: int, mask: Tensor | None, mask_fn: MaskFunction | None
) -> Tensor | None:
    """Mask of hidden states of this length: the input's, or what the model or ``mask_fn`` makes of it.

    Speech models shorten time; they know by how much (``_get_feature_vector_attention_mask``).

    Raises:
        ValueError: the lengths differ and nobody knows the mask, or gives one of another length.
    """
    if mask is None:
        return None
    if mask_fn is not None:
        found = mask_fn(length, mask)
    elif mask.shape[1] == length:
        return mask
    else:
        shorten = next(
            (f for m in model.modules() if (f := getattr(m, "_get_feature_vector_attention_mask", None))),
            None,
        )
        if shorten is None:
            raise ValueError(
                f"hidden states have {length} places but the mask {mask.shape[1]}, and "
                f"{type(model).__name__} does not "
                "say how they belong together; give mask_fn(length, mask)"
            )
        # Some models also take how the adapter changes the length, with a default.
        needed = [p for p in inspect.signature(shorten).parameters.values() if p.default is p.empty]
        found = shorten(length, mask) if len(needed) == 2 else shorten(length, mask, add_adapter=False)
    if tuple(found.shape) != (len(mask), length):
        raise ValueError(
            f"the mask of the states has shape {list(found.shape)}; expected {[len(mask), length]}"
        )
    return found


def model_type(model: nn.Module) -> str:
    """``config.model_type`` where there is one."""
    return str(getattr(getattr(model, "config", None), "model_type", "") or "")


def is_causal_decoder(model: nn.Module) -> bool:
    """Whether the model generates: transformers says so of causal language models."""
    config = getattr(model, "config", None)
    if config is None or isinstance(config, Mapping):
        return False
    named = " ".join(getattr(config, "architectures", None) or ()) + type(model).__name__
    return bool(getattr(config, "is_decoder", False)) or "CausalLM" in named or model_type(model) in (
        "llama", "gpt2", "qwen2", "qwen3", "mistral", "gemma", "gpt_neox", "tiny",
    )  # fmt: skip


def first_tensor(output: Any) -> Tensor:
    """The states in what a module returned: a tensor, or the first in a tuple, list, dict or output object.

    Raises:
        TypeError: it holds no tensor at its beginning.
    """
    for _ in range(4):
        if isinstance(output, Tensor):
            return output
        if isinstance(output, Mapping):
            for key in ("last_hidden_state", "hidden_states"):
                if isinstance(output.get(key), Tensor):
                    return output[key]
            output = next(iter(output.values()), None)
        elif isinstance(output, (tuple, list)) and output:
            output = output[0]
        elif hasattr(output, "last_hidden_state"):
            output = output.last_hidden_state
        else:
            break
    raise TypeError(
        f"a block returned {type(output).__name__}, in which there is no tensor of states to be found"
    )
