"""A tiny instance of each component, for the contract tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from icml_core import Example


def cc(seed: int) -> Example:
    """Two triangles joined by one edge: the two triangles are the optimal clusters."""
    from icml_btt.clustering import CorrelationClustering
    from icml_btt.clusters import Clustering

    def check(result: Clustering) -> None:
        assert result.clusters() == [["a", "b", "c"], ["x", "y", "z"]]
        assert (result.cost, result.lower_bound, result.ratio) == (1.0, 1.0, 1.0)

    return Example(
        build=lambda: CorrelationClustering(random_state=seed),
        inputs=_two_triangles,
        call=lambda solver, graph: solver.solve(graph),
        check=check,
        corrupt=lambda solution: replace(solution, labels=solution.labels * 0),
        bad=_asymmetric,
    )


def transversal(seed: int) -> Example:
    """Two triangles joined by one edge: that edge is in every bad triangle."""
    from icml_btt.transversals import BadTriangleTransversal, Transversal

    def check(result: Transversal) -> None:
        assert result.edges.tolist() == [[2, 3]]
        assert (result.cost, result.lower_bound) == (1.0, 1.0)

    return Example(
        build=lambda: BadTriangleTransversal(seed=seed),
        inputs=_two_triangles,
        call=lambda solver, graph: solver.solve(graph),
        check=check,
        corrupt=lambda solution: replace(
            solution, edges=solution.edges[:0], sign=solution.sign[:0], cost=0.0
        ),
        bad=_asymmetric,
    )


def cluster_deletion(seed: int) -> Example:
    """Two triangles joined by one edge: deleting it leaves two cliques."""
    from icml_btt.clique_partition import CliquePartition, ClusterDeletion

    def check(result: CliquePartition) -> None:
        assert result.clusters() == [["a", "b", "c"], ["x", "y", "z"]]
        assert (result.cost, result.ratio) == (1.0, 1.0)

    return Example(
        build=lambda: ClusterDeletion(seed=seed),
        inputs=_two_triangles,
        call=lambda solver, graph: solver.solve(graph),
        check=check,
        corrupt=lambda solution: replace(solution, labels=solution.labels * 0),
        bad=_asymmetric,
    )


def minstc(seed: int) -> Example:
    """Two triangles joined by one edge: that edge is weak."""
    from icml_btt.strong_triadic_closure import StrongTies, StrongTriadicClosure

    def check(result: StrongTies) -> None:
        assert result.edges[result.weak].tolist() == [[2, 3]]
        assert (result.cost, result.lower_bound) == (1.0, 1.0)

    return Example(
        build=lambda: StrongTriadicClosure(seed=seed),
        inputs=_two_triangles,
        call=lambda solver, graph: solver.solve(graph),
        check=check,
        corrupt=lambda solution: replace(solution, weak=~solution.weak),
        bad=_asymmetric,
    )


def lp(seed: int) -> Example:
    """The star with three leaves: x = 1/2 on its edges costs 3/2, and so do the three triangles at 1/2."""
    from icml_btt.linear_program import CoverProgram, CoverSolution
    from icml_btt.signed_graph import SignedGraph

    def check(result: CoverSolution) -> None:
        assert abs(result.value - 1.5) < 1e-6
        assert abs(result.bound - 1.5) < 1e-6

    return Example(
        build=lambda: CoverProgram(seed=seed),
        inputs=lambda: SignedGraph.from_edges([(0, 1), (0, 2), (0, 3)]),
        call=lambda solver, graph: solver.solve(graph),
        check=check,
        corrupt=lambda solution: replace(solution, x=solution.x / 2),
        bad=_asymmetric,
    )


def exact(seed: int) -> Example:
    """The path of four vertices: cutting its middle edge is optimal."""
    from icml_btt.integer_program import ExactOptimum, Optimum
    from icml_btt.signed_graph import SignedGraph

    def check(result: Optimum) -> None:
        assert (result.cost, result.bound, result.status) == (1.0, 1.0, "optimal")

    return Example(
        build=lambda: ExactOptimum("cc", seed=seed),
        inputs=lambda: SignedGraph.from_edges([(0, 1), (1, 2), (2, 3)]),
        call=lambda solver, graph: solver.solve(graph),
        check=check,
        corrupt=lambda solution: replace(solution, bound=0.0),
        bad=_asymmetric,
    )


def instances(seed: int) -> Example:
    """Three planted instances without noise: the truth costs nothing."""
    from icml_btt.cost import disagreements
    from icml_btt.instances import Instance, SignedGraphs

    def check(result: list[Instance]) -> None:
        assert len(result) == 3
        for instance in result:
            assert instance.truth is not None
            assert float(disagreements(instance.graph, instance.truth)) == 0.0

    return Example(
        build=lambda: SignedGraphs("planted", vertices=12, clusters=3, noise=0.0),
        inputs=lambda: seed,
        call=lambda sampler, start: sampler.sample(3, seed=start),
        check=check,
    )


def score(seed: int) -> Example:
    """The path of three vertices, cut at its end: one mistake, and the truth is met."""
    import numpy as np

    from icml_btt.scoring import Score
    from icml_btt.signed_graph import SignedGraph

    def check(result: dict[str, float]) -> None:
        assert result == {"cost": 1.0, "bad_triangles_left": 0.0, "clusters": 2.0, "ari": 1.0}

    return Example(
        build=Score,
        inputs=lambda: (np.array([0, 0, 1]), SignedGraph.from_edges([(0, 1), (1, 2)])),
        call=lambda evaluator, pair: evaluator.evaluate(*pair, truth=np.array([5, 5, 7])),
        check=check,
        bad=lambda: (np.array([0, 0]), SignedGraph.from_edges([(0, 1), (1, 2)])),
    )


def _two_triangles() -> Any:
    from icml_btt.signed_graph import SignedGraph

    return SignedGraph.from_edges(
        [("a", "b"), ("b", "c"), ("a", "c"), ("c", "x"), ("x", "y"), ("y", "z"), ("x", "z")]
    )


def _asymmetric() -> Any:
    import numpy as np

    return np.array([[0, 1], [-1, 0]])
