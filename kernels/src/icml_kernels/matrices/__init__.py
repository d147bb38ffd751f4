"""Spectral operations on batches of matrices: polar factors, top singular triplets, Krylov spaces."""
