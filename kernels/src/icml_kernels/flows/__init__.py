"""Operators of generative flow networks: log-space inflows, graded graphs, and canonical forms of states."""
