"""Elastic distances of time series: DTW and TWED, their smooth versions with gradients, and alignments."""
