"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl

_RULES = {
    "confidence": ("rules:confidence", "the most probable token first (LLaDA's low-confidence remasking)"),
    "neg_entropy": ("rules:neg_entropy", "the lowest entropy first (Dream)"),
    "margin": ("rules:margin", "the largest distance of the two best tokens first"),
    "left_to_right": ("rules:left_to_right", "the leftmost position first: a baseline"),
    "random": ("rules:random", "a random position first: a baseline"),
    "threshold": ("rules:threshold", "everything above a probability (Fast-dLLM)"),
    "klass": ("rules:klass", "everything that is sure and has stopped changing (KLASS)"),
    "ccd": ("rules:ccd", "coherent contextual decoding: what recent contexts agree on"),
    "ccd_ds": ("rules:ccd_ds", "CCD with a dynamic budget: everything that recent contexts agree on"),
    "ccd_released": ("rules:ccd_released", "the rule of the paper's released code: two steps, one token"),
    "ccd_plus": ("rules:ccd_plus", "CCD with contexts weighted by age and change, and a conflict test"),
}


@hookimpl
def icml_paper():
    return Paper(
        title="Beyond Confidence: Adaptive and Coherent Decoding for Diffusion Language Models",
        arxiv="2512.02044",
        venue="ICML 2026",
    )


@hookimpl
def icml_models():
    return [
        Component(
            "ccd.tiny_mdm",
            "icml_ccd.tiny_mdm:TinyMDM",
            summary="small bidirectional Transformer for masked diffusion, also made from a causal one",
            implements=("Module",),
            example="icml_ccd.examples:tiny_mdm",
        ),
        Component(
            "ccd.exact_denoiser",
            "icml_ccd.exact_denoiser:ExactDenoiser",
            summary="exact posterior of a listed language, with noise in known doses",
            example="icml_ccd.examples:exact_denoiser",
        ),
        Component(
            "ccd.hidden_markov",
            "icml_ccd.hidden_markov:HiddenMarkovDenoiser",
            summary="exact posterior of hidden Markov text, by forward and backward messages",
            example="icml_ccd.examples:hidden_markov",
        ),
    ]


@hookimpl
def icml_samplers():
    decoder = Component(
        "ccd.decode",
        "icml_ccd.decoding:decode",
        summary="decodes masked diffusion language models by any rule, and says why each token was accepted",
        implements=("Decoder",),
        example="icml_ccd.examples:decoder",
        job="icml_ccd.jobs:decode",
    )
    rules = [
        Component(
            f"ccd.rules-{name}",
            f"icml_ccd.{target}",
            summary=summary,
            example=f"icml_ccd.examples:rule_{name}",
        )
        for name, (target, summary) in _RULES.items()
    ]
    return [decoder, *rules]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "ccd.train_mdm",
            "icml_ccd.training:train_mdm",
            summary="trains a masked diffusion model: 1/t-weighted cross-entropy of masked tokens",
            implements=("Trainer",),
            example="icml_ccd.examples:training",
            job="icml_ccd.jobs:train_mdm",
        )
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "ccd.bench",
            "icml_ccd.bench:Bench",
            summary="accuracy against forward passes of every rule on addition, sudoku and trips",
            implements=("Evaluator",),
            example="icml_ccd.examples:bench",
            job="icml_ccd.jobs:bench",
        ),
        Component(
            "ccd.loglik",
            "icml_ccd.likelihood:loglik",
            summary="bound of an answer's log-likelihood under a masked diffusion model, with its error",
            example="icml_ccd.examples:likelihood",
            job="icml_ccd.jobs:loglik",
        ),
    ]


@hookimpl
def icml_claims():
    return "icml_ccd.claims:suite"
