"""Low-rank adapters by PEFT, for transformers' models and TinyLM. Hu et al., "LoRA", arXiv 2106.09685."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from icml_core.randomness import seeded
from torch import nn

from icml_lm.decoder import base_model
from icml_lm.tiny import TinyConfig

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
"""Names of the projections of attention in Llama-like models."""
ALL_LINEAR = (*ATTENTION, "gate_proj", "up_proj", "down_proj")
"""Names of all seven projections."""


def lora(
    model: Any,
    r: int = 16,
    alpha: float | None = None,
    targets: str | Sequence[str] = ALL_LINEAR,
    *,
    dropout: float = 0.0,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Wrap a model in PEFT's LoRA; the model itself is frozen, and changed in place as PEFT does.

    Args:
        model: a transformers model or TinyLM.
        r: rank.
        alpha: the update is scaled by alpha / r; twice the rank by default.
        targets: names of the modules to adapt, or ``"all-linear"``.
        dropout: in the adapters.
        seed: of their first weights.
        options: further arguments of ``peft.LoraConfig``.

    Returns:
        ``peft.PeftModel``; ``merge`` gives the plain model with the update added.

    Raises:
        ValueError: a rank below 1; a target that the model lacks; one end of tied embeddings without the
            other.
        ModuleNotFoundError: PEFT is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("LoRA needs PEFT: pip install 'icml-lm[peft]'", name=error.name) from error

    if r < 1:
        raise ValueError(f"the rank r={r} must be at least 1")
    names = [targets] if isinstance(targets, str) else list(targets)
    chosen = _matched(model, names)
    both = _tied_ends(model)
    adapted = both & chosen
    if adapted and adapted != both:
        raise ValueError(
            f"{sorted(adapted)[0]!r} shares its weight with {sorted(both - adapted)[0]!r} (tied embeddings): "
            f"adapt both, targets=[..., {', '.join(map(repr, sorted(both)))}], or neither"
        )
    config = LoraConfig(
        r=r,
        lora_alpha=2 * r if alpha is None else alpha,
        target_modules=targets if isinstance(targets, str) else names,
        lora_dropout=dropout,
        **options,
    )
    with seeded(seed):
        return get_peft_model(model, config)


def merge(model: Any) -> Any:
    """The plain model with the adapters' update added to its weights.

    Where the two ends of tied embeddings were adapted, each gets its own update, and the model is untied.
    (PEFT's ``merge_and_unload`` adds both updates to the one shared weight.)

    Args:
        model: from ``lora``; used up.
    """
    plain = base_model(model)
    first, last = (_under(layer) for layer in (plain.get_input_embeddings(), plain.get_output_embeddings()))
    adapted = any(
        hasattr(layer, "base_layer")
        for layer in (plain.get_input_embeddings(), plain.get_output_embeddings())
    )
    if adapted and first.weight is last.weight:
        last.weight = nn.Parameter(last.weight.detach().clone(), requires_grad=last.weight.requires_grad)
        if isinstance(plain.config, TinyConfig):
            plain.config = plain.model.config = replace(plain.config, tied=False)
        else:
            plain.config.tie_word_embeddings = False
    return model.merge_and_unload()


def _under(layer: Any) -> Any:
    return getattr(layer, "base_layer", layer)


def _matched(model: Any, names: list[str]) -> set[str]:
    """Full names of the modules that PEFT will adapt.

    Raises:
        ValueError: a name that no module ends with.
    """
    modules = dict(model.named_modules())
    if names == ["all-linear"]:
        head = base_model(model).get_output_embeddings()
        return {name for name, m in modules.items() if isinstance(m, nn.Linear) and m is not head}
    found = set()
    for wanted in names:
        fitting = {name for name in modules if name == wanted or name.endswith(f".{wanted}")}
        if not fitting:
            kinds = sorted(
                {n.rpartition(".")[2] for n, m in modules.items() if isinstance(m, (nn.Linear, nn.Embedding))}
            )
            raise ValueError(f"no module of the model is called {wanted!r}; it has {', '.join(kinds)}")
        found |= fitting
    return found


def _tied_ends(model: Any) -> set[str]:
    """Names of the embedding and the head where they are one weight."""
    first, last = model.get_input_embeddings(), model.get_output_embeddings()
    if last is None or first.weight is not last.weight:
        return set()
    return {name for name, module in model.named_modules() if module is first or module is last}
