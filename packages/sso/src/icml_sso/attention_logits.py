"""The largest attention logit of each head: a bound from singular values, and the exact value on a sample.

    |q_i . k_j| / sqrt(d) <= sigma(W_q) sigma(W_k) max_i ||x_i||^2 / sqrt(d)

Rotary positions are orthogonal and change nothing in the bound. With QK-norm the vectors have norm at most
sqrt(d) max|gain|, so that |logit| <= sqrt(d) max|g_q| max|g_k|.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from icml_sso.param_groups import _HEAD_SIZE, _KEY_HEADS, _first

_QUERIES = ("q_proj", "query", "wq", "to_q")
_KEYS = ("k_proj", "key", "wk", "to_k")


class AttentionProbe:
    """One attention layer with projections of its own for queries and keys.

    Args:
        name: Of the layer.
        layer: The layer.
        query: Its projection to queries, (heads x head_dim, d).
        key: Its projection to keys, (key heads x head_dim, d).
        names: Qualified names of the two projections.
        head_dim: Size of a head.
    """

    def __init__(
        self,
        name: str,
        layer: nn.Module,
        query: nn.Linear,
        key: nn.Linear,
        names: tuple[str, str],
        head_dim: int,
    ) -> None:
        self.name, self.layer, self.query, self.key, self.names = name, layer, query, key, names
        self.head_dim = head_dim
        self.heads, self.key_heads = query.out_features // head_dim, key.out_features // head_dim
        self.scale = float(getattr(layer, "scaling", None) or head_dim**-0.5)
        self._norms = [getattr(layer, n, None) for n in ("q_norm", "k_norm")]
        self._tokens = 0
        self.reset()

    def reset(self) -> None:
        """Forget what has been seen."""
        self._largest: Tensor | None = None
        self._exact: Tensor | None = None
        self._rotary: tuple[Tensor, Tensor] | None = None

    def attach(self, tokens: int) -> list[Any]:
        """Watch the layer; exact logits are those of the first ``tokens`` tokens of the first sequence."""
        self._tokens = tokens
        return [
            self.layer.register_forward_pre_hook(self._before, with_kwargs=True),
            self.query.register_forward_hook(self._projected),
        ]

    def _before(self, layer: nn.Module, args: Any, kwargs: Any) -> None:
        given = kwargs.get("position_embeddings")
        self._rotary = given if isinstance(given, tuple) and len(given) == 2 else None

    @torch.no_grad()
    def _projected(self, module: nn.Module, inputs: Any, output: Tensor) -> None:
        x = inputs[0].detach()
        largest = torch.linalg.vector_norm(x, dim=-1, dtype=torch.float32).max()
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)
        if not self._tokens:
            return
        first = x.reshape(-1, x.shape[-2], x.shape[-1])[0, : self._tokens]
        # By the projections' own arithmetic, without their hooks.
        q = self._heads_of(nn.functional.linear(first, self.query.weight, self.query.bias), 0)
        k = self._heads_of(nn.functional.linear(first, self.key.weight, self.key.bias), 1)
        k = k.repeat_interleave(self.heads // self.key_heads, dim=0)
        exact = (q.float() @ k.float().mT).mul(self.scale)
        causal = torch.ones(exact.shape[-2:], dtype=torch.bool, device=exact.device).tril()
        exact = exact.masked_fill(~causal, 0.0).abs().amax((-2, -1))
        self._exact = exact if self._exact is None else torch.maximum(self._exact, exact)

    def _heads_of(self, projected: Tensor, which: int) -> Tensor:
        """(heads, tokens, head_dim), normalised and rotated as the layer does."""
        heads = projected.view(len(projected), -1, self.head_dim)
        norm = self._norms[which]
        if norm is not None:
            heads = norm(heads)
        heads = heads.transpose(0, 1)
        if self._rotary is None:
            return heads
        cos, sin = (t.reshape(-1, t.shape[-2], t.shape[-1])[0, : heads.shape[1]] for t in self._rotary)
        half = heads.shape[-1] // 2
        turned = torch.cat([-heads[..., half:], heads[..., :half]], dim=-1)
        return heads * cos + turned * sin

    def figures(self, sigmas: dict[str, list[float]]) -> list[dict[str, float]]:
        """Bound and exact maximum of each query head; ``sigmas`` holds singular values by parameter name."""
        if self._largest is None:
            return []
        bound_q = self._norms_of(self.query, f"{self.names[0]}.weight", self.heads, sigmas)
        bound_k = self._norms_of(self.key, f"{self.names[1]}.weight", self.key_heads, sigmas)
        largest = float(self._largest)
        exact = None if self._exact is None else self._exact.tolist()
        rows = []
        for head in range(self.heads):
            row = {}
            if all(n is not None for n in self._norms):
                gains = [float(n.weight.detach().abs().max()) for n in self._norms if n is not None]
                row["logit bound"] = self.head_dim * gains[0] * gains[1] * self.scale
            else:
                shared = head // (self.heads // self.key_heads)
                q = bound_q[head] * largest + _bias(self.query, head, self.head_dim)
                k = bound_k[shared] * largest + _bias(self.key, shared, self.head_dim)
                row["logit bound"] = q * k * self.scale
            if exact is not None:
                row["logit max"] = exact[head]
            rows.append(row)
        return rows

    def _norms_of(
        self, projection: nn.Linear, name: str, heads: int, sigmas: dict[str, list[float]]
    ) -> list[float]:
        """Spectral norm of each head's rows: from the optimizer if it cuts by head, else computed."""
        known = sigmas.get(name)
        if known is not None and len(known) == heads:
            return known
        stack = projection.weight.detach().float().view(heads, self.head_dim, -1)
        return torch.linalg.matrix_norm(stack, ord=2).tolist()


def attention_probes(model: nn.Module) -> list[AttentionProbe]:
    """The attention layers of a model whose queries and keys are projected apart by linear layers."""
    found = []
    for name, layer in model.named_modules():
        children = dict(layer.named_children())
        q = next((n for n in _QUERIES if isinstance(children.get(n), nn.Linear)), None)
        k = next((n for n in _KEYS if isinstance(children.get(n), nn.Linear)), None)
        if q is None or k is None:
            continue
        query, key = children[q], children[k]
        assert isinstance(query, nn.Linear)
        assert isinstance(key, nn.Linear)
        size = _first(layer, _HEAD_SIZE)
        if size is None:
            heads = _first(layer, ("num_heads", "num_attention_heads", "n_head", "n_heads"))
            key_heads = _first(layer, _KEY_HEADS)
            size = (
                query.out_features // heads if heads else key.out_features // key_heads if key_heads else None
            )
        if size and query.out_features % size == 0 and key.out_features % size == 0:
            prefix = f"{name}." if name else ""
            found.append(AttentionProbe(name, layer, query, key, (f"{prefix}{q}", f"{prefix}{k}"), size))
    return found


def _bias(projection: nn.Linear, head: int, size: int) -> float:
    if projection.bias is None:
        return 0.0
    return float(projection.bias.detach()[head * size : (head + 1) * size].norm())
