"""Networks of masked samplers: logits of every site's symbol, given the sites revealed so far.

A path reveals each site once. So its probability needs each site's logits at one prefix only:
:meth:`path_logits` gives them for all prefixes of a known path in one call, and an MLP forms the first
layers of all prefixes incrementally (``icml_kernels.prefix_embed_cumsum``) and multiplies the output layer
with the revealed sites alone.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from icml_core.randomness import seeded
from icml_kernels import prefix_embed_cumsum
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from icml_discrete_samplers.checks import require_sizes

ROWS = 8192  # masked states that a network sees in one call while a path is evaluated


def reveal_step(order: Int64[Tensor, "n D"], sizes: Int64[Tensor, " T"]) -> Int64[Tensor, "n D"]:
    """At which step each site is revealed, where step t begins with ``sizes[t]`` sites revealed."""
    places = torch.arange(order.shape[1], device=order.device)
    of_place = torch.searchsorted(sizes, places, right=True) - 1
    return torch.empty_like(order).scatter_(1, order, of_place.expand_as(order))


class MaskedModel(nn.Module):
    """A network of masked states; subclass it or wrap yours in :class:`AnyMasked`.

    Symbols are 0..V-1 and the mask is V.
    """

    def __init__(self, D: int, V: int) -> None:
        super().__init__()
        require_sizes(D, V)
        self.D, self.V = int(D), int(V)

    def logits(self, x: Int64[Tensor, "n D"]) -> Float[Tensor, "n D V"]:
        """Logits of all sites."""
        raise TypeError(f"{type(self).__name__} must define logits")

    def forward(self, x: Int64[Tensor, "n D"]) -> Float[Tensor, "n D V"]:
        """Log-probabilities of every site's symbol, given the state.

        Raises:
            ValueError: another shape, or entries outside 0..V.
        """
        if x.ndim != 2 or x.shape[1] != self.D:
            raise ValueError(f"x has shape {list(x.shape)}; expected [n, {self.D}]")
        if x.numel() and not 0 <= int(x.min()) <= int(x.max()) <= self.V:
            raise ValueError(
                f"x has symbols {int(x.min())} to {int(x.max())}; expected 0..{self.V} (the mask)"
            )
        return self.logits(x).log_softmax(-1)

    def path_logits(
        self, x: Int64[Tensor, "n D"], order: Int64[Tensor, "n D"], sizes: Int64[Tensor, " T"]
    ) -> Float[Tensor, "n D V"]:
        """Logits of each site at the prefix that reveals it: all T prefixes of all paths at once.

        Above ``ROWS`` masked states they go through the network in parts, recomputed for the gradient, so
        that memory stays bounded.
        """
        step = reveal_step(order, sizes)
        per_part = max(1, ROWS // max(1, len(x)))
        if len(sizes) <= per_part:
            return self._part(x, step, 0, len(sizes))
        total = None
        for first in range(0, len(sizes), per_part):
            last = min(first + per_part, len(sizes))
            part = checkpoint(self._part, x, step, first, last, use_reentrant=False)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _part(self, x: Tensor, step: Tensor, first: int, last: int) -> Tensor:
        """The logits of sites that steps from ``first`` up to ``last`` reveal; 0 elsewhere."""
        n, D = x.shape
        steps = torch.arange(first, last, device=x.device)
        states = torch.where(step[None] < steps[:, None, None], x[None], self.V)
        found = self.logits(states.reshape(-1, D)).view(last - first, n, D, self.V)
        here = (step >= first) & (step < last)
        index = (step - first).clamp(0, last - first - 1)
        picked = found.gather(0, index[None, :, :, None].expand(1, n, D, self.V))[0]
        return torch.where(here[..., None], picked, 0.0)

    def begin(self, n: int) -> Any:
        """The state of n paths with nothing revealed."""
        return torch.full((n, self.D), self.V, device=self.device)

    def site_logits(self, state: Any, sites: Int64[Tensor, "n k"]) -> Float[Tensor, "n k V"]:
        """Logits of the sites about to be revealed."""
        return self.logits(state).gather(1, sites[..., None].expand(-1, -1, self.V))

    def reveal(self, state: Any, sites: Int64[Tensor, "n k"], symbols: Int64[Tensor, "n k"]) -> Any:
        """The state with these sites revealed."""
        return state.scatter(1, sites, symbols)

    @property
    def device(self) -> torch.device:
        """Where the parameters lie."""
        return next(self.parameters()).device


class AnyMasked(MaskedModel):
    """A user's module ``[n, D] in 0..V -> logits [n, D, V]`` as a masked model."""

    def __init__(self, module: nn.Module, D: int, V: int) -> None:
        super().__init__(D, V)
        self.module = module

    def logits(self, x: Tensor) -> Tensor:
        """The module's."""
        found = self.module(x)
        if found.shape != (*x.shape, self.V):
            raise ValueError(f"the module gave shape {list(found.shape)}; expected {[*x.shape, self.V]}")
        return found


