"""The two heads: log F_chem(s, a) of the untruncated space and log λ(s, a), the share that ends within the
budget.

    F_valid(s, a) = F_chem(s, a) λ(s, a),    λ = sigmoid(l)

An encoder gives a vector for each site at which actions attach (one for a flat world, the open slots of a
molecule) and one for the state. The λ head alone sees what is left of the budget.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from icml_core.randomness import seeded
from jaxtyping import Float, Int
from torch import Tensor, nn

LOG_LEAST_FRACTION = math.log(1e-20)  # the floor of λ in the official code
_SMALL = 0.1  # of the scales and shifts by budget, at first


class Flows(NamedTuple):
    """What the network says of each state.

    Attributes:
        chem: log F_chem of every adding action.
        log_fraction: log λ of every adding action, below 0.
        stop: log F_stop.
        state: log F of the state, for detailed balance.
    """

    chem: Float[Tensor, "n edges"]
    log_fraction: Float[Tensor, "n edges"]
    stop: Float[Tensor, " n"]
    state: Float[Tensor, " n"]


class Encoded(NamedTuple):
    """What an encoder gives.

    Attributes:
        sites: a vector for each site at which actions attach.
        row: the state of each site.
        place: the number of each site in its state.
        width: most sites of a state.
        state: a vector for each state.
    """

    sites: Float[Tensor, "sites hidden"]
    row: Int[Tensor, " sites"]
    place: Int[Tensor, " sites"]
    width: int
    state: Float[Tensor, "n hidden"]


def perceptron(inputs: int, hidden: int, outputs: int, layers: int = 2) -> nn.Sequential:
    """Linear layers with leaky rectifiers between them."""
    sizes = [inputs, *[hidden] * (layers - 1), outputs]
    parts: list[nn.Module] = []
    for before, after in pairwise(sizes):
        parts += [nn.Linear(before, after), nn.LeakyReLU()]
    return nn.Sequential(*parts[:-1])


class BudgetFilm(nn.Module):
    """h (1 + g_r) + b_r: features scaled and shifted by what remains of the budget (FiLM, Perez et al. 2018).

    What a state is worth to the λ head depends on the budget as a factor does: a bracket too many is nothing
    with ten actions left and everything with one. A sum of the two cannot say so in one layer.

    Args:
        budgets: largest remaining budget.
        width: of the features.
    """

    def __init__(self, budgets: int, width: int) -> None:
        super().__init__()
        self.budgets = budgets
        self.gain = nn.Embedding(budgets + 1, width)
        self.shift = nn.Embedding(budgets + 1, width)
        with torch.no_grad():  # at first all budgets are alike, and no matrix is 0
            for table in (self.gain, self.shift):
                table.weight.copy_(_SMALL * table.weight[:1].expand_as(table.weight))

    def forward(
        self, features: Float[Tensor, "n width"], remaining: Int[Tensor, " n"]
    ) -> Float[Tensor, "n width"]:
        """Features under each row's budget."""
        return features * (1 + self.gain(remaining)) + self.shift(remaining)


class FlatEncoder(nn.Module):
    """A perceptron on a flat vector: one site.

    Args:
        inputs: length of the vector ``features["vector"]``; or of the one-hot form of a tree.
        hidden: width.
        layers: hidden layers.
        conditions: length of a condition that is appended.
        trees: for molecules, how many kinds, blocks and slots there are: the tree in one-hot form is the
            vector.
    """

    def __init__(
        self,
        inputs: int,
        *,
        hidden: int = 128,
        layers: int = 2,
        conditions: int = 0,
        trees: tuple[int, int, int] | None = None,
    ) -> None:
        super().__init__()
        self.trees = trees
        self.hidden, self.outputs = hidden, hidden
        self.body = nn.Sequential(perceptron(inputs + conditions, hidden, hidden, layers), nn.LeakyReLU())

    @staticmethod
    def tree_width(kinds: int, nodes: int, slots: int) -> int:
        """Length of a tree's one-hot form."""
        return nodes * ((kinds + 1) + (nodes + 1) + 2 * (slots + 1))

    def forward(self, features: dict[str, Tensor], condition: Float[Tensor, "n dim"] | None) -> Encoded:
        """The state's vector is that of its one site."""
        weight = next(self.parameters())
        if self.trees is None:
            x = features["vector"].to(weight)
        else:
            kinds, nodes, slots = self.trees
            parts = features["trees"] + 1
            sizes = (kinds + 1, nodes + 1, slots + 1, slots + 1)
            hot = [nn.functional.one_hot(parts[:, k], size).flatten(1) for k, size in enumerate(sizes)]
            x = torch.cat(hot, dim=1).to(weight)
        if condition is not None:
            x = torch.cat([x, condition.to(weight)], dim=1)
        h = self.body(x)
        rows = torch.arange(len(h), device=h.device)
        return Encoded(h, rows, torch.zeros_like(rows), 1, h)


