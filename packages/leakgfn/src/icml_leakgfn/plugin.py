"""What the plug-in offers: names and import strings."""

from __future__ import annotations

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper() -> Paper:
    """The paper."""
    return Paper(
        title="LeakGFN: Robust Molecular Generation in Generative Flow Networks via Flow Decomposition",
        venue="ICML 2026",
    )


@hookimpl
def icml_samplers() -> list[Component]:
    """Objects, and molecules, in proportion to a reward."""
    return [
        Component(
            "leakgfn.sampler",
            "icml_leakgfn.gfn:LeakGFN",
            summary="Finished objects in proportion to a reward, though trajectories are cut off at L_max",
            implements=("Sampler", "Trainer"),
            example="icml_leakgfn.examples:sampler",
            job="icml_leakgfn.jobs:sampler",
        ),
        Component(
            "leakgfn.molecules",
            "icml_leakgfn.molecules:MoleculeGenerator",
            summary="Molecules from fragments, in proportion to any scoring function",
            implements=("Sampler",),
            example="icml_leakgfn.examples:molecules",
            job="icml_leakgfn.jobs:molecules",
        ),
    ]


@hookimpl
def icml_optimizers() -> list[Component]:
    """The loss, for any flow-matching code."""
    return [
        Component(
            "leakgfn.loss",
            "icml_leakgfn.losses:LeakLoss",
            summary="Loss of two flows: the valid one ends where it is cut off, the chemical one goes on",
            implements=("Loss",),
            example="icml_leakgfn.examples:loss",
        )
    ]


@hookimpl
def icml_models() -> list[Component]:
    """The network."""
    return [
        Component(
            "leakgfn.dual_head",
            "icml_leakgfn.networks:DualHead",
            summary="Network of log F_chem(s, a), log λ(s, a) and log F_stop(s) above any encoder",
            implements=("Module",),
            example="icml_leakgfn.examples:dual_head",
        )
    ]


@hookimpl
def icml_solvers() -> list[Component]:
    """The oracle."""
    return [
        Component(
            "leakgfn.exact_flow",
            "icml_leakgfn.exact:ExactFlow",
            summary="Exact flows, λ* and p(x) of an environment that can be enumerated",
            implements=("Solver",),
            example="icml_leakgfn.examples:exact_flow",
            job="icml_leakgfn.jobs:exact_flow",
        )
    ]


@hookimpl
def icml_evaluators() -> list[Component]:
    """Figures of drawn molecules."""
    return [
        Component(
            "leakgfn.metrics",
            "icml_leakgfn.metrics:MoleculeMetrics",
            summary="Success, diversity, uniqueness, novelty, their harmonic mean; exact TV and JSD",
            implements=("Evaluator",),
            example="icml_leakgfn.examples:metrics",
        )
    ]


@hookimpl
def icml_claims() -> str:
    """The claim suite."""
    return "icml_leakgfn.claims:suite"
