"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(title="Controlled LLM Training on Spectral Sphere", arxiv="2601.08393", venue="ICML 2026")


@hookimpl
def icml_models():
    return [
        Component(
            "sso.transformer",
            "icml_sso.transformer:Transformer",
            summary="decoder of the paper: GQA, QK-norm, SwiGLU, RoPE; dense or mixture of experts",
            implements=("Module",),
            example="icml_sso.examples_training:transformer",
        )
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "sso.sso",
            "icml_sso.optimizer:SSO",
            summary="Spectral Sphere Optimizer: steepest descent tangent to spheres of spectral norm",
            implements=("TorchOptimizer",),
            example="icml_sso.examples:sso",
            job="icml_sso.jobs:sso",
        ),
        Component(
            "sso.muonsphere",
            "icml_sso.optimizer:MuonSphere",
            summary="Muon on spheres of spectral norm: SSO without the tangent condition, at Muon's cost",
            implements=("TorchOptimizer",),
            example="icml_sso.examples:muonsphere",
            job="icml_sso.jobs:muonsphere",
        ),
        Component(
            "sso.pretrain",
            "icml_sso.pretraining:Pretraining",
            summary="pre-trains a decoder with any optimizer: losses, norms, activations, load of experts",
            implements=("Trainer",),
            example="icml_sso.examples_training:pretraining",
            job="icml_sso.jobs:pretrain",
        ),
    ]


@hookimpl
def icml_solvers():
    return [
        Component(
            "sso.tangent_lambda",
            "icml_sso.tangent_multiplier:TangentLambda",
            summary="multiplier that makes a steepest direction tangent to a sphere of spectral norm",
            implements=("Solver",),
            example="icml_sso.examples:tangent",
            job="icml_sso.jobs:tangent_lambda",
        ),
        Component(
            "sso.msign",
            "icml_sso.matrix_sign:MatrixSign",
            summary="polar factor of a batch of matrices by Newton-Schulz iteration",
            implements=("Solver",),
            example="icml_sso.examples:msign",
            job="icml_sso.jobs:msign",
        ),
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "sso.health",
            "icml_sso.health:Health",
            summary="norms on the sphere, activations, attention logits and expert loads of a model",
            implements=("Evaluator",),
            example="icml_sso.examples:health",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_sso.claims:suite"