class BlockGraphEncoder(nn.Module):
    """Message passing on the tree of blocks; a site is an open slot.

    Messages along a join of slots (t, u) go through a matrix of rank one, a_tu (b_tu · h), whose two vectors
    are embeddings; they are averaged over neighbours, pass a leaky rectifier, and update the nodes by a GRU.

    Args:
        kinds: kinds of blocks.
        slots: most slots of a block.
        hidden: width; 256 in the paper, 128 for QED and SA.
        steps: of message passing.
        conditions: length of a condition that is appended to every node and site.
        blocks: most blocks of a state. How many it has is told through ``features["length"]``: a mean over
            nodes does not show it. 0: it is not told.
    """

    def __init__(
        self,
        kinds: int,
        slots: int,
        *,
        hidden: int = 128,
        steps: int = 8,
        conditions: int = 0,
        blocks: int = 0,
    ) -> None:
        super().__init__()
        self.hidden, self.outputs, self.steps = hidden, hidden, steps
        # The last row stands for a state without blocks, whose first block is chosen freely.
        self.nodes = nn.Embedding(kinds + 1, hidden)
        self.kinds, self.slots = kinds, slots
        joins = kinds * slots
        self.sends = nn.Embedding(joins, hidden)
        self.receives = nn.Embedding(joins, hidden)
        self.site = nn.Embedding(joins + 1, hidden)
        self.message = nn.Linear(hidden, hidden)
        self.update = nn.GRUCell(hidden, hidden)
        self.conditions = nn.Linear(conditions, hidden) if conditions else None
        self.sizes = nn.Embedding(blocks + 1, hidden) if blocks else None
        self.out = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.LeakyReLU())
        with torch.no_grad():
            for table in (self.sends, self.receives):
                table.weight.mul_(hidden**-0.25)

    def forward(self, features: dict[str, Tensor], condition: Float[Tensor, "n dim"] | None) -> Encoded:
        """Vectors of the open slots and of the states."""
        trees = features["trees"]
        kind, parent, up_slot, own_slot = trees.unbind(1)
        n, width = kind.shape
        there = kind >= 0
        node_kind = torch.where(there, kind, self.kinds)
        h = self.nodes(node_kind)
        if self.conditions is not None:
            assert condition is not None
            h = h + self.conditions(condition.to(h))[:, None]
        row, child = torch.nonzero(parent >= 0, as_tuple=True)
        above = parent[row, child]
        one, two = row * width + child, row * width + above
        type_one = kind[row, child] * self.slots + own_slot[row, child]
        type_two = kind[row, above] * self.slots + up_slot[row, child]
        source, target = torch.cat([one, two]), torch.cat([two, one])
        leave, arrive = torch.cat([type_one, type_two]), torch.cat([type_two, type_one])
        b, a = self.sends(leave), self.receives(arrive)
        h = h.reshape(n * width, self.hidden)
        degree = h.new_zeros(n * width).index_add(0, target, h.new_ones(len(target))).clamp_min(1.0)
        for _ in range(self.steps):
            sent = a * (b * h[source]).sum(dim=1, keepdim=True)
            got = torch.zeros_like(h).index_add(0, target, sent) / degree[:, None]
            h = self.update(nn.functional.leaky_relu(self.message(h) + got), h)
        h = h.reshape(n, width, self.hidden)
        weight = there.to(h.dtype)
        # The empty state has the one node that stands for it.
        alone = torch.arange(width, device=h.device) == 0
        weight = torch.where(there.any(dim=1, keepdim=True), weight, alone.to(h.dtype))
        state = (h * weight[:, :, None]).sum(dim=1) / weight.sum(dim=1, keepdim=True)
        if self.sizes is not None:
            state = state + self.sizes(features["length"])
        node, slot = features["stem_nodes"], features["stem_slots"]
        # The empty state has one site, on no node.
        there_is = (node >= 0) | ((node[:, :1] < 0) & (torch.arange(node.shape[1], device=node.device) == 0))
        row, place = torch.nonzero(there_is, as_tuple=True)
        node, slot = node[row, place], slot[row, place]
        kind_there = kind[row, node.clamp_min(0)]
        label = torch.where(node >= 0, kind_there.clamp_min(0) * self.slots + slot, self.kinds * self.slots)
        at = h[row, node.clamp_min(0)] + self.site(label)
        sites = self.out(torch.cat([at, state[row]], dim=1))
        return Encoded(sites, row, place, features["stem_nodes"].shape[1], state)


