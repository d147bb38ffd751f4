"""Markov chains on lattices and sparse discrete energies."""
