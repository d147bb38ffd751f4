"""Masked diffusion: reveal a few sites a step in random order, and weigh the path by log rho - log F.

A path begins at all masks. A random permutation gives the order of the sites; at step n the next k_n of them
are revealed, each from the network's distribution at the state so far (F). Noising back (B) masks in random
order too, so that permutations cancel, and

    log_rnd(path) = log rho(x) - sum_n sum_{i revealed at n} log F(x_i | X_n)

has E_F[exp(log_rnd)] = Z: its mean over the sampler's own paths is a lower bound of log Z (ELBO), over paths
noised back from true samples an upper bound (EUBO). A path is known by its end and its order alone, so that
any end, whoever found it, gives a path on which a loss is valid; all its prefixes are evaluated in one call.
(arXiv 2602.05961, section 3.)
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import torch
from icml_kernels import unmask_step
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from icml_discrete_samplers.networks import MaskedModel

Steps = int | tuple[int, int] | list[int]


class Path(NamedTuple):
    """Paths by their ends.

    Attributes:
        x: the states at the end.
        order: in which order the sites were revealed.
        sizes: how many were revealed before each step.
    """

    x: Int64[Tensor, "n D"]
    order: Int64[Tensor, "n D"]
    sizes: Int64[Tensor, " T"]


def schedule(D: int, k: Steps, generator: torch.Generator) -> Int64[Tensor, " T"]:
    """How many sites are revealed before each step.

    Args:
        D: sites.
        k: sites a step: a number, or (k_min, k_max), each step drawn evenly between them; the last step
            takes what remains. A list is the whole schedule.
        generator: of the draw; its device is the result's.

    Raises:
        ValueError: k_min < 1, k_max < k_min, or a list that does not add up to D.
    """
    device = generator.device
    if isinstance(k, list):
        if any(step < 1 for step in k) or sum(k) != D:
            raise ValueError(
                f"the schedule {k} must be of positive steps that add up to D={D}; they give {sum(k)}"
            )
        counts = torch.tensor(k, device=device)
    else:
        low, high = (k, k) if isinstance(k, int) else k
        if low < 1 or high < low:
            raise ValueError(f"k={k}: a step must reveal k_min >= 1 sites, and k_max not fewer")
        counts = torch.randint(low, high + 1, (-(-D // low),), generator=generator, device=device)
    ends = counts.cumsum(0)
    starts = ends - counts
    return starts[starts < D]


def random_order(n: int, D: int, generator: torch.Generator) -> Int64[Tensor, "n D"]:
    """A permutation of the sites for each path."""
    return torch.rand(n, D, generator=generator, device=generator.device, dtype=torch.float64).argsort(1)


@torch.no_grad()
def rollout(
    model: MaskedModel, n: int, sizes: Int64[Tensor, " T"], generator: torch.Generator
) -> tuple[Path, Float64[Tensor, " n"]]:
    """Draw n paths from the sampler; paths are detached, and their log-probabilities log F come with them."""
    order = random_order(n, model.D, generator)
    state: Any = model.begin(n)
    bounds = [*sizes.tolist(), model.D]
    uniforms = torch.rand(n, model.D, generator=generator, device=order.device, dtype=torch.float64)
    drawn, logs = [], []
    for first, last in pairwise(bounds):
        sites = order[:, first:last]
        symbols, logp = unmask_step(model.site_logits(state, sites), uniforms[:, first:last], trusted=True)
        drawn.append(symbols)
        logs.append(logp)
        if last < model.D:
            state = model.reveal(state, sites, symbols)
    x = torch.empty_like(order).scatter_(1, order, torch.cat(drawn, 1))
    return Path(x, order, sizes), torch.stack(logs).sum(0)


def roll_back(x: Int64[Tensor, "n D"], k: Steps, generator: torch.Generator) -> Path:
    """Mask states again in a fresh random order: a path of the noising process that ends in them. x is
    copied.
    """
    return Path(x.clone(), random_order(*x.shape, generator), schedule(x.shape[1], k, generator))


def path_log_prob(model: MaskedModel, path: Path) -> Float[Tensor, " n"]:
    """log F of known paths, differentiable in the network: all prefixes in one call."""
    found = model.path_logits(path.x, path.order, path.sizes).log_softmax(-1)
    return found.gather(-1, path.x[..., None])[..., 0].sum(1)


def path_log_prob_step_by_step(model: MaskedModel, path: Path) -> Float[Tensor, " n"]:
    """The same by one call of the whole network a step, as a loop over the path does: what tests and
    benchmarks compare.
    """
    state = torch.full_like(path.x, model.V)
    total: Any = 0.0
    bounds = [*path.sizes.tolist(), path.x.shape[1]]
    for first, last in pairwise(bounds):
        sites = path.order[:, first:last]
        symbols = path.x.gather(1, sites)
        logits = model.logits(state).gather(1, sites[..., None].expand(-1, -1, model.V))
        total = total + logits.log_softmax(-1).gather(-1, symbols[..., None]).sum((1, 2))
        state = state.scatter(1, sites, symbols)
    return total
