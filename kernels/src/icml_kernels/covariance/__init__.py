"""Gram matrices of many layers at once, and the spectrum of a covariance without its eigenvalues."""
