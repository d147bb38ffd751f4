"""Checked by the type checker from outside, never run: lazily attached names are known with their types."""

from pathlib import Path

from icml_btt import Clustering, CorrelationClustering, SignedGraph
from icml_core import ClaimSuite, Component, Registry, Run
from icml_flashschnet import FlashSchNet, SchNetConfig
from icml_kernels import HalfList, segment_sum_csr

graph: SignedGraph = SignedGraph.from_edges([(0, 1)])
clustering: Clustering = CorrelationClustering().solve(graph)
cost: float = clustering.cost
component: Component = Registry.discover().entry("btt.cc").component
run: Run = Run(Path("r"))
suite: ClaimSuite = ClaimSuite("demo")
model: FlashSchNet = FlashSchNet(SchNetConfig(n_types=25))
kernels = (HalfList, segment_sum_csr)
