"""Operators of molecular simulation: neighbour pairs, continuous-filter convolutions, dynamics."""
