"""What clusters or transversals are worth: cost, bad triangles left, agreement with a truth."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.metrics import adjusted_rand_score

from icml_btt.cost import disagreements
from icml_btt.signed_graph import Missing, as_signed_graph
from icml_btt.triangles import count_bad_triangles


class Score:
    """Evaluator of clusterings and transversals.

    Args:
        missing: what a pair is that a matrix or networkx graph does not hold.

    Example:
        >>> import numpy as np
        >>> from icml_btt import Score, SignedGraph
        >>> path = SignedGraph.from_edges([(0, 1), (1, 2)])
        >>> Score().evaluate(np.array([0, 0, 1]), path)
        {'cost': 1.0, 'bad_triangles_left': 0.0, 'clusters': 2.0}
    """

    def __init__(self, missing: Missing = "negative") -> None:
        self.missing: Missing = missing

    def evaluate(self, subject: Any, graph: Any, truth: Any = None) -> dict[str, float]:
        """Score labels or edges.

        Args:
            subject: labels (n,), edges (k, 2), or a solution that has ``labels`` or ``edges``.
            graph: what they are a solution of.
            truth: the right cluster of each vertex, any values.

        Returns:
            ``cost``; ``bad_triangles_left`` (of labels 0: their mistakes hit all); of labels also
            ``clusters`` and, with a truth, the adjusted Rand index ``ari``.

        Raises:
            ValueError: neither labels nor edges; a pair that is no edge of the graph; a truth of another
                length, or one for edges.
        """
        signed = as_signed_graph(graph, missing=self.missing)
        labels, edges = getattr(subject, "labels", None), getattr(subject, "edges", None)
        if labels is None and edges is None:
            array = np.asarray(subject)
            if array.dtype.kind not in "iu" and array.size:
                raise ValueError(f"expected integer labels (n,) or edges (k, 2), got dtype {array.dtype}")
            labels, edges = (array, None) if array.ndim == 1 else (None, array)
        if labels is None:
            if truth is not None:
                raise ValueError(
                    "a truth says which vertices belong together; give labels to compare with it"
                )
            return self._edges(signed, np.asarray(edges))
        cost = float(disagreements(signed, labels))
        figures = {
            "cost": cost,
            "bad_triangles_left": 0.0,
            "clusters": float(len(np.unique(labels))),
        }
        if truth is not None:
            if len(truth) != signed.n:
                raise ValueError(f"the truth has {len(truth)} labels for {signed.n} vertices")
            figures["ari"] = float(adjusted_rand_score(truth, labels))
        return figures

    def _edges(self, signed: Any, edges: np.ndarray) -> dict[str, float]:
        if edges.ndim != 2 or edges.shape[1] != 2:
            raise ValueError(f"expected labels (n,) or edges (k, 2), got shape {edges.shape}")
        u, v = edges.astype(np.int64).T
        if len(u) and (min(u.min(), v.min()) < 0 or max(u.max(), v.max()) >= signed.n or (u == v).any()):
            raise ValueError(f"edges are pairs of different vertices from 0, …, {signed.n - 1}")
        if (signed.signs_of(u, v) == 0).any():
            raise ValueError("a pair among the edges is no edge of the graph")
        keys = np.unique(signed.pair_key(u, v))
        return {
            "cost": math.fsum(signed.weights_of(keys)),
            "bad_triangles_left": float(count_bad_triangles(signed.without(keys))),
        }
