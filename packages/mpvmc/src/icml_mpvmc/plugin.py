"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(title="Neural Quantum States in Mixed Precision", arxiv="2601.20782", venue="ICML 2026")


@hookimpl
def icml_models():
    return [
        Component(
            "mpvmc.rbm",
            "icml_mpvmc.models:RBM",
            summary="restricted Boltzmann machine as a wavefunction, in any precision, sums in float32",
            implements=("Module",),
            example="icml_mpvmc.examples:rbm",
        ),
        Component(
            "mpvmc.rescnn",
            "icml_mpvmc.rescnn:ResCNN",
            summary="residual convolutional wavefunction on a periodic lattice, in any precision",
            implements=("Module",),
            example="icml_mpvmc.examples:rescnn",
        ),
    ]


@hookimpl
def icml_samplers():
    return [
        Component(
            "mpvmc.metropolis",
            "icml_mpvmc.metropolis:Metropolis",
            summary="Metropolis chains in bf16, f16 or f32 with exact reweighting or delayed acceptance",
            implements=("Sampler",),
            example="icml_mpvmc.examples:metropolis",
            job="icml_mpvmc.jobs:sample",
        )
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "mpvmc.vmc",
            "icml_mpvmc.vmc:VMC",
            summary="variational Monte Carlo: low-precision sampling, the rest in float64; resumable",
            implements=("Trainer",),
            example="icml_mpvmc.examples:vmc",
        )
    ]


@hookimpl
def icml_solvers():
    return [
        Component(
            "mpvmc.ground_state",
            "icml_mpvmc.ground_state:GroundState",
            summary="ground states of spin models, sparse matrices, Pauli sums and small molecules",
            implements=("Solver",),
            example="icml_mpvmc.examples:ground_state",
            job="icml_mpvmc.jobs:ground_state",
        )
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "mpvmc.precision_report",
            "icml_mpvmc.report:PrecisionEvaluator",
            summary="which precision a log-density may be sampled in: σ, bounds, weights, verdicts",
            implements=("Evaluator",),
            example="icml_mpvmc.examples:precision_report",
            job="icml_mpvmc.jobs:precision_report",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_mpvmc.claims:suite"