class DualHead(nn.Module):
    """An encoder and the heads c (log F_chem), l (log λ), m (log F_stop) and the state's own flow.

    Args:
        encoder: gives vectors of sites and states of width ``encoder.outputs``.
        outputs: actions at each site.
        hidden: width of the heads.
        layers: layers of each head.
        budgets: largest remaining budget that the λ head may be told; 0: it is not told.

    Raises:
        ValueError: sizes that are not positive.
    """

    def __init__(
        self,
        encoder: nn.Module,
        outputs: int,
        *,
        hidden: int = 128,
        layers: int = 2,
        budgets: int = 0,
    ) -> None:
        super().__init__()
        if outputs < 1 or hidden < 1 or layers < 1 or budgets < 0:
            raise ValueError(
                f"outputs={outputs}, hidden={hidden}, layers={layers} must be positive, "
                f"budgets={budgets} not negative"
            )
        width = encoder.outputs
        self.encoder = encoder
        self.chem = perceptron(width, hidden, outputs, layers)
        self.fraction = perceptron(width, hidden, outputs, layers)
        self.stop = perceptron(width, hidden, 1, layers)
        self.state = perceptron(width, hidden, 1, layers)
        self.budgets = budgets
        self.film = BudgetFilm(budgets, width) if budgets else None
        # What a baseline does not use need not be computed for it.
        self.with_fraction = self.with_state = True

    def forward(
        self,
        features: dict[str, Tensor],
        remaining: Int[Tensor, " n"] | None = None,
        condition: Float[Tensor, "n dim"] | None = None,
    ) -> Flows:
        """Log flows of states.

        Args:
            features: what the environment's ``features`` gives, on the network's device.
            remaining: actions left of each state's budget.
            condition: a vector for each state.

        Raises:
            ValueError: the budget is missing where the λ head is told it, or above ``budgets``.
        """
        coded: Encoded = self.encoder(features, condition)
        chem = self._by_state(self.chem(coded.sites), coded)
        stop = self.stop(coded.state)[:, 0]
        state = self.state(coded.state)[:, 0] if self.with_state else stop
        if not self.with_fraction:
            return Flows(chem, torch.zeros_like(chem), stop, state)
        seen = coded.sites
        if self.film is not None:
            if remaining is None:
                raise ValueError("this network is told what remains of the budget: give remaining")
            if len(remaining) and int(remaining.max()) > self.budgets:
                raise ValueError(
                    f"remaining={int(remaining.max())} is above {self.budgets}, the largest budget it "
                    "was built for"
                )
            # Beyond its budget a state is seen by the chemical flow alone.
            left = remaining.clamp_min(0)
            seen = self.film(seen, left if coded.width == 1 else left[coded.row])
        logit = self.fraction(seen)
        floor = torch.full_like(logit, LOG_LEAST_FRACTION)
        log_fraction = torch.logaddexp(nn.functional.logsigmoid(logit), floor)
        return Flows(chem, self._by_state(log_fraction, coded), stop, state)

    @staticmethod
    def _by_state(values: Float[Tensor, "sites outputs"], coded: Encoded) -> Float[Tensor, "n edges"]:
        """Site after site; 0 at sites that a state does not have, which its mask hides."""
        n = len(coded.state)
        if coded.width == 1:
            return values
        where = coded.row * coded.width + coded.place
        out = values.new_zeros(n * coded.width, values.shape[1]).index_copy(0, where, values)
        return out.reshape(n, -1)


def placement(device: str, dtype: torch.dtype) -> tuple[torch.device, torch.dtype]:
    """Where a network is put, "auto" for the best device there is, and in which precision.

    Raises:
        TypeError: a dtype that is no floating-point type.
    """
    if not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        raise TypeError(f"dtype={dtype} is no floating-point type; try torch.float32 or torch.float64")
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(device), dtype


def build_network(
    env: Any,
    kind: str,
    *,
    hidden: int = 128,
    layers: int = 2,
    steps: int = 8,
    budget_aware: bool = True,
    conditions: int = 0,
    seed: int = 0,
) -> DualHead:
    """The network for an environment.

    Args:
        env: its features and actions.
        kind: "graph" for molecules, "mlp" for anything with flat features, and for small molecules.
        hidden: width.
        layers: of the perceptron, and of the heads.
        steps: of message passing.
        budget_aware: whether the λ head is told what remains of the budget.
        conditions: length of a condition.
        seed: of the first weights.

    Raises:
        ValueError: another kind, or a graph asked for an environment without one.
    """
    library = getattr(env, "library", None)
    budgets = env.horizon if budget_aware else 0
    with seeded(seed):
        if kind == "graph":
            if library is None:
                raise ValueError(
                    f"net='graph' needs molecules of blocks; {type(env).__name__} takes net='mlp'"
                )
            encoder: nn.Module = BlockGraphEncoder(
                len(library),
                library.widest,
                hidden=hidden,
                steps=steps,
                conditions=conditions,
                blocks=env.horizon,
            )
            return DualHead(encoder, env.n_arms, hidden=hidden, layers=layers, budgets=budgets)
        if kind != "mlp":
            raise ValueError(f"net={kind!r} is neither 'graph' nor 'mlp' nor a module")
        trees = None if library is None else (len(library), env.horizon, library.widest)
        if trees is None:
            width = int(env.features(env.reset(1))["vector"].shape[1])
        else:
            width = FlatEncoder.tree_width(*trees)
        encoder = FlatEncoder(width, hidden=hidden, layers=layers, conditions=conditions, trees=trees)
        return DualHead(encoder, env.n_actions - 1, hidden=hidden, layers=layers, budgets=budgets)
