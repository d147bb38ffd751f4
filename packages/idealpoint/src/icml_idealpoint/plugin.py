"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl

PACKAGE = "icml_idealpoint"


@hookimpl
def icml_paper():
    return Paper(title="Ranking Time Series using a Time Warping Ideal Point Model", venue="ICML 2026")


@hookimpl
def icml_models():
    return [
        Component(
            "idealpoint.model",
            f"{PACKAGE}.ideal_point:TimeWarpIdealPoint",
            summary="scores of series by their distance from a learned ideal series, as a torch module",
            implements=("Module",),
            example=f"{PACKAGE}.examples:model",
        )
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "idealpoint.soft_twed_loss",
            f"{PACKAGE}.distances:soft_twed_loss",
            summary="soft time warp edit distance as a loss, with exact gradients",
            implements=("Loss",),
            example=f"{PACKAGE}.examples:soft_twed_loss",
        ),
        Component(
            "idealpoint.soft_dtw_loss",
            f"{PACKAGE}.distances:soft_dtw_loss",
            summary="soft dynamic time warping as a loss, with exact gradients",
            implements=("Loss",),
            example=f"{PACKAGE}.examples:soft_dtw_loss",
        ),
    ]


@hookimpl
def icml_samplers():
    return [
        Component(
            "idealpoint.bumps",
            f"{PACKAGE}.simulation:Bumps",
            summary="simulated warped series of known severity",
            implements=("Sampler",),
            example=f"{PACKAGE}.examples:bumps",
        )
    ]


@hookimpl
def icml_solvers():
    return [
        Component(
            "idealpoint.rank",
            f"{PACKAGE}.ranker:IdealPointRanker",
            summary="ranks time series from pairwise comparisons, scores new ones, gives the ideal series",
            implements=("Solver",),
            example=f"{PACKAGE}.examples:rank",
            job=f"{PACKAGE}.jobs:rank",
        ),
        Component(
            "idealpoint.ask",
            f"{PACKAGE}.ranker:IdealPointRanker",
            summary="asks for comparisons where they say most, takes answers, and ranks; resumable",
            job=f"{PACKAGE}.jobs:ask",
        ),
        Component(
            "idealpoint.distances",
            f"{PACKAGE}.distances:pairwise",
            summary="matrix of DTW or TWED distances between the series of one or two files",
            job=f"{PACKAGE}.jobs:distances",
        ),
        Component(
            "idealpoint.barycenter",
            f"{PACKAGE}.averaging:SoftBarycenter",
            summary="weighted mean of series under soft TWED or soft DTW",
            implements=("Solver",),
            example=f"{PACKAGE}.examples:barycenter",
        ),
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "idealpoint.metrics",
            f"{PACKAGE}.evaluation:RankingMetrics",
            summary="Kendall tau-b, pair accuracy, NDCG, calibration, reliability of annotators",
            implements=("Evaluator",),
            example=f"{PACKAGE}.examples:metrics",
        )
    ]


@hookimpl
def icml_claims():
    return f"{PACKAGE}.claims:suite"
