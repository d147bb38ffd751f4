"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(
        title="Learning Biophysical Models of Large-Scale Multineuronal Data To Enable Precise "
        "Neurostimulation",
        arxiv="2607.04063",
        venue="ICML 2026",
    )


@hookimpl
def icml_models():
    return [
        Component(
            "hhmea.cell",
            "icml_hhmea.rgc:RGC",
            summary="Hodgkin-Huxley cell of many compartments with named, bounded parameters",
            implements=("Module",),
            example="icml_hhmea.examples:cell",
            job="icml_hhmea.jobs:cell",
        ),
        Component(
            "hhmea.features",
            "icml_hhmea.features:EIFeatures",
            summary="amplitudes, durations and delays of an electrical image, soft or hard",
            example="icml_hhmea.examples:features",
        ),
    ]


@hookimpl
def icml_samplers():
    return [
        Component(
            "hhmea.npe",
            "icml_hhmea.npe:AmortisedPosterior",
            summary="draws cell parameters given features, by a neural spline flow trained on simulations",
            implements=("Sampler",),
            example="icml_hhmea.examples:npe",
            job="icml_hhmea.jobs:npe",
        )
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "hhmea.gd",
            "icml_hhmea.descent:GradientDescent",
            summary="fits a cell by Adam through the simulator, on few designed features",
            implements=("Trainer",),
            example="icml_hhmea.examples:gd",
        ),
        Component(
            "hhmea.refine",
            "icml_hhmea.refinement:Refinement",
            summary="refines posterior samples by gradients and weighs them by exact features",
            implements=("Trainer",),
            example="icml_hhmea.examples:refine",
        ),
    ]


@hookimpl
def icml_solvers():
    return [
        Component(
            "hhmea.simulate",
            "icml_hhmea.evaluation:CableSolver",
            summary="voltages and extracellular potentials of many cells at once, differentiable",
            implements=("Solver",),
            example="icml_hhmea.examples:simulate",
            job="icml_hhmea.jobs:simulate",
        ),
        Component(
            "hhmea.fit",
            "icml_hhmea.fitting:NeuronFit",
            summary="a cell model from an electrical image and thresholds of single electrodes",
            implements=("Solver",),
            example="icml_hhmea.examples:fit",
            job="icml_hhmea.jobs:fit",
        ),
        Component(
            "hhmea.optimize_stimulus",
            "icml_hhmea.selective:StimulusSearch",
            summary="currents that fire some neurons and spare others, within a charge limit",
            implements=("Solver",),
            example="icml_hhmea.examples:optimize_stimulus",
            job="icml_hhmea.jobs:optimize_stimulus",
        ),
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "hhmea.predict",
            "icml_hhmea.evaluation:PatternEvaluator",
            summary="chance of a spike for patterns of stimulation, and how good predictions are",
            implements=("Evaluator",),
            example="icml_hhmea.examples:predict",
            job="icml_hhmea.jobs:predict",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_hhmea.claims:suite"
