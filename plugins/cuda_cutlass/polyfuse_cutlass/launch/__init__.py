"""Launching built kernels through the CUDA driver."""
