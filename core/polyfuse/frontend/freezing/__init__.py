"""Freezing: what follows from the parameters of a model alone is computed once."""
