"""Operators of graph algorithms: open wedges, covers of bad triangles, pivots, local moves of clusterings."""