class MaskedMLP(MaskedModel):
    """One-hot symbols of V + 1 kinds, ``layers`` hidden layers with ELU, one output a site and symbol.

    Args:
        D: sites.
        V: symbols, without the mask.
        hidden: width.
        layers: hidden layers.
        seed: of the initial weights.

    Raises:
        ValueError: sizes that are not positive.
    """

    def __init__(self, D: int, V: int, hidden: int = 256, layers: int = 4, seed: int = 0) -> None:
        super().__init__(D, V)
        if hidden < 1 or layers < 1:
            raise ValueError(f"hidden={hidden} and layers={layers} must be positive")
        self.config = {"name": "masked_mlp", "D": D, "V": V, "hidden": hidden, "layers": layers}
        with seeded(seed):
            self.weight_in = nn.Parameter(_uniform((D, V + 1, hidden), D * (V + 1)))
            self.bias_in = nn.Parameter(_uniform((hidden,), D * (V + 1)))
            self.hidden = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers - 1))
            self.weight_out = nn.Parameter(_uniform((D, hidden, V), hidden))
            self.bias_out = nn.Parameter(_uniform((D, V), hidden))

    def _trunk(self, sums: Float[Tensor, "*n H"]) -> Float[Tensor, "*n H"]:
        return self._deeper(sums + self.bias_in)

    def _deeper(self, first: Float[Tensor, "*n H"]) -> Float[Tensor, "*n H"]:
        h = nn.functional.elu(first)
        for layer in self.hidden:
            h = nn.functional.elu(layer(h))
        return h

    def logits(self, x: Tensor) -> Tensor:
        """Logits of all sites."""
        places = x + torch.arange(self.D, device=x.device) * (self.V + 1)
        sums = nn.functional.embedding_bag(places, self.weight_in.flatten(0, 1), mode="sum")
        wide = self.weight_out.permute(1, 0, 2).reshape(-1, self.D * self.V)
        return (self._trunk(sums) @ wide).view(len(x), self.D, self.V) + self.bias_out

    def path_logits(self, x: Tensor, order: Tensor, sizes: Tensor) -> Tensor:
        """First layers by prefix sums, O(n D H); output layers at the revealed sites alone, O(n D H V)."""
        n = len(x)
        sums = prefix_embed_cumsum(self.weight_in, x, order, sizes, trusted=True)
        h = self._trunk(sums).flatten(0, 1)
        rows = reveal_step(order, sizes).T * n + torch.arange(n, device=x.device)
        by_site = h.index_select(0, rows.reshape(-1)).view(self.D, n, h.shape[1])
        return torch.baddbmm(self.bias_out[:, None], by_site, self.weight_out).transpose(0, 1)

    def begin(self, n: int) -> Any:
        """First-layer sums of the empty prefix, and by how much each symbol of each site changes them."""
        mask = self.weight_in[:, self.V :]
        start = (mask.sum((0, 1)) + self.bias_in).expand(n, -1)
        return start, (self.weight_in[:, : self.V] - mask).flatten(0, 1)

    def site_logits(self, state: Any, sites: Tensor) -> Tensor:
        """Output rows of these sites alone."""
        n, k = sites.shape
        flat = sites.reshape(-1)
        h = self._deeper(state[0])
        if k > 1:
            h = h.repeat_interleave(k, 0)
        weight, bias = self.weight_out.index_select(0, flat), self.bias_out.index_select(0, flat)
        return torch.baddbmm(bias[:, None], h[:, None], weight).view(n, k, self.V)

    def reveal(self, state: Any, sites: Tensor, symbols: Tensor) -> Any:
        """The sums with the columns of these sites exchanged."""
        sums, table = state
        n, k = sites.shape
        change = table.index_select(0, (sites * self.V + symbols).reshape(-1))
        return sums + (change if k == 1 else change.view(n, k, -1).sum(1)), table


