"""Correlation clustering with a certified ratio, through bad triangle transversals (arXiv 2602.04463)."""

from typing import TYPE_CHECKING

from icml_core import lazy

if TYPE_CHECKING:
    from icml_btt.clustering import Clustering as Clustering
    from icml_btt.clustering import CorrelationClustering as CorrelationClustering
    from icml_btt.cost import disagreements as disagreements
    from icml_btt.graph_files import read_graph as read_graph
    from icml_btt.instances import Instance as Instance
    from icml_btt.instances import SignedGraphs as SignedGraphs
    from icml_btt.instances import gnp as gnp
    from icml_btt.instances import planted as planted
    from icml_btt.integer_program import ExactOptimum as ExactOptimum
    from icml_btt.integer_program import Optimum as Optimum
    from icml_btt.linear_program import CoverProgram as CoverProgram
    from icml_btt.linear_program import CoverSolution as CoverSolution
    from icml_btt.local_search import local_moves as local_moves
    from icml_btt.packing import Packing as Packing
    from icml_btt.pivot import Coins as Coins
    from icml_btt.pivot import kwik_cluster as kwik_cluster
    from icml_btt.pivot import pivot_rounding as pivot_rounding
    from icml_btt.signed_graph import SignedGraph as SignedGraph
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
        "Clustering": "clustering",
        "Coins": "pivot",
        "CorrelationClustering": "clustering",
        "CoverProgram": "linear_program",
        "CoverSolution": "linear_program",
        "ExactOptimum": "integer_program",
        "Instance": "instances",
        "Optimum": "integer_program",
        "Packing": "packing",
        "SignedGraph": "signed_graph",
        "SignedGraphs": "instances",
        "Transversal": "transversals",
        "bad_triangles": "triangles",
        "count_bad_triangles": "triangles",
        "disagreements": "cost",
        "gnp": "instances",
        "kwik_cluster": "pivot",
        "local_moves": "local_search",
        "pivot_rounding": "pivot",
        "planted": "instances",
        "read_graph": "graph_files",
        "round_cover": "transversals",
        "transversal": "transversals",
    },
)
