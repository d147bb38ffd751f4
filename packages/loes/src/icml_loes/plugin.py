"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(title="Sequential minimax search for a maximum", venue="Proceedings of the AMS 4 (1953)")


@hookimpl
def icml_solvers():
    return [
        Component(
            "loes.golden",
            "icml_loes.search:GoldenSection",
            summary="maximum of a concave function of one variable",
            implements=("Solver",),
            example="icml_loes.examples:golden",
            job="icml_loes.jobs:golden",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_loes.claims:suite"
