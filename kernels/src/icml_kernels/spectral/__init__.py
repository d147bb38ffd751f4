"""Losses on Fourier amplitudes and products of truncated spectra, for neural operators."""
