"""What the plug-in offers: names and import strings."""

from __future__ import annotations

from icml_core import Component, Paper, hookimpl

_HERE = "icml_discrete_samplers"


@hookimpl
def icml_paper() -> Paper:
    """The paper."""
    return Paper(
        title="Discrete Diffusion Samplers and Bridges: Off-Policy Algorithms and Applications in "
        "Latent Spaces",
        arxiv="2602.05961",
    )


@hookimpl
def icml_models() -> list[Component]:
    """The networks."""
    return [
        Component(
            "discrete-samplers.masked_mlp",
            f"{_HERE}.networks:MaskedMLP",
            summary="MLP of masked states that evaluates all prefixes of a path in one incremental call",
            implements=("Module",),
            example=f"{_HERE}.examples:masked_mlp",
        ),
        Component(
            "discrete-samplers.masked_vit",
            f"{_HERE}.networks:MaskedViT",
            summary="Transformer of masked lattices with mixed rotary positions",
            implements=("Module",),
            example=f"{_HERE}.examples:masked_vit",
        ),
        Component(
            "discrete-samplers.uniform_mlp",
            f"{_HERE}.networks:UniformMLP",
            summary="Residual MLP of state and time for chains that redraw every site, as bridges do",
            implements=("Module",),
            example=f"{_HERE}.examples:uniform_mlp",
        ),
    ]


@hookimpl
def icml_samplers() -> list[Component]:
    """What draws."""
    return [
        Component(
            "discrete-samplers.masked",
            f"{_HERE}.sampler:MaskedSampler",
            summary="Independent weighted samples of any discrete energy, with bounds of log Z",
            implements=("Sampler",),
            example=f"{_HERE}.examples:masked",
            job=f"{_HERE}.jobs:masked",
        ),
        Component(
            "discrete-samplers.bridge",
            f"{_HERE}.bridge:Bridge",
            summary="Stochastic transport between data and an energy, in both directions",
            implements=("Sampler",),
            example=f"{_HERE}.examples:bridge",
            job=f"{_HERE}.jobs:bridge",
        ),
        Component(
            "discrete-samplers.mcmc",
            f"{_HERE}.mcmc:MarkovChains",
            summary="Markov chains: Hamming balls, Swendsen-Wang, Gibbs, constraints, tempering, "
            "with diagnostics",
            implements=("Sampler",),
            example=f"{_HERE}.examples:mcmc",
            job=f"{_HERE}.jobs:mcmc",
        ),
    ]


@hookimpl
def icml_optimizers() -> list[Component]:
    """What trains."""
    return [
        Component(
            "discrete-samplers.off_policy",
            f"{_HERE}.off_policy:OffPolicyTrainer",
            summary="Off-policy training of a masked sampler: weighted replay and MCMC exploration",
            implements=("Trainer",),
            example=f"{_HERE}.examples:off_policy",
        ),
        Component(
            "discrete-samplers.d2e_ipf",
            f"{_HERE}.bridge:BridgeTrainer",
            summary="Data-to-energy Schrödinger bridge by iterative proportional fitting, on- and off-policy",
            implements=("Trainer",),
            example=f"{_HERE}.examples:d2e_ipf",
        ),
        Component(
            "discrete-samplers.posterior",
            f"{_HERE}.posterior:fit_posterior",
            summary="Posterior sampler in the latents of a frozen model, without data or gradients",
            example=f"{_HERE}.examples:posterior",
            job=f"{_HERE}.jobs:posterior",
        ),
    ]


@hookimpl
def icml_evaluators() -> list[Component]:
    """Figures of samples."""
    return [
        Component(
            "discrete-samplers.metrics",
            f"{_HERE}.metrics:SamplerMetrics",
            summary="ELBO, EUBO, ESS, MMD, Sinkhorn, lattice observables, exact total variation",
            implements=("Evaluator",),
            example=f"{_HERE}.examples:metrics",
        )
    ]


@hookimpl
def icml_claims() -> str:
    """The claim suite."""
    return f"{_HERE}.claims:suite"
