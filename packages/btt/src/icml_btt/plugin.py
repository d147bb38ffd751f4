"""What the plug-in offers: the solvers, an instance sampler, a score, the paper, the claims."""

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
            "btt.cluster_deletion",
            "icml_btt.clique_partition:ClusterDeletion",
            summary="Fewest edges to delete so that disjoint cliques are left, with a certified ratio",
            implements=("Solver",),
            example="icml_btt.examples:cluster_deletion",
            job="icml_btt.jobs:cluster_deletion",
        ),
        Component(
            "btt.minstc",
            "icml_btt.strong_triadic_closure:StrongTriadicClosure",
            summary="Strong and weak ties: fewest weak edges so that no open wedge is strong, within 2",
            implements=("Solver",),
            example="icml_btt.examples:minstc",
            job="icml_btt.jobs:minstc",
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
            summary="Optimal transversals, clusters, cliques and ties of small graphs by integer programming",
            implements=("Solver",),
            example="icml_btt.examples:exact",
            job="icml_btt.jobs:exact",
        ),
    ]


@hookimpl
def icml_samplers() -> list[Component]:
    """Signed graphs to try methods on."""
    return [
        Component(
            "btt.instances",
            "icml_btt.instances:SignedGraphs",
            summary="Signed graphs: planted clusters, G(n, p), nearest neighbours, a hard family",
            implements=("Sampler",),
            example="icml_btt.examples:instances",
        )
    ]


@hookimpl
def icml_evaluators() -> list[Component]:
    """Scores of solutions."""
    return [
        Component(
            "btt.score",
            "icml_btt.scoring:Score",
            summary="Cost, bad triangles left, and agreement with a truth, of clusters or transversals",
            implements=("Evaluator",),
            example="icml_btt.examples:score",
        )
    ]


@hookimpl
def icml_claims() -> str:
    """The claim suite."""
    return "icml_btt.claims:suite"
