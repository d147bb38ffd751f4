"""Sizes of decoders and of trainings: the published ones by name, and small ones of the same form.

Published sizes: arXiv 2601.08393 and the training scripts of github.com/Unakar/Spectral-Ball-Optimizer.
Names of fields are those of Hugging Face's configurations.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Literal

Balance = Literal["loss", "bias", "none"]


def _positive(config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) > 0:
            raise ValueError(f"{name}={getattr(config, name)!r} must be above 0")


def _not_negative(config: Any, *names: str) -> None:
    for name in names:
        if not getattr(config, name) >= 0:
            raise ValueError(f"{name}={getattr(config, name)!r} must not be negative")


@dataclass(frozen=True)
class MoEConfig:
    """A mixture of experts in place of the feed-forward layer.

    Attributes:
        num_experts: E, experts that are routed to.
        num_experts_per_tok: k, experts that a token visits.
        moe_intermediate_size: width of one expert.
        shared_expert_intermediate_size: width of the gated expert that every token visits; 0 means none.
        first_dense_layers: so many layers at the bottom keep a dense feed-forward layer.
        balance: what evens the load: an auxiliary loss, a bias on the selection ("bias", without a loss), or
            nothing.
        aux_loss_coefficient: α of the auxiliary loss.
        z_loss_coefficient: of the mean squared log-partition of the router.
        bias_rate: how far the selection bias of an expert moves in one step.
    """

    num_experts: int = 8
    num_experts_per_tok: int = 2
    moe_intermediate_size: int = 64
    shared_expert_intermediate_size: int = 0
    first_dense_layers: int = 1
    balance: Balance = "loss"
    aux_loss_coefficient: float = 0.01
    z_loss_coefficient: float = 1e-3
    bias_rate: float = 1e-3

    def __post_init__(self) -> None:
        _positive(self, "num_experts", "num_experts_per_tok", "moe_intermediate_size")
        _not_negative(
            self,
            "shared_expert_intermediate_size",
            "first_dense_layers",
            "aux_loss_coefficient",
            "z_loss_coefficient",
            "bias_rate",
        )
        if self.num_experts_per_tok > self.num_experts:
            raise ValueError(
                f"num_experts_per_tok={self.num_experts_per_tok} is more than num_experts={self.num_experts}"
            )
        if self.balance not in ("loss", "bias", "none"):
            raise ValueError(f"balance={self.balance!r} is none of 'loss', 'bias', 'none'")


@dataclass(frozen=True)
class TransformerConfig:
    """A decoder: grouped-query attention, norms of queries and keys, RMSNorm, SwiGLU, RoPE, untied head.

    Attributes:
        vocab_size: tokens.
        hidden_size: d, width of the residual stream.
        num_hidden_layers: layers.
        num_attention_heads: query heads.
        num_key_value_heads: heads of keys and values; divides the number of query heads.
        head_dim: width of one head, an even number.
        intermediate_size: width of the SwiGLU layer.
        context: tokens of a training window.
        rope_theta: base of the rotary frequencies.
        rms_norm_eps: ε of RMSNorm.
        qk_norm: RMSNorm over each head of queries and keys.
        moe: the mixture of experts, or None for a dense model.
    """

    vocab_size: int = 256
    hidden_size: int = 64
    num_hidden_layers: int = 3
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 16
    intermediate_size: int = 192
    context: int = 96
    rope_theta: float = 1e4
    rms_norm_eps: float = 1e-6
    qk_norm: bool = True
    moe: MoEConfig | None = None

    def __post_init__(self) -> None:
        _positive(
            self,
            "vocab_size",
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "intermediate_size",
            "context",
            "rope_theta",
            "rms_norm_eps",
        )
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"num_key_value_heads={self.num_key_value_heads} does not divide "
                f"num_attention_heads={self.num_attention_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(
                f"head_dim={self.head_dim} is odd; rotary positions turn pairs, give an even one"
            )


@dataclass(frozen=True)
class Recipe:
    """A model with the hyper-parameters it was trained with.

    Attributes:
        model: its sizes.
        batch: windows a step.
        steps: of the whole training.
        warmup: steps in which the learning rate rises from 0.
        lr: the highest learning rate, the same for all optimizers of the paper's comparison.
        precision: in which matrices are multiplied.
    """

    model: TransformerConfig
    batch: int
    steps: int
    warmup: int
    lr: float
    precision: Literal["float32", "bfloat16"] = "float32"


_PAPER_BATCH, _PAPER_CONTEXT, _PAPER_WARMUP, _PAPER_LR = 1024, 4096, 500, 5e-3
_OLMO2_VOCABULARY = 100352  # the OLMo-2 tokenizer's 100278 tokens, padded to a multiple of 128


def _paper(tokens: float, model: TransformerConfig) -> Recipe:
    steps = int(tokens) // (_PAPER_BATCH * _PAPER_CONTEXT)
    return Recipe(model, _PAPER_BATCH, steps, _PAPER_WARMUP, _PAPER_LR, "bfloat16")


def _published(
    layers: int, width: int, ffn: int, heads: int, moe: MoEConfig | None = None
) -> TransformerConfig:
    return TransformerConfig(
        vocab_size=_OLMO2_VOCABULARY,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        head_dim=128,
        intermediate_size=ffn,
        context=_PAPER_CONTEXT,
        rope_theta=1e6,
        moe=moe,
    )


RECIPES: dict[str, Recipe] = {
    "tiny": Recipe(TransformerConfig(), batch=16, steps=120, warmup=0, lr=1e-2),
    "tiny-moe": Recipe(
        TransformerConfig(
            num_hidden_layers=2, moe=MoEConfig(shared_expert_intermediate_size=64, first_dense_layers=0)
        ),
        batch=16,
        steps=120,
        warmup=0,
        lr=1e-2,
    ),
    "tiny-deep": Recipe(
        TransformerConfig(
            hidden_size=32,
            num_hidden_layers=48,
            num_attention_heads=2,
            num_key_value_heads=1,
            intermediate_size=96,
        ),
        batch=8,
        steps=120,
        warmup=0,
        lr=1e-2,
    ),
    "small-25m": Recipe(
        TransformerConfig(
            hidden_size=512,
            num_hidden_layers=8,
            num_attention_heads=8,
            num_key_value_heads=4,
            head_dim=64,
            intermediate_size=1536,
            context=512,
            rope_theta=1e6,
        ),
        batch=64,
        steps=4000,
        warmup=100,
        lr=1e-2,
        precision="bfloat16",
    ),
    "dense-1.7b": _paper(100e9, _published(28, 2048, 6144, 16)),
    "moe-8b-a1b": _paper(
        100e9,
        _published(
            27,
            2048,
            4096,
            16,
            MoEConfig(
                num_experts=64,
                num_experts_per_tok=4,
                moe_intermediate_size=768,
                shared_expert_intermediate_size=768,
            ),
        ),
    ),
    "deepnet-200": _paper(50e9, _published(200, 512, 1536, 8)),
}
"""Recipes by name; the last three are the paper's."""


