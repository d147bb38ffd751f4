"""Operators of variational wavefunctions: Markov chains of spins, and ratios of amplitudes."""
