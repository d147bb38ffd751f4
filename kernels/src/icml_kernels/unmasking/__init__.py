"""Loops of samplers that reveal a masked sequence symbol by symbol."""
