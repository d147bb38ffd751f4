"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(
        title="Towards On-Policy SFT: Distribution Discriminant Theory and its Applications in LLM Training",
        arxiv="2602.12222",
        venue="ICML 2026",
    )


@hookimpl
def icml_samplers():
    return [
        Component(
            "idft.hinted",
            "icml_idft.hinted:HintedDecoder",
            summary="rewrites known answers in the model's own words: hinted decoding, cached and batched",
            implements=("Sampler",),
            example="icml_idft.examples:hinted",
            job="icml_idft.jobs_of_rewriting:hinted",
        ),
        Component(
            "idft.realign",
            "icml_idft.realignment:Realignment",
            summary="realigns a data set: hinted decoding, a check of each answer, a filter by likelihood",
            implements=("Sampler",),
            example="icml_idft.examples:realign",
            job="icml_idft.jobs_of_rewriting:realign",
        ),
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "idft.loss",
            "icml_idft.loss:IDFTLoss",
            summary="token loss weighted by what the model would have said: IDFT, DFT, SFT, fused",
            implements=("Loss",),
            example="icml_idft.examples:loss",
            job="icml_idft.jobs:weights",
        ),
        Component(
            "idft.finetune",
            "icml_idft.finetuning:FineTuning",
            summary="fine-tunes a language model on demonstrations, with advice before and figures meanwhile",
            implements=("Trainer",),
            example="icml_idft.examples:finetune",
            job="icml_idft.jobs:finetune",
        ),
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "idft.cll",
            "icml_idft.centred:CentredLogLikelihood",
            summary="centred log-likelihood: would this model have said that? per token, and as a test",
            implements=("Evaluator",),
            example="icml_idft.examples:cll",
            job="icml_idft.jobs:cll",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_idft.claims:suite"
