"""A fast stand-in for a fitted neuron: several sites, each with a weighted sum of currents,

    fires where  max_k  w_k . a  > 1

fitted to thresholds of simulated patterns; it screens millions of patterns, and winners are simulated again.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from icml_hhmea.posterior import NeuronPosterior


@dataclass(frozen=True)
class MultiSite:
    """The model.

    Attributes:
        weights: 1/µA, [sites, electrodes].
        error: root mean square of the error of log thresholds on held-out patterns.
    """

    weights: Float[Tensor, "sites electrodes"]
    error: float

    def log_scale(self, patterns: Float[Tensor, "patterns electrodes"]) -> Float[Tensor, " patterns"]:
        """log of the scale of each pattern at threshold, inf where no site is excited."""
        drive = (patterns.to(self.weights) @ self.weights.T).max(1).values
        return torch.where(drive > 0, -drive.clamp(min=1e-30).log(), torch.inf)

    def screen(self, patterns: Float[Tensor, "patterns electrodes"], keep: int) -> Int[Tensor, " kept"]:
        """Numbers of the patterns with the lowest thresholds, best first."""
        return self.log_scale(patterns).argsort(stable=True)[:keep]


def distil(
    posterior: NeuronPosterior,
    *,
    sites: int = 4,
    patterns: int = 500,
    electrodes: list[int] | None = None,
    steps: int = 400,
    seed: int = 0,
) -> MultiSite:
    """Fit a multi-site model to thresholds that the heaviest particle predicts.

    Args:
        patterns: random ones of one to three electrodes; a tenth is held out.
        electrodes: those with the lowest thresholds by default (eight).

    Raises:
        ValueError: fewer than 20 patterns, no site, or too few patterns that fire at all.
    """
    if patterns < 20 or sites < 1:
        raise ValueError(f"patterns={patterns} must be at least 20 and sites={sites} at least 1")
    generator = torch.Generator().manual_seed(seed)
    size = len(posterior.electrodes)
    single = torch.cat([torch.eye(size, dtype=torch.float64), -torch.eye(size, dtype=torch.float64)])
    best = _one_particle(posterior)
    own = best.predict(single).log_scale[0].nan_to_num(nan=torch.inf, posinf=torch.inf)
    lowest = torch.minimum(own[:size], own[size:])
    chosen = electrodes or lowest.argsort(stable=True)[: min(8, size)].tolist()
    typical = lowest[chosen].exp()
    typical = torch.where(torch.isfinite(typical), typical, typical[torch.isfinite(typical)].mean())
    given = torch.zeros(patterns, size, dtype=torch.float64)
    for row in given:
        count = int(torch.randint(1, 4, (1,), generator=generator))
        for k in torch.randperm(len(chosen), generator=generator)[:count].tolist():
            row[chosen[k]] = float(typical[k]) * float(2 * torch.rand(1, generator=generator) - 1)
    level = best.predict(given).log_scale[0]
    fine = torch.isfinite(level)
    if int(fine.sum()) < 20:
        raise ValueError(f"{int(fine.sum())} of {patterns} patterns fire the neuron at any scale")
    given, level = given[fine], level[fine]
    held = max(2, len(given) // 10)
    x, y = given[held:][:, chosen], level[held:]
    leaf = torch.zeros(sites, len(chosen), dtype=torch.float64)
    for k in range(sites):  # each site begins with some of the electrodes' own thresholds
        for e, index in enumerate(chosen):
            signed = torch.stack([torch.exp(-own[index]), -torch.exp(-own[size + index])])
            leaf[k, e] = (
                signed[int(signed.abs().argmax())]
                if k == 0
                else signed[k % 2] * float(torch.rand(1, generator=generator))
            )
    leaf.requires_grad_()
    optimizer = torch.optim.Adam([leaf], lr=0.03 / float(typical.mean()))
    for step in range(steps):
        temperature = 0.2 * (0.02 / 0.2) ** (step / max(1, steps - 1))
        # The pattern at its threshold drives the best site to 1.
        drive = (x * y.exp()[:, None]) @ leaf.T
        top = temperature * torch.logsumexp(drive / temperature, 1)
        loss = torch.nn.functional.smooth_l1_loss(top, torch.ones_like(top), beta=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    weights = torch.zeros(sites, size, dtype=torch.float64)
    weights[:, chosen] = leaf.detach()
    model = MultiSite(weights, 0.0)
    gap = (model.log_scale(given[:held]) - level[:held]).clamp(-2, 2)
    return MultiSite(weights, float(gap.square().mean().sqrt()))


def _one_particle(posterior: NeuronPosterior) -> NeuronPosterior:
    from dataclasses import replace

    k = int(posterior.weights.argmax())
    part = {n: getattr(posterior, n)[k : k + 1] for n in ("theta", "log_current", "rho", "losses")}
    return replace(posterior, weights=torch.ones(1, dtype=posterior.weights.dtype), **part)