def recipe(name: str) -> Recipe:
    """The recipe called ``name``.

    Raises:
        ValueError: there is none; names the nearest.
    """
    if name not in RECIPES:
        near = get_close_matches(name, RECIPES, n=1, cutoff=0.4)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"no recipe is called {name!r}; {hint}There are {', '.join(RECIPES)}")
    return RECIPES[name]


def config_from_dict(values: dict[str, Any]) -> TransformerConfig:
    """The configuration that ``dataclasses.asdict`` made into ``values``.

    Raises:
        ValueError: an unknown field, a value of a wrong type, or sizes that contradict each other.
    """
    moe = values.get("moe")
    if moe is not None and not isinstance(moe, MoEConfig):
        values = {**values, "moe": _from_dict(MoEConfig, moe, "moe.")}
    return _from_dict(TransformerConfig, values, "")


def _from_dict(cls: Any, values: Any, where: str) -> Any:
    if not isinstance(values, dict):
        raise ValueError(f"{where or 'configuration'}: expected a mapping of fields, got {values!r}")
    known = {field.name: field for field in fields(cls)}
    if unknown := sorted(set(values) - set(known)):
        raise ValueError(f"unknown field {where}{unknown[0]!r}; there are {', '.join(known)}")
    for name, value in values.items():
        wanted = str(known[name].type)
        numeric = {"int": (int,), "float": (int, float)}.get(wanted)
        if numeric is not None and (not isinstance(value, numeric) or isinstance(value, bool)):
            raise ValueError(f"{where}{name}={value!r}: expected {wanted}")
        if wanted == "bool" and not isinstance(value, bool):
            raise ValueError(f"{where}{name}={value!r}: expected true or false")
    return cls(**values)
