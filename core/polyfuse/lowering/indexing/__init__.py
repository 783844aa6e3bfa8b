"""Reads and writes at indices given by data: gather, scatter, search, and range checks."""
