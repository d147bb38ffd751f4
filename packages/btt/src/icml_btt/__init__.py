"""Correlation clustering with a certified ratio, through bad triangle transversals (arXiv 2602.04463)."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_btt.census import TriangleCensus as TriangleCensus
    from icml_btt.census import triangle_census as triangle_census
    from icml_btt.clique_partition import CliquePartition as CliquePartition
    from icml_btt.clique_partition import ClusterDeletion as ClusterDeletion
    from icml_btt.clique_partition import cluster_deletion as cluster_deletion
    from icml_btt.clustering import CorrelationClustering as CorrelationClustering
    from icml_btt.clusters import Clustering as Clustering
    from icml_btt.cost import disagreements as disagreements
    from icml_btt.graph_files import read_graph as read_graph
    from icml_btt.instances import Instance as Instance
    from icml_btt.instances import SignedGraphs as SignedGraphs
    from icml_btt.instances import collapse as collapse
    from icml_btt.instances import gnp as gnp
    from icml_btt.instances import knn as knn
    from icml_btt.instances import planted as planted
    from icml_btt.integer_program import ExactOptimum as ExactOptimum
    from icml_btt.integer_program import Optimum as Optimum
    from icml_btt.integer_program import exact as exact
    from icml_btt.linear_program import CoverProgram as CoverProgram
    from icml_btt.linear_program import CoverSolution as CoverSolution
    from icml_btt.local_search import local_moves as local_moves
    from icml_btt.packing import Packing as Packing
    from icml_btt.pivot import Coins as Coins
    from icml_btt.pivot import kwik_cluster as kwik_cluster
    from icml_btt.pivot import pivot_rounding as pivot_rounding
    from icml_btt.scoring import Score as Score
    from icml_btt.signed_graph import SignedGraph as SignedGraph
    from icml_btt.strong_triadic_closure import StrongTies as StrongTies
    from icml_btt.strong_triadic_closure import StrongTriadicClosure as StrongTriadicClosure
    from icml_btt.strong_triadic_closure import minstc as minstc
    from icml_btt.transversals import BadTriangleTransversal as BadTriangleTransversal
    from icml_btt.transversals import Transversal as Transversal
    from icml_btt.transversals import round_cover as round_cover
    from icml_btt.transversals import transversal as transversal
    from icml_btt.triangles import bad_triangles as bad_triangles
    from icml_btt.triangles import count_bad_triangles as count_bad_triangles

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy.attach(
    __name__,
    {
        "BadTriangleTransversal": "transversals",
        "CliquePartition": "clique_partition",
        "ClusterDeletion": "clique_partition",
        "Clustering": "clusters",
        "Coins": "pivot",
        "CorrelationClustering": "clustering",
        "CoverProgram": "linear_program",
        "CoverSolution": "linear_program",
        "ExactOptimum": "integer_program",
        "Instance": "instances",
        "Optimum": "integer_program",
        "Packing": "packing",
        "Score": "scoring",
        "SignedGraph": "signed_graph",
        "SignedGraphs": "instances",
        "StrongTies": "strong_triadic_closure",
        "StrongTriadicClosure": "strong_triadic_closure",
        "Transversal": "transversals",
        "TriangleCensus": "census",
        "bad_triangles": "triangles",
        "count_bad_triangles": "triangles",
        "cluster_deletion": "clique_partition",
        "collapse": "instances",
        "disagreements": "cost",
        "exact": "integer_program",
        "gnp": "instances",
        "knn": "instances",
        "kwik_cluster": "pivot",
        "local_moves": "local_search",
        "minstc": "strong_triadic_closure",
        "pivot_rounding": "pivot",
        "planted": "instances",
        "read_graph": "graph_files",
        "round_cover": "transversals",
        "transversal": "transversals",
        "triangle_census": "census",
    },
)
