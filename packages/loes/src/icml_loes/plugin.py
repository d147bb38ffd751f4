"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(
        title="Uncovering the Latent Potential of Deep Intermediate Representations",
        arxiv="2605.23033",
        venue="ICML 2026",
    )


@hookimpl
def icml_models():
    return [
        Component(
            "loes.head",
            "icml_loes.head:LoesHead",
            summary="classifier on k layers: each normed and projected, then fused",
            implements=("Module",),
            example="icml_loes.examples:head",
        ),
        Component(
            "loes.extract",
            "icml_loes.fused_layers:FusedLayers",
            summary="fused features of chosen layers, for any program, without torch",
            job="icml_loes.jobs:extract",
        ),
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "loes.georeg",
            "icml_loes.georeg:GeoRegLoss",
            summary="loss that flattens the spectrum of features and spreads class centroids; no eigenvalues",
            implements=("Loss",),
            example="icml_loes.examples:georeg",
        ),
        Component(
            "loes.finetune",
            "icml_loes.finetuning:FineTuning",
            summary="trains a head, or head and backbone, with cross-entropy and GeoReg",
            implements=("Trainer",),
            example="icml_loes.examples:finetune",
            job="icml_loes.jobs:finetune",
        ),
    ]


@hookimpl
def icml_solvers():
    return [
        Component(
            "loes.select",
            "icml_loes.selection:LayerSelection",
            summary="which layers of a frozen model to pool, from embeddings and labels, in closed form",
            implements=("Solver",),
            example="icml_loes.examples:select",
            job="icml_loes.jobs:select",
        ),
        Component(
            "loes.select_model",
            "icml_loes.model_selection:ModelLayerSelection",
            summary="the same from a model and batches: states of all blocks are collected in one pass",
            implements=("Solver",),
            example="icml_loes.examples:select_model",
            job="icml_loes.jobs:select_model",
        ),
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "loes.profile",
            "icml_loes.profile:ProfileEvaluator",
            summary="where each label lives: left-out scores, isotropy, entropy, dimension of layers",
            implements=("Evaluator",),
            example="icml_loes.examples:profile",
            job="icml_loes.jobs:profile",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_loes.claims:suite"
