"""A backbone with a head on its chosen blocks, to be trained or fine-tuned as one module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from icml_loes.blocks import find_blocks
from icml_loes.head import LoesHead
from icml_loes.pooling import choose_pooling, pool_states, prefix_length, states_mask
from icml_loes.state_reader import read_states


class LoesModel(nn.Module):
    """Backbone, chosen blocks, head.

    Args:
        backbone: any module whose blocks can be found.
        selected: numbers of the chosen blocks.
        head: takes a list of their pooled states.
        layers: which blocks are meant, as in ``find_blocks``.
        pooling: of tokens, as in ``collect_states``.
        prefix_tokens: for ``"patch_mean"``.
        frozen: whether the backbone takes part in training.

    Raises:
        ValueError: a number that no block has; a head of another number of layers.
    """

    def __init__(
        self,
        backbone: nn.Module,
        selected: Sequence[int],
        head: LoesHead,
        *,
        layers: str | Sequence[str] | None = None,
        pooling: str = "auto",
        prefix_tokens: int | None = None,
        frozen: bool = True,
    ) -> None:
        super().__init__()
        names = find_blocks(backbone, layers).names
        if any(not 0 <= i < len(names) for i in selected) or len(selected) != len(head.dims):
            raise ValueError(
                f"blocks {list(selected)} of {len(names)} and a head for {len(head.dims)} layers do not fit "
                "together"
            )
        self.backbone, self.head, self.frozen = backbone, head, frozen
        self.names = [names[i] for i in selected]
        self.pooling = choose_pooling(backbone, pooling)
        self.prefix = prefix_length(backbone, prefix_tokens) if self.pooling == "patch_mean" else 0
        if frozen:
            backbone.requires_grad_(False)

    def layers(self, *args: Any, **inputs: Any) -> list[Float[Tensor, "batch dim"]]:
        """Pooled states of the chosen blocks, with gradients unless the backbone is frozen."""
        mask = inputs.get("attention_mask")

        def pool(states: Tensor) -> Tensor:
            fitting = states_mask(self.backbone, states.shape[1], mask, None) if states.dim() == 3 else None
            return pool_states(states, fitting, self.pooling, self.prefix)

        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen),
            read_states(self.backbone, self.names, pool, gradient=True) as reading,
        ):
            self.backbone(*args, **inputs)
            return reading.layers()[1]

    def features(self, *args: Any, **inputs: Any) -> Float[Tensor, "batch fused"]:
        """The fused representation."""
        return self.head.features(self.layers(*args, **inputs))

    def forward(self, *args: Any, **inputs: Any) -> Float[Tensor, "batch n_out"]:
        """Logits."""
        logits: Tensor = self.head(self.layers(*args, **inputs))
        return logits

    def train(self, mode: bool = True) -> LoesModel:
        """A frozen backbone stays in evaluation."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self
