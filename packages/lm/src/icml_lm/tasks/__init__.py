"""Synthetic tasks with exact answers, and the small models that are trained on them."""
