"""Operators for neurons: linear systems on trees, and Hodgkin-Huxley cells in time."""