class MaskedViT(MaskedModel):
    """A transformer over the sites of an L x L lattice, with mixed rotary positions.

    Symbols and learned absolute positions are embedded, a class token stands in front, queries and keys are
    rotated by learned mixtures of both coordinates (Heo et al., Rotary position embedding for vision
    transformer, ECCV 2024).

    Args:
        L: side of the lattice.
        V: symbols, without the mask.
        dim: width, a multiple of 4 times ``heads`` (64 for Ising and 128 for Potts in the paper).
        blocks: attention blocks.
        heads: attention heads.
        ratio: width of the feed-forward layer over ``dim``.
        theta: base of the initial frequencies.
        seed: of the initial weights.

    Raises:
        ValueError: sizes that do not fit.
    """

    def __init__(
        self,
        L: int,
        V: int,
        dim: int = 64,
        blocks: int = 2,
        heads: int = 4,
        ratio: int = 4,
        theta: float = 10.0,
        seed: int = 0,
    ) -> None:
        super().__init__(L * L, V)
        if dim % (4 * heads):
            raise ValueError(f"dim={dim} must be a multiple of 4 times heads={heads}")
        self.config = {"name": "masked_vit", "L": L, "V": V, "dim": dim, "blocks": blocks, "heads": heads}
        self.config |= {"ratio": ratio, "theta": theta}
        with seeded(seed):
            self.symbols = nn.Embedding(V + 1, dim)
            self.positions = nn.Parameter(0.02 * torch.randn(L * L, dim))
            self.token = nn.Parameter(0.02 * torch.randn(dim))
            self.blocks = nn.ModuleList(_Block(L, dim, heads, ratio, theta) for _ in range(blocks))
            self.norm = nn.LayerNorm(dim, eps=1e-6)
            self.head = nn.Linear(dim, V)

    def logits(self, x: Tensor) -> Tensor:
        """Logits of all sites."""
        h = self.symbols(x) + self.positions
        h = torch.cat([self.token.expand(len(x), 1, -1), h], 1)
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h[:, 1:]))


