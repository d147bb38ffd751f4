"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(
        title="Learning-Guided Integration Contours Construction for Fast Large-Scale "
        "Generalized Eigensolvers",
        arxiv="2511.01927",
        venue="ICML 2026",
    )


@hookimpl
def icml_models():
    return [
        Component(
            "deepcontour.eno",
            "icml_deepcontour.eno:ENO",
            summary="Fourier neural operator from coefficient fields to sorted eigenvalues",
            implements=("Module",),
            example="icml_deepcontour.examples:eno",
        )
    ]


@hookimpl
def icml_optimizers():
    return [
        Component(
            "deepcontour.fit",
            "icml_deepcontour.training:EnoTraining",
            summary="trains a predictor on solved instances and calibrates its errors",
            implements=("Trainer",),
            example="icml_deepcontour.examples:fit",
            job="icml_deepcontour.jobs:fit",
        )
    ]


@hookimpl
def icml_solvers():
    return [
        Component(
            "deepcontour.eigs",
            "icml_deepcontour.solvers:EigsSolver",
            summary="certified eigenpairs of A x = lambda B x, from predictions or without",
            implements=("Solver",),
            example="icml_deepcontour.examples:eigs",
            job="icml_deepcontour.jobs:eigs",
        ),
        Component(
            "deepcontour.slice",
            "icml_deepcontour.solvers:SliceSolver",
            summary="shift-invert block Lanczos on slices between inertia counts",
            implements=("Solver",),
            example="icml_deepcontour.examples:slices",
        ),
        Component(
            "deepcontour.kde_contours",
            "icml_deepcontour.solvers:ContourPlanner",
            summary="contours around predicted eigenvalues, cut at the valleys of their density",
            implements=("Solver",),
            example="icml_deepcontour.examples:kde_contours",
            job="icml_deepcontour.jobs:contours",
        ),
        Component(
            "deepcontour.cirr",
            "icml_deepcontour.solvers:CirrSolver",
            summary="eigenpairs inside a contour: Rayleigh-Ritz on contour moments",
            implements=("Solver",),
            example="icml_deepcontour.examples:cirr",
        ),
        Component(
            "deepcontour.ssm",
            "icml_deepcontour.solvers:SsmSolver",
            summary="eigenpairs inside a contour: Sakurai-Sugiura by Hankel matrices",
            implements=("Solver",),
            example="icml_deepcontour.examples:ssm",
        ),
        Component(
            "deepcontour.feast",
            "icml_deepcontour.solvers:FeastSolver",
            summary="eigenpairs inside a contour: subspace iteration with the contour's filter",
            implements=("Solver",),
            example="icml_deepcontour.examples:feast",
        ),
    ]


@hookimpl
def icml_evaluators():
    return [
        Component(
            "deepcontour.certify",
            "icml_deepcontour.solvers:CountEvaluator",
            summary="exact number of eigenvalues in an interval by inertia; what a solver missed",
            implements=("Evaluator",),
            example="icml_deepcontour.examples:certify",
            job="icml_deepcontour.jobs:certify",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_deepcontour.claims:suite"
