"""Fusion: what may share a kernel, what it is worth, and in which order pairs are merged."""