class _Block(nn.Module):
    def __init__(self, L: int, dim: int, heads: int, ratio: int, theta: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(dim, eps=1e-6)
        self.norm_forward = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.forward_layers = nn.Sequential(
            nn.Linear(dim, ratio * dim), nn.GELU(), nn.Linear(ratio * dim, dim)
        )
        pairs = dim // heads // 2
        size = theta ** -(torch.arange(pairs // 2) * 2 / pairs)
        angle = torch.rand(heads, 1) * 2 * math.pi
        # Half of the pairs look along a random direction, half across it, in each head.
        along, across = (
            torch.stack([size * torch.cos(angle + a), size * torch.sin(angle + a)]) for a in (0, math.pi / 2)
        )
        self.frequency = nn.Parameter(torch.cat([along, across], -1))
        row, column = torch.meshgrid(torch.arange(L), torch.arange(L), indexing="ij")
        self.register_buffer(
            "place", torch.stack([row.flatten(), column.flatten()]).float(), persistent=False
        )

    def _rotated(self, x: Tensor) -> Tensor:
        """Queries or keys [n, heads, 1 + D, width]; the class token stays."""
        angle = torch.einsum("as,ahp->hsp", self.place.to(self.frequency.dtype), self.frequency)
        cos, sin = angle.cos(), angle.sin()
        first, second = x[:, :, 1:, 0::2], x[:, :, 1:, 1::2]
        turned = torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
        return torch.cat([x[:, :, :1], turned], 2)

    def forward(self, h: Tensor) -> Tensor:
        n, tokens, dim = h.shape
        qkv = self.qkv(self.norm_attention(h)).view(n, tokens, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(self._rotated(q), self._rotated(k), v)
        h = h + self.out(mixed.transpose(1, 2).reshape(n, tokens, dim))
        return h + self.forward_layers(self.norm_forward(h))


START = 1e-9  # standard deviation of the last layer of a bridge's network before training


class UniformMLP(nn.Module):
    """Logits of the next state of every site, for kernels that redraw all sites at each step.

    Residual layers with SELU; one-hot symbols and a sinusoidal embedding of the time are added up. The
    reference process, which stays with logit ``stay`` and else moves evenly, is added to the output, whose
    layer starts at 1e-9: an untrained network is the reference to seven digits, and no matrix is zero, which
    optimizers on spheres could not place.

    Args:
        D: sites.
        V: symbols.
        hidden: width, even.
        layers: residual layers.
        stay: logit of staying at the reference.
        seed: of the initial weights.

    Raises:
        ValueError: sizes that do not fit.
    """

    def __init__(
        self, D: int, V: int, hidden: int = 256, layers: int = 4, stay: float = 0.0, seed: int = 0
    ) -> None:
        super().__init__()
        require_sizes(D, V)
        if hidden < 2 or hidden % 2 or layers < 1:
            raise ValueError(f"hidden={hidden} must be even and positive, and layers={layers} positive")
        self.D, self.V, self.stay = int(D), int(V), float(stay)
        self.config = {
            "name": "uniform_mlp",
            "D": D,
            "V": V,
            "hidden": hidden,
            "layers": layers,
            "stay": stay,
        }
        with seeded(seed):
            self.symbols = nn.Parameter(_uniform((D * V, hidden), D))
            self.time = nn.Linear(hidden, hidden)
            self.layers = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
            self.head = nn.Linear(hidden, D * V)
            nn.init.normal_(self.head.weight, std=START)
        nn.init.zeros_(self.head.bias)
        rates = torch.exp(torch.linspace(0, math.log(1000.0), hidden // 2))
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, x: Int64[Tensor, "n D"], t: Float[Tensor, "n 1"]) -> Float[Tensor, "n D V"]:
        """Logits of every site's next symbol at time t in [0, 1].

        Raises:
            ValueError: shapes that do not match, or symbols out of range.
        """
        if x.ndim != 2 or x.shape[1] != self.D or t.shape != (len(x), 1):
            raise ValueError(
                f"x and t have shapes {list(x.shape)} and {list(t.shape)}; expected [n, {self.D}] and [n, 1]"
            )
        if x.numel() and not 0 <= int(x.min()) <= int(x.max()) < self.V:
            raise ValueError(f"x has symbols {int(x.min())} to {int(x.max())}; expected 0..{self.V - 1}")
        return self.logits(x, t)

    def logits(self, x: Int64[Tensor, "n D"], t: Float[Tensor, "n 1"]) -> Float[Tensor, "n D V"]:
        """The same without looking at x first, which waits for the device."""
        places = x + torch.arange(self.D, device=x.device) * self.V
        phase = t.to(self.symbols.dtype) * self.rates.to(self.symbols.dtype)
        h = nn.functional.embedding_bag(places, self.symbols, mode="sum")
        h = h + self.time(torch.cat([phase.sin(), phase.cos()], -1))
        for layer in self.layers:
            h = h + nn.functional.selu(layer(h))
        found = self.head(h).view(len(x), self.D, self.V)
        return found + self.stay * nn.functional.one_hot(x, self.V).to(found.dtype)


def _uniform(shape: tuple[int, ...], inputs: int) -> Tensor:
    """torch's default of a linear layer: even within 1 / sqrt(inputs)."""
    return (torch.rand(shape) * 2 - 1) / math.sqrt(inputs)


def build_masked(model: Any, D: int, V: int, seed: int = 0, **options: Any) -> MaskedModel:
    """A masked model by name, or the user's module.

    Args:
        model: ``"masked_mlp"``, ``"masked_vit"`` (of a square number of sites), a :class:`MaskedModel`, or a
            module from states [n, D] to logits [n, D, V].
        D: sites.
        V: symbols.
        seed: of the initial weights.
        options: of the network.

    Raises:
        TypeError: something else.
        ValueError: an unknown name, a lattice that is not square, or a model of another size.
    """
    if isinstance(model, MaskedModel):
        if (model.D, model.V) != (D, V):
            raise ValueError(f"the model has D={model.D}, V={model.V}; the energy has D={D}, V={V}")
        return model
    if isinstance(model, nn.Module):
        return AnyMasked(model, D, V)
    if model == "masked_mlp":
        return MaskedMLP(D, V, seed=seed, **options)
    if model == "masked_vit":
        L = math.isqrt(D)
        if L * L != D:
            raise ValueError(f"masked_vit wants a square lattice, and D={D} is no square; take masked_mlp")
        return MaskedViT(L, V, seed=seed, **options)
    if isinstance(model, str):
        raise ValueError(
            f"unknown model {model!r}; there are masked_mlp and masked_vit, or give a torch module"
        )
    raise TypeError(f"model is a {type(model).__name__}; expected a name or a torch module")


def from_config(config: dict[str, Any]) -> nn.Module:
    """The network that a saved configuration describes.

    Raises:
        ValueError: an unknown name or wrong options.
    """
    kinds = {"masked_mlp": MaskedMLP, "masked_vit": MaskedViT, "uniform_mlp": UniformMLP}
    options = dict(config)
    name = options.pop("name", None)
    if name not in kinds:
        raise ValueError(f"unknown network {name!r}; there are {', '.join(kinds)}")
    try:
        return kinds[name](**options)
    except TypeError as error:
        raise ValueError(f"the saved options of {name} do not fit: {error}") from error
