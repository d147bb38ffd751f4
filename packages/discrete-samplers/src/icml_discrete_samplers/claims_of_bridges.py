"""Claims on data-to-energy bridges: the end is right off-policy, and the transport is Schrödinger's,
neither as cheap as standing still nor as dear as forgetting where one came from.
"""

from __future__ import annotations

from typing import Any

from icml_core import ClaimSuite, Run

SIZES: dict[str, dict[str, Any]] = {
    "smoke": {"bits": 2, "steps": 2, "rounds": 1, "updates": 2, "batch": 8, "hidden": 8, "layers": 1},
    "small": {"bits": 5, "steps": 8, "rounds": 6, "updates": 150, "batch": 128, "hidden": 128, "layers": 3},
    "full": {"bits": 5, "steps": 8, "rounds": 50, "updates": 2500, "batch": 256, "hidden": 256, "layers": 4},
}
# One reference on both sides, of the paper's on-policy value: at 2.0 and eight steps a site flips with
# probability 0.44 over the whole chain, and the bridge is hardly told from independent ends.
LEARNING = {"lr_forward": 1e-3, "lr_backward": 1e-3, "stay": 3.5, "chains": 128, "mcmc_steps": 20}


def bridges(run: Run, seed: int) -> dict[str, float]:
    """Three to nine Gaussians on two Gray-coded coordinates: exact law of the end and exact cost of the
    transport.

    The oracle is the Schrödinger coupling of the reference's kernel, by Sinkhorn scaling. ``cost`` is the
    mean Hamming cost relative to it, and ``saving`` what is saved against independent ends, as a share of
    what the coupling saves; both as distances from 1. The ablations: ``on-policy`` trains on-policy instead,
    and ``untrained`` takes the reference itself.
    """
    import torch

    from icml_discrete_samplers import experiments as e
    from icml_discrete_samplers.bridge import fit_bridge
    from icml_discrete_samplers.exact import bridge_kernel, enumerate_law, schroedinger_coupling, states_of
    from icml_discrete_samplers.metrics import total_variation
    from icml_discrete_samplers.networks import UniformMLP
    from icml_discrete_samplers.targets import mixture

    sizes = dict(SIZES[run.scale])
    bits = sizes.pop("bits")
    first, second = e.seeds_of(seed, 2)
    source = mixture(3, 2, bits, 30.0, 35.0, first)
    aim = mixture(9, 2, bits, 30.0, 35.0, second)
    p0, p1 = (enumerate_law(t.energy).log_prob.exp() for t in (source, aim))
    D = aim.energy.D
    states = states_of(torch.arange(len(p0)), D, 2)
    apart = torch.cdist(states.double(), states.double(), p=0)
    reference = bridge_kernel(UniformMLP(D, 2, 8, 1, LEARNING["stay"]), sizes["steps"])

    def cost(plan: torch.Tensor) -> float:
        return float((plan * apart).sum())

    wanted, independent = cost(schroedinger_coupling(reference, p0, p1)), cost(p0[:, None] * p1)
    data = source.sample(20_000, seed)
    figures = {"cost_independent": abs(independent / wanted - 1)}
    for name in ("on", "off"):
        if name == "off" and run.ablation == "on-policy":
            figures |= {f"{figure}_off": figures[f"{figure}_on"] for figure in ("tv", "cost", "saving")}
            break
        kernel = reference
        if run.ablation != "untrained":
            options = {"off_policy": name == "off", "seed": seed, "device": run.device}
            bridge = fit_bridge(data, aim.energy, **options, **sizes, **LEARNING)
            kernel = bridge_kernel(bridge.forward_model.cpu(), sizes["steps"])
        found = cost(p0[:, None] * kernel)
        figures[f"tv_{name}"] = total_variation(p0 @ kernel, p1)
        figures[f"cost_{name}"] = abs(found / wanted - 1)
        figures[f"saving_{name}"] = abs((independent - found) / (independent - wanted) - 1)
    return figures


def add_claims(suite: ClaimSuite) -> None:
    """Declare the measures and claims of this module."""
    measure = suite.measure(seeds={"smoke": 1, "small": 3, "full": 5}, ablations=("on-policy", "untrained"))(
        bridges
    )
    paper = "10 to 40 Gaussians: on-policy collapses, off-policy succeeds (a figure)."
    suite.claim(
        "off-policy-bridge-ends-closer",
        of=measure,
        figure="tv_off",
        baseline="tv_on",
        kind="mean",
        at_most=0.0,
        statement="The end's exact total variation to the energy is lower off-policy than on-policy.",
        paper=paper,
        unit="total variation",
        teeth="on-policy",
    )
    suite.claim(
        "bridge-transports-as-cheaply-as-schroedinger",
        of=measure,
        figure="cost_off",
        kind="every",
        at_most=0.15,
        statement="The mean Hamming cost of the transport is within 15 % of the exact Schrödinger "
        "coupling's.",
        paper="Discrete data-to-energy bridges work (qualitative).",
        unit="relative",
        teeth="untrained",
    )
    suite.claim(
        "bridge-saves-what-schroedinger-saves",
        of=measure,
        figure="saving_off",
        kind="every",
        at_most=0.15,
        statement="What the transport saves against independent ends is within 15 % of what the exact "
        "Schrödinger coupling saves.",
        paper="Discrete data-to-energy bridges work (qualitative).",
        unit="relative",
        teeth="untrained",
    )
    suite.claim(
        "independent-ends-are-no-bridge",
        of=measure,
        figure="cost_independent",
        kind="every",
        at_least=0.15,
        statement="Independent ends would miss the bound on the cost.",
        paper="A check of the measure.",
        unit="relative",
    )
    suite.claim(
        "bridge-end",
        of=measure,
        figure="tv_off",
        kind="mean",
        statement="The end's exact total variation to the energy, off-policy.",
        paper=paper,
        unit="total variation",
    )
