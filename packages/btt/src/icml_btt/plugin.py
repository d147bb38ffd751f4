"""What the plug-in offers: the solvers, an instance sampler, the paper, the claims."""

from __future__ import annotations

from icml_core import Component, Paper, hookimpl


@hookimpl
def icml_paper() -> Paper:
    """The paper."""
    return Paper(
        title="Simple Algorithms for Bad Triangle Transversals with Applications to Correlation Clustering",
        arxiv="2602.04463",
        venue="ICML 2026",
        authors=("Florian Adriaens", "Nikolaj Tatti"),
    )


@hookimpl
def icml_solvers() -> list[Component]:
    """Clusterings, transversals, the linear program, exact optima."""
    return [
        Component(
            "btt.cc",
            "icml_btt.clustering:CorrelationClustering",
            summary="Correlation clustering of same/different judgements, with a certified ratio",
            implements=("Solver",),
            example="icml_btt.examples:cc",
            job="icml_btt.jobs:cc",
        ),
        Component(
            "btt.transversal",
            "icml_btt.transversals:BadTriangleTransversal",
            summary="Fewest judgements to drop so that no triangle contradicts itself, within a factor of 2",
            implements=("Solver",),
            example="icml_btt.examples:transversal",
            job="icml_btt.jobs:transversal",
        ),
        Component(
            "btt.lp",
            "icml_btt.linear_program:CoverProgram",
            summary="Fractional covers and packings of bad triangles: the lower bound of everything else",
            implements=("Solver",),
            example="icml_btt.examples:lp",
        ),
        Component(
            "btt.exact",
            "icml_btt.integer_program:ExactOptimum",
            summary="Optimal transversals and clusterings of small graphs by integer programming",
            implements=("Solver",),
            example="icml_btt.examples:exact",
            job="icml_btt.jobs:exact",
        ),
    ]


@hookimpl
def icml_samplers() -> list[Component]:
    """Random signed graphs."""
    return [
        Component(
            "btt.instances",
            "icml_btt.instances:SignedGraphs",
            summary="Random signed graphs: planted clusters with noise, G(n, p), incomplete, weighted",
            implements=("Sampler",),
            example="icml_btt.examples:instances",
        )
    ]


@hookimpl
def icml_claims() -> str:
    """The claim suite."""
    return "icml_btt.claims:suite"
