"""Launchers of built kernels: native and plain Python. Nothing here imports Triton."""
