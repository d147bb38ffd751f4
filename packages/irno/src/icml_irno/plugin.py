"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(
        title="Iterative Refinement Neural Operators are Learned Fixed-Point Solvers: A Principled "
        "Approach to Spectral Bias Mitigation",
        arxiv="2605.24041",
        venue="ICML 2026",
    )


@hookimpl
def icml_models():
    return [
        Component(
            "irno.refiner",
            "icml_irno.refiner:Refiner",
            summary="the corrector Phi: a small U-Net that reads input and estimate; 1 to 3 dimensions",
            implements=("Module",),
            example="icml_irno.examples:refiner",
        ),
        Component(
            "irno.operator",
            "icml_irno.operator:IRNO",
            summary="any frozen operator with a corrector applied K times, or until it converges",
            implements=("Module",),
            example="icml_irno.examples:operator",
            job="icml_irno.jobs:refine",
        ),
        Component(
            "irno.fno",
            "icml_irno.fno:FNO",
            summary="Fourier neural operator in 1 to 3 dimensions, for use as a base",
            implements=("Module",),
            example="icml_irno.examples:fno",
            job="icml_irno.jobs:train_base",
        ),
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "irno.train",
            "icml_irno.training:Training",
            summary="trains a corrector around a frozen base: detached, unrolled or with a curriculum",
            implements=("Trainer",),
            example="icml_irno.examples:train",
            job="icml_irno.jobs:train",
        ),
        Component(
            "irno.spectral_loss",
            "icml_irno.spectral_losses:SpectralLoss",
            summary="loss on Fourier amplitudes, high frequencies weighted more; for any training",
            implements=("Loss",),
            example="icml_irno.examples:spectral_loss",
        ),
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "irno.spectrum",
            "icml_irno.spectrum:SpectrumEvaluator",
            summary="VRMSE, low, mid and high band error and contraction at each refinement step",
            implements=("Evaluator",),
            example="icml_irno.examples:spectrum",
            job="icml_irno.jobs:spectrum",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_irno.claims:suite"
