"""Rotary positions: a pair (x_i, x_{i + w/2}) of a head turns by position · theta^(-2i/w). arXiv 2104.09864.

Angles and their cosines are taken in float32 whatever the model's type, as Llama was trained, and then cast.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

_SMALLEST = 128  # positions tabulated at first


class RotaryTable:
    """Cosines and signed sines by position, tabulated once per device and type and extended on demand."""

    def __init__(self, head_dim: int, theta: float) -> None:
        self.head_dim, self.theta = head_dim, theta
        self._tables: dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor]] = {}

    def at(
        self, positions: Int[Tensor, "batch tokens"] | None, start: int, tokens: int, like: Tensor
    ) -> tuple[Float[Tensor, ...], Float[Tensor, ...]]:
        """Cosines and signed sines: [tokens, head_dim] from ``start`` on, or [batch, 1, tokens, head_dim].

        Args:
            positions: of every token; None counts on from ``start``.
            start: position of the first token.
            tokens: how many.
            like: a tensor of the wanted device and type.
        """
        if positions is None:
            cos, sin = self._table(start + tokens, like)
            return cos[start : start + tokens], sin[start : start + tokens]
        angles = positions[:, None, :, None].float() * self._frequencies(like.device)
        return _cos_sin(angles, like.dtype)

    def _table(self, length: int, like: Tensor) -> tuple[Tensor, Tensor]:
        key = (like.device, like.dtype)
        found = self._tables.get(key)
        if found is None or found[0].shape[0] < length:
            size = max(_SMALLEST, 1 << (length - 1).bit_length())
            places = torch.arange(size, dtype=torch.float32, device=like.device)
            found = _cos_sin(places[:, None] * self._frequencies(like.device), like.dtype)
            self._tables[key] = found
        return found

    def _frequencies(self, device: torch.device) -> Tensor:
        steps = torch.arange(0, self.head_dim, 2, dtype=torch.float32, device=device) / self.head_dim
        return 1.0 / self.theta**steps

    def __getstate__(self) -> dict[str, object]:
        return {"head_dim": self.head_dim, "theta": self.theta, "_tables": {}}


def rotate(
    x: Float[Tensor, "batch heads tokens w"], cos: Tensor, sin: Tensor
) -> Float[Tensor, "batch heads tokens w"]:
    """x · cos + swap(x) · sin, where swap exchanges the halves of a head and ``sin`` carries the sign."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), -1)
    return torch.addcmul(x * cos, swapped, sin)


def _cos_sin(angles: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((cos, cos), -1).to(dtype), torch.cat((-sin, sin), -1).to(dtype)
