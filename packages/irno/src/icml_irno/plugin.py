"""What the plug-in offers: names and import strings."""

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper():
    return Paper(title="Sequential minimax search for a maximum", venue="Proceedings of the AMS 4 (1953)")


@hookimpl
def icml_solvers():
    return [
        Component(
            "irno.golden",
            "icml_irno.search:GoldenSection",
            summary="maximum of a concave function of one variable",
            implements=("Solver",),
            example="icml_irno.examples:golden",
            job="icml_irno.jobs:golden",
        )
    ]


@hookimpl
def icml_claims():
    return "icml_irno.claims:suite"
